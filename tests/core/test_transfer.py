"""What is written for another proxy is read there as it was, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.entry import Entry
from samewise.core.fingerprint import Environment
from samewise.core.transfer import Manifest, Reader, TransferRefused, Writer
from tests.support.entries import entries

MANIFEST = Manifest(
    created=5.25,
    version="1",
    environments={"m": Environment(id="e", origin="contract", defaults={"top_p": 1.0}, manifest={"id": "e"})},
    epochs=(("all", "", 2), ("tenant", "t", 1)),
)


def written(*told: Entry) -> list[bytes]:
    writer = Writer()
    return [writer.begin(MANIFEST), *[writer.add(entry) for entry in told], writer.end()]


def read(lines: list[bytes]) -> tuple[Manifest | None, list[Entry]]:
    reader = Reader()
    found = [entry for line in lines if (entry := reader.read(line)) is not None]
    reader.close()
    return reader.manifest, found


@given(st.lists(entries, max_size=3))
def test_every_entry_comes_back_as_it_was(given_entries: list[Entry]) -> None:
    lines = written(*given_entries)
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    assert read(lines) == (MANIFEST, given_entries)


@given(st.lists(entries, min_size=1, max_size=2), st.data())
def test_no_byte_can_be_changed(given_entries: list[Entry], data: st.DataObject) -> None:
    lines = written(*given_entries)
    at = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines[at]) - 2))
    changed = bytes((lines[at][place] ^ data.draw(st.integers(1, 255)),))
    lines[at] = lines[at][:place] + changed + lines[at][place + 1 :]
    with pytest.raises(TransferRefused):
        read(lines)


@pytest.mark.parametrize("version", [{"format": 2}, {"key_version": 0}])
def test_another_format_or_key_version_is_refused_at_once(version: dict[str, int]) -> None:
    with pytest.raises(TransferRefused, match="line 1"):
        Reader().read(Writer().begin(Manifest(**version)))  # type: ignore[arg-type]


def test_what_was_asked_and_answered_stays_readable() -> None:
    from samewise.core.answer import Answer

    entry = Entry(
        key="k", created=1.0, ttl=2.0, began=0, tenant="", family="chat", model="m", environment="e",
        snapshot="default@1", request='{"text":"grüß"}'.encode(), answer=Answer(form="json", body=b'{"a":"b"}'),
    )  # fmt: skip
    line = written(entry)[1].decode()
    assert "grüß" in line
    assert r"{\"a\":\"b\"}" in line

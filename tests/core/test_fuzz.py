"""Whatever bytes come as a request or out of a store: an answer in order, or a refusal in words; nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samewise.core.body import parse, write
from samewise.core.controls import Controls
from samewise.core.entry import Entry, EntryRefused
from samewise.core.errors import ProxyError
from samewise.core.families.contract import Family
from samewise.core.families.registry import FAMILIES
from samewise.core.plan import Context
from samewise.core.request import plan, upstream_body
from samewise.store.codec import Codec
from tests.core.planning import OBSERVED, VLLM
from tests.support.entries import key_of, make_entry

FUZZ = Path(__file__).parent.parent / "fuzz"
REQUESTS = {path.name: path.read_bytes() for path in sorted((FUZZ / "requests").iterdir())}
ENTRIES = {path.name: path.read_bytes() for path in sorted((FUZZ / "entries").iterdir())}
OPEN, SEALED = Codec(limit=1 << 20), Codec(secrets=("fuzz",), limit=1 << 20)
HEADER = 36
PIECES = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\u", b"\\ud800", b"null", b"-", b"1e999", b"\x00", b"\xff", b" "]


@st.composite
def mutated(draw: st.DrawFn, corpus: dict[str, bytes]) -> bytes:
    """One of the corpus with a few bytes changed, cut, doubled or swapped for what parsers trip over."""
    data = bytearray(corpus[draw(st.sampled_from(sorted(corpus)))])
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del data[at : at + draw(st.integers(1, 20))]
            case 2:
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case 3:
                data[at:at] = draw(st.sampled_from(PIECES))
            case _:
                data[at:] = b""
    return bytes(data)


def read(raw: bytes) -> dict[str, Any] | None:
    """The body, None where it is refused, which must be in words."""
    try:
        return parse(raw)
    except ProxyError as error:
        assert (error.status, bool(error.message)) == (400, True)
        json.loads(error.body())
        return None


@pytest.mark.parametrize("name", REQUESTS)
def test_the_corpus_is_read_or_refused_as_its_names_say(name: str) -> None:
    bad = {"duplicate", "deep-duplicate", "big-number", "bom", "nan", "deep", "not-utf8", "trailing", "array"}
    assert (read(REQUESTS[name]) is None) == (name.removesuffix(".json") in bad)


@given(raw=mutated(REQUESTS) | st.binary(max_size=60))
def test_a_body_is_read_as_every_parser_would_or_refused(raw: bytes) -> None:
    value = read(raw)
    if value is None:
        return
    assert json.loads(raw) == value
    assert parse(write(value)) == value


@given(raw=mutated(REQUESTS), environment=st.sampled_from([None, OBSERVED, VLLM]), pin=st.booleans())
def test_every_family_plans_or_refuses_what_can_be_read(raw: bytes, environment: Any, pin: bool) -> None:
    if read(raw) is None:
        return
    context = Context(tenant="t", environment=environment, unseeded="pin" if pin else "bypass", salt="s" * 32)
    for family in FAMILIES:
        _planned(family, raw, context)


def _planned(family: Family, raw: bytes, context: Context) -> None:
    try:
        made = plan(family, raw, Controls(), context)
    except ProxyError as error:
        assert error.status == 400
        return
    assert made.units
    for unit in made.units:
        assert (unit.key is None) == (unit.reason is not None)
        assert unit.key is None or unit.key == hashlib.sha256(unit.preimage).hexdigest()
    sent = upstream_body(made, family, made.units[:1], stream=made.stream)
    told = parse(sent)
    assert "cache" not in told or made.units[0].reason is not None
    assert told.get("cache_salt", "s" * 32) == parse(raw).get("cache_salt", "s" * 32)


def decoded(codec: Codec, data: bytes) -> Entry | None:
    try:
        return codec.decode(key_of("fuzz"), data)
    except EntryRefused as refused:
        assert refused.kind
        return None


def test_the_corpus_of_entries_is_read_under_its_own_secret_alone() -> None:
    assert decoded(OPEN, ENTRIES["open"]) == decoded(SEALED, ENTRIES["sealed"]) == make_entry("fuzz")
    assert decoded(OPEN, ENTRIES["compressed"]) == make_entry("fuzz", body=b"x" * 3000)
    for name in ("empty", "pickle", "bomb"):
        assert decoded(OPEN, ENTRIES[name]) is decoded(SEALED, ENTRIES[name]) is None


@given(data=mutated(ENTRIES) | st.binary(max_size=80), seals=st.booleans())
def test_bytes_of_a_store_are_the_entry_or_refused(data: bytes, seals: bool) -> None:
    found = decoded(SEALED if seals else OPEN, data)
    assert found is None or data in ENTRIES.values()


@given(data=mutated(ENTRIES) | st.binary(min_size=HEADER, max_size=80), seals=st.booleans())
@example(data=ENTRIES["bomb"], seals=False)
@example(data=ENTRIES["sealed"][:4] + bytes(HEADER - 4) + ENTRIES["sealed"][HEADER:], seals=True)
def test_bytes_with_a_right_checksum_are_an_entry_of_this_key_or_refused(data: bytes, seals: bool) -> None:
    """Who can write to the store can make any checksum. With a secret that is no use to him."""
    key = key_of("fuzz")
    head, payload = data[:4], data[HEADER:]
    name = key.encode()
    digest = hashlib.sha256(head + len(name).to_bytes(4, "big") + name + payload).digest()
    made = head + digest + payload
    found = decoded(SEALED if seals else OPEN, made)
    assert found is None or found.key == key
    assert found is None or not seals or made == ENTRIES["sealed"]

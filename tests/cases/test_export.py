"""Entries of one proxy in a file, and another proxy that answers from them alone."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.cases.conftest import MakeProxy
from tests.support.mock_backend import MockBackend
from tests.support.proxy import B0, Proxy

NOBODY = "http://127.0.0.1:9/v1"
FROZEN = {"cache.mode": "frozen"}


async def samewise(proxy: Proxy, *args: str) -> tuple[int, str]:
    """The exit code and what was printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "samewise.main", *args, "--admin", proxy.admin_url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


def asked(text: str, **changes: Any) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": text}], **changes}


async def test_an_export_answers_the_same_bytes_on_a_frozen_proxy_without_any_upstream(
    make_proxy: MakeProxy, mb: MockBackend, tmp_path: Path
) -> None:
    source = await make_proxy()
    bodies = [
        asked("hi"),
        asked("héllo \ud83d\ude00"),
        asked("streamed", stream=True),
        asked("sampled", temperature=0.7),
    ]
    first = [await source.post(body) for body in bodies]
    vectors = {"model": "m", "input": ["a", "b"]}
    embedded = await source.post(vectors, path="/v1/embeddings")
    assert {answer.cache for answer in (*first, embedded)} == {"MISS"}

    file = str(tmp_path / "entries.jsonl.zst")
    code, out = await samewise(source, "export", file, "--json")
    assert (code, json.loads(out)["entries"]) == (0, 6)

    target = await make_proxy(NOBODY, settings={**FROZEN, "store.url": f"sqlite:///{tmp_path}/there.db"})
    assert (await target.post(B0)).status == 504
    code, out = await samewise(target, "import", file, "--json")
    assert (code, json.loads(out)) == (0, {"entries": 6, "skipped": {}})

    again = [await target.post(body) for body in bodies]
    assert [answer.cache for answer in again] == ["HIT"] * 4
    assert [answer.body for answer in again] == [(await source.post(body)).body for body in bodies]
    assert [answer.body for answer in again[:2]] == [answer.body for answer in first[:2]]
    assert (await target.post(vectors, path="/v1/embeddings")).body == embedded.body
    assert mb.count == len(bodies) + 1
    missed = await target.post(asked("something else"))
    assert (missed.status, missed.reason) == (504, "not-cached")
    assert again[0].key is not None
    assert "nearest entry is" in missed.json()["error"]["message"]
    ready = await target.request("GET", "/readyz")
    assert (ready.status, ready.json()["status"]) == (200, "degraded")

    await target.restart()
    assert (await target.post(B0)).cache == "HIT"


async def test_filters_choose_what_is_exported(make_proxy: MakeProxy, tmp_path: Path) -> None:
    proxy = await make_proxy()
    await proxy.post(asked("one"), headers={"x-samewise-tags": "red,blue"})
    await proxy.post(asked("two", model="m-small"))
    for option, value, wanted in [
        ("--tag", "red", 1), ("--tag", "green", 0), ("--model", "m-small", 1),
        ("--environment", "a" * 32, 2), ("--environment", "b" * 32, 0), ("--tenant", "nobody", 0),
    ]:  # fmt: skip
        file = str(tmp_path / "some")
        code, out = await samewise(proxy, "export", file, option, value, "--json")
        assert (code, json.loads(out)["entries"]) == (0, wanted), (option, value)


async def test_epochs_of_the_source_hold_at_the_target(make_proxy: MakeProxy, tmp_path: Path) -> None:
    source = await make_proxy()
    await source.admin("POST", "/invalidate", {"scope": "all"})
    await source.admin("POST", "/invalidate", {"scope": "model", "value": "m"})
    first = await source.post(B0)
    file = str(tmp_path / "entries")
    await samewise(source, "export", file)
    target = await make_proxy(NOBODY, settings=FROZEN)
    await samewise(target, "import", file)
    assert (await target.post(B0)).body == first.body
    await target.admin("POST", "/invalidate", {"scope": "all"})
    assert (await target.post(B0)).status == 504
    _, out = await samewise(target, "import", file, "--json")
    assert json.loads(out) == {"entries": 0, "skipped": {"unreachable": 1}}


async def test_an_upstream_that_is_known_decides_and_not_what_was_imported(
    make_proxy: MakeProxy, mb: MockBackend, tmp_path: Path
) -> None:
    source = await make_proxy()
    await source.post(B0)
    file = str(tmp_path / "entries")
    await samewise(source, "export", file)
    async with MockBackend(manifest={"id": "b" * 32}) as other:
        target = await make_proxy(other.url)
        await samewise(target, "import", file)
        answer = await target.post(B0)
        assert (answer.cache, answer.headers["x-samewise-environment"]) == ("MISS", "b" * 32)


async def test_what_has_expired_is_taken_with_a_new_life_alone(make_proxy: MakeProxy, tmp_path: Path) -> None:
    source = await make_proxy()
    first = await source.post(B0)
    file = tmp_path / "entries.jsonl"
    whole = await source.request("GET", "/samewise/v1/export", admin=True)
    from samewise.core.transfer import Reader, Writer

    reader, writer = Reader(), Writer()
    lines = whole.body.splitlines(keepends=True)
    reader.read(lines[0])
    assert reader.manifest is not None
    import msgspec

    old = msgspec.structs.replace(reader.read(lines[1]), created=1.0)  # type: ignore[type-var]
    assert old is not None
    file.write_bytes(writer.begin(reader.manifest) + writer.add(old) + writer.end())
    target = await make_proxy(NOBODY, settings=FROZEN)
    code, out = await samewise(target, "import", str(file), "--json")
    assert json.loads(out) == {"entries": 0, "skipped": {"expired": 1}}
    code, out = await samewise(target, "import", str(file), "--ttl", "600")
    assert (code, out.strip()) == (0, "1 entry")
    answer = await target.post(B0)
    assert answer.body == first.body
    assert int(answer.headers["age"]) > 1_000_000


@pytest.mark.parametrize("harm", ["cut", "changed", "dropped", "foreign", "last"])
async def test_a_damaged_file_is_refused_whole_by_the_command_and_from_that_line_on_by_the_proxy(
    make_proxy: MakeProxy, tmp_path: Path, harm: str
) -> None:
    source = await make_proxy()
    for text in ("one", "two", "three"):
        await source.post(asked(text))
    file = tmp_path / "entries"
    await samewise(source, "export", str(file))
    lines = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes()).splitlines(keepends=True)
    assert len(lines) == 5
    match harm:
        case "cut":
            lines = lines[:3]
        case "changed":
            lines[2] = lines[2].replace(b"nonce", b"forge")
        case "dropped":
            del lines[2]
        case "foreign":
            lines = [b'{"some": "json"}\n']
        case _:
            lines.append(lines[1])
    file.write_bytes(b"".join(lines))
    code, out = await samewise(source, "import", str(file))
    assert code == 2
    assert "line" in out
    posted = await source.request("POST", "/samewise/v1/import", body=b"".join(lines), admin=True)
    assert posted.status == 400
    assert posted.json()["error"]["code"] == "invalid_export"


async def test_an_unknown_filter_is_refused(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy()
    answer = await proxy.request("GET", "/samewise/v1/export?modle=m", admin=True)
    assert answer.status == 400

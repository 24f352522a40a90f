"""The short ways give what the long way gives, and only while it would: same answer, same counters."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from samewise.assembly import house as houses
from samewise.assembly import service as services
from samewise.assembly.parts import SystemClock
from samewise.http.hot import Hot, HotAnswers
from samewise.settings import load
from samewise.store.memory import MemoryStore
from tests.support.mock_backend import MockBackend
from tests.support.patience import ENOUGH
from tests.support.proxy import B0, CHAT, until

OF_THE_MOMENT = {"x-request-id", "age", "date", "cache-status"}
KEY = "sk-first"
OTHER = "sk-second"
AUTH = [
    {"tenant": name, "sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in (("a", KEY), ("b", OTHER))
]


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Status, fields by lower-case name, and the body as it is framed, or without its chunks."""
        async with asyncio.timeout(ENOUGH):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            headers = {name.lower(): value for name, value in fields.items()}
            assert len(headers) == len([line for line in head[1:] if line]), f"a field twice: {head}"
            if "content-length" in headers:
                body = await self._reader.readexactly(int(headers["content-length"]))
            else:
                assert headers.pop("transfer-encoding") == "chunked"
                body = await self._chunks()
            return int(head[0].split(" ")[1]), headers, body

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            assert await self._reader.readline() == b"\r\n"
        assert await self._reader.readline() == b"\r\n"
        return body

    async def closed(self) -> bool:
        async with asyncio.timeout(ENOUGH):
            return await self._reader.read(1) == b""

    async def ask(self, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
        for piece in pieces:
            self.send(piece)
            await asyncio.sleep(0.005 if len(pieces) > 1 else 0)
        return await self.receive()


def http(
    body: Any = B0, *headers: tuple[str, str], path: str = CHAT, version: str = "1.1", chunked: bool = False
) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = [("Host", "h"), ("Content-Type", "application/json"), *headers]
    framing = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(raw)))
    head = "".join(f"{name}: {value}\r\n" for name, value in (*fields, framing))
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw) if chunked else raw
    return f"POST {path} HTTP/{version}\r\n{head}\r\n".encode() + sent


class House:
    """A proxy in this process; `short` tells by which lane requests were answered."""

    def __init__(self, service: services.Service, mb: MockBackend, hot: HotAnswers, short: dict[str, int]) -> None:
        self.service, self.mb, self.hot, self.short = service, mb, hot, short

    @contextlib.asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        host, port = self.service.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()

    async def once(self, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
        async with self.wire() as wire:
            return await wire.ask(*pieces)

    async def warm(self, data: bytes, *, lane: str = "a") -> None:
        """Until the request is answered by the lane."""
        for _ in range(4):
            before = self.short[lane]
            await self.once(data)
            if self.short[lane] > before:
                return
        raise AssertionError(f"lane {lane} never answered: {self.short}")

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.service.admin_url}{path}", json=body) as response,
        ):
            return await response.json() if "json" in response.content_type else await response.text()

    async def counters(self) -> dict[str, float]:
        """What counts requests; durations by their number."""
        text = await self.admin("GET", "/metrics")
        found = re.findall(
            r"^(samewise_(?:requests|tokens|uncached)_total\S*|samewise_(?:request_duration|time_to_first_token|"
            r"entry_age|lookup_duration)_seconds_count\S*|samewise_inflight) (\S+)$",
            text,
            re.MULTILINE,
        )
        return {name: float(value) for name, value in found}


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    async with MockBackend() as mb, opened(mb, tmp_path, monkeypatch, {}) as made:
        yield made


@contextlib.asynccontextmanager
async def opened(
    mb: MockBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any]
) -> AsyncIterator[House]:
    short = {"a": 0, "fields": 0, "b": 0, "store": 0}
    made: list[HotAnswers] = []

    class Seen(HotAnswers):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

        def by_request(self, data: bytes) -> bytes | None:
            response = super().by_request(data)
            short["a"] += response is not None
            return response

        def by_fields(self, data: bytes) -> bytes | None:
            response = super().by_fields(data)
            short["fields"] += response is not None
            short["b"] -= response is not None
            return response

        def by_body(self, question: Any) -> tuple[Hot, bytes] | None:
            found = super().by_body(question)
            short["b"] += found is not None
            return found

        async def by_store(self, question: Any) -> bytes | None:
            response = await super().by_store(question)
            short["store"] += response is not None
            return response

    monkeypatch.chdir(folder)
    monkeypatch.setattr("samewise.assembly.house.HotAnswers", Seen)
    given = {"server.port": 0, "admin.port": 0, "store.url": "memory://", "verify.rate": 0.0, **flags}
    settings = load(None, {"upstreams": [{"url": mb.url}], **given})
    async with services.running(settings) as service:
        yield House(service, mb, made[0], short)


def lasting(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in OF_THE_MOMENT}


def left(headers: dict[str, str]) -> int:
    found = re.fullmatch(r"samewise; hit; ttl=(\d+)", headers["cache-status"])
    assert found is not None, headers["cache-status"]
    return int(found[1])


COMPLETIONS = {"model": "m", "prompt": "hi", "temperature": 0, "seed": 7, "max_tokens": 5}
REQUESTS = {
    "chat": http(),
    "an API key": http(B0, ("Authorization", f"Bearer {KEY}")),
    "an OpenAI client": http(B0, ("Accept", "application/json"), ("Connection", "keep-alive"), ("X-Stainless-A", "1")),
    "a stream": http({**B0, "stream": True}),
    "a stream with usage": http({**B0, "stream": True, "stream_options": {"include_usage": True}}),
    "text completions": http(COMPLETIONS, path="/v1/completions"),
    "embeddings": http({"model": "m", "input": "hi"}, path="/v1/embeddings"),
    "messages": http(
        {"model": "m", "messages": B0["messages"], "max_tokens": 9, "temperature": 0}, path="/v1/messages"
    ),
    "a tag and a time to live": http(B0, ("x-samewise-tags", "t"), ("x-samewise-ttl", "50")),
    "a sample": http({**B0, "temperature": 1}, ("x-samewise-sample", "3")),
    "only if cached": http(B0, ("Cache-Control", "only-if-cached")),
}


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS.keys())
async def test_each_way_gives_the_same_answer_and_counts_the_same(house: House, data: bytes) -> None:
    await house.once(http())
    await house.warm(data)
    seen: list[tuple[tuple[int, dict[str, str], bytes], dict[str, float]]] = []
    for lane, more in (("a", b""), ("fields", b"traceparent: new\r\n"), ("b", b"traceparent:new\r\n"), ("long", b"")):
        house.hot.enabled = lane != "long"
        sent = data.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n", 1)
        before, shorts = await house.counters(), dict(house.short)
        answer = await house.once(sent)
        after = await house.counters()
        ways = ("a", "fields", "b")
        assert {way: house.short[way] - shorts[way] for way in ways} == {way: way == lane for way in ways}
        change = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
        seen.append((answer, change))
    *others, (long, counted) = seen
    assert long[1]["x-samewise-cache"] == "HIT"
    for answer, change in others:
        assert answer[0] == long[0]
        assert lasting(answer[1]) == lasting(long[1])
        assert set(answer[1]) == set(long[1])
        assert answer[2] == long[2]
        assert abs(left(answer[1]) - left(long[1])) <= 2 and abs(int(answer[1]["age"]) - int(long[1]["age"])) <= 2
        assert change == counted
    assert len({answer[1]["x-request-id"] for answer, _ in seen}) == len(seen)


async def test_pieces_are_one_request(house: House) -> None:
    """As clients send it that write the head before the body."""
    data = http()
    at = data.find(b"\r\n\r\n") + 4
    head, body = data[:at], data[at:]
    answers = []
    async with house.wire() as wire:
        answers += [await wire.ask(head, body) for _ in range(6)]
        assert house.short["a"] >= 2
        before = dict(house.short)
        answers.append(await wire.ask(head, body[:10], body[10:]))
        answers.append(await wire.ask(data[: at - 5], data[at - 5 : at + 3], data[at + 3 :]))
        answers.append(await wire.ask(*(data[place : place + 1] for place in range(len(data)))))
        assert house.short["a"] == before["a"]
        answers.append(await wire.ask(data))
    assert len({answer[2] for answer in answers}) == 1
    assert house.mb.count == 1


async def test_what_looks_like_the_start_of_a_known_request_and_is_another(house: House) -> None:
    data = http()
    at = data.find(b"\r\n\r\n") + 4
    other = json.dumps(B0).replace("hi", "ho").encode()
    async with house.wire() as wire:
        for _ in range(4):
            await wire.ask(data[:at], data[at:])
        assert house.short["a"]
        status, headers, _ = await wire.ask(data[:at], other)
        assert (status, headers["x-samewise-cache"]) == (200, "MISS")
        assert (await wire.ask(data[:at], other))[1]["x-samewise-cache"] == "HIT"


async def test_requests_at_once_are_answered_in_order(house: House) -> None:
    one, other = http(), http({**B0, "seed": 8})
    for data in (one, other):
        await house.warm(data)
    expected = [(await house.once(data))[2] for data in (one, other)]
    async with house.wire() as wire:
        wire.send(one + other + one)
        assert [(await wire.receive())[2] for _ in range(3)] == [expected[0], expected[1], expected[0]]
        wire.send(other)
        assert (await wire.receive())[2] == expected[1]
    async with house.wire() as wire:
        wire.send(http({**B0, "seed": 9}))
        wire.send(one)
        wire.send(other)
        answers = [await wire.receive() for _ in range(3)]
        assert [answer[1]["x-samewise-cache"] for answer in answers] == ["MISS", "HIT", "HIT"]
        assert [answer[2] for answer in answers[1:]] == expected


@pytest.mark.parametrize(
    "data",
    [http(chunked=True), http(B0, ("Connection", "close")), http(version="1.0"), http(B0, ("Expect", "100-continue"))],
    ids=["chunked", "close", "HTTP/1.0", "expect"],
)
async def test_what_is_not_plain_goes_the_long_way(house: House, data: bytes) -> None:
    await house.warm(http())
    closes = b"close" in data or b"HTTP/1.0" in data
    for _ in range(3):
        before = dict(house.short)
        async with house.wire() as wire:
            wire.send(data)
            if b"HTTP/1.0" in data:
                assert await wire._reader.read(17) == b"HTTP/1.0 200 OK\r\n"
                continue
            status, headers, _ = await wire.receive()
            assert (status, headers["x-samewise-cache"]) == (200, "HIT")
            if closes:
                assert await wire.closed()
        assert house.short["a"] == before["a"]


@pytest.mark.parametrize("field", [("X-A", "b" * 65_537), ("User-Agent", "b" * 100_000), ("X" * 66_000, "b")])
async def test_what_is_too_large_is_refused_whatever_was_known(house: House, field: tuple[str, str]) -> None:
    await house.warm(http())
    for _ in range(3):
        status, headers, _ = await house.once(http(B0, field))
        assert (status, headers["x-samewise-reason"]) == (431, "bad-request")


async def test_a_connection_that_shall_end_ends_however_well_its_request_is_known(house: House) -> None:
    await house.warm(http())
    for _ in range(3):
        async with house.wire() as wire:
            status, headers, _ = await wire.ask(http(B0, ("Proxy-Connection", "close")))
            assert (status, headers["x-samewise-cache"], headers["connection"]) == (200, "HIT", "close")
            assert await wire.closed()


async def test_a_field_twice_is_not_a_field_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with MockBackend() as mb, opened(mb, tmp_path, monkeypatch, {"auth.keys": AUTH}) as house:
        await house.warm(http(B0, ("Authorization", f"Bearer {KEY}")))
        twice = http(B0, ("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {OTHER}"))
        for _ in range(3):
            assert (await house.once(twice))[0] == 401


async def test_each_key_has_its_own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with MockBackend() as mb, opened(mb, tmp_path, monkeypatch, {"auth.keys": AUTH}) as house:
        first = http(B0, ("Authorization", f"Bearer {KEY}"))
        await house.warm(first)
        answer = (await house.once(first))[2]
        second = http(B0, ("Authorization", f"Bearer {OTHER}"))
        status, headers, body = await house.once(second)
        assert (status, headers["x-samewise-cache"]) == (200, "MISS") and body != answer
        await house.warm(second)
        assert (await house.once(second))[2] == body and (await house.once(first))[2] == answer
        for fields in ([], [("Authorization", "Bearer wrong")], [("Authorization", KEY)], [("x-api-key", OTHER[:-1])]):
            for _ in range(3):
                assert (await house.once(http(B0, *fields)))[0] == 401


CHANGES: dict[str, tuple[str, str, Any]] = {
    "all": ("POST", "/samewise/v1/invalidate", {"scope": "all"}),
    "model": ("POST", "/samewise/v1/invalidate", {"scope": "model", "value": "m"}),
    "tag": ("POST", "/samewise/v1/invalidate", {"scope": "tag", "value": "t"}),
    "key": ("POST", "/samewise/v1/invalidate", {"scope": "key", "value": "KEY"}),
    "entry": ("DELETE", "/samewise/v1/entries/KEY", None),
    "profile": ("PUT", "/samewise/v1/profiles/default", {"values": {"top_p": 0.5}}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_what_operators_change_holds_at_once(house: House, change: tuple[str, str, Any]) -> None:
    method, path, body = change
    data = http(B0, ("x-samewise-tags", "t"))
    await house.warm(data)
    async with house.wire() as wire:
        _, headers, answer = await wire.ask(data)
        key = headers["x-samewise-key"]
        given = json.loads(json.dumps(body).replace("KEY", key))
        await house.admin(method, path.replace("KEY", key), given)
        _, headers, after = await wire.ask(data)
        assert headers["x-samewise-cache"] == "MISS" and after != answer
        await house.warm(data)
        assert (await wire.ask(data))[2] == after


async def test_another_environment_is_another_answer(house: House) -> None:
    data = http()
    await house.warm(data)
    _, first, answer = await house.once(data)
    house.mb.become("b" * 32)
    await house.once(http({**B0, "seed": 99}))

    async def new() -> bool:
        return (await house.once(data))[1]["x-samewise-environment"] == "b" * 32

    await until(new)
    _, second, after = await house.once(data)
    assert after != answer and second["x-samewise-key"] != first["x-samewise-key"]
    house.mb.become("a" * 32)
    await house.once(http({**B0, "seed": 98}))

    async def old() -> bool:
        return (await house.once(data))[2] == answer

    await until(old)


async def test_an_entry_is_given_until_it_expires(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    data = http(B0, ("x-samewise-ttl", "60"))
    await house.warm(data)
    real = SystemClock.now
    for passed, expected in ((20, "HIT"), (58, "HIT"), (61, "MISS")):
        monkeypatch.setattr(SystemClock, "now", staticmethod(lambda passed=passed: real() + passed))
        before = house.short["a"]
        _, headers, _ = await house.once(data)
        assert headers["x-samewise-cache"] == expected
        assert (house.short["a"] > before) is (expected == "HIT")
        if expected == "HIT":
            assert abs(int(headers["age"]) - passed) <= 1 and abs(left(headers) - (60 - passed)) <= 1


async def test_an_entry_that_was_replaced_or_went_is_not_given(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    memory: list[MemoryStore] = []
    peek = house.hot._peek
    assert peek is not None
    memory.append(peek.__self__)  # type: ignore[attr-defined]
    data = http()
    await house.warm(data)
    _, headers, _ = await house.once(data)
    found = await memory[0].get(headers["x-samewise-key"])
    assert found is not None
    memory[0].keep(msgspec.structs.replace(found.entry, verified=5))
    before = dict(house.short)
    _, headers, _ = await house.once(data)
    assert headers["x-samewise-verified"] == "5" and house.short["a"] == before["a"]
    await house.warm(data)
    memory[0].forget(headers["x-samewise-key"], 0)
    assert (await house.once(data))[1]["x-samewise-cache"] == "MISS"


@pytest.mark.parametrize("control", ["max-age=100", "no-cache", "no-store"])
async def test_controls_of_a_request_are_looked_at_each_time(house: House, control: str) -> None:
    await house.warm(http())
    data = http(B0, ("Cache-Control", control))
    before = dict(house.short)
    for _ in range(4):
        assert (await house.once(data))[0] == 200
    assert house.short == before


async def test_a_refused_request_is_never_known(house: House) -> None:
    for data in (http(b"{"), http({"model": "m"}), http(B0, ("Content-Type", "text/plain"))):
        statuses = {(await house.once(data))[0] for _ in range(4)}
        assert len(statuses) == 1
    assert not any(house.short.values())


async def test_while_it_drains_nothing_is_answered_the_short_way(house: House) -> None:
    data = http()
    await house.warm(data)
    async with house.wire() as wire:
        await wire.ask(data)
        before = dict(house.short)
        await house.service.drain(1.0, asyncio.Event())
        assert await wire.closed()
    assert house.short == before


async def test_a_client_that_does_not_read_holds_back_its_answers(house: House) -> None:
    text = "x" * 300_000
    house.mb.text = lambda body, number: text
    data = http()
    await house.warm(data)
    before = house.short["a"]
    async with house.wire() as wire:
        for _ in range(200):
            wire.send(data)
            await asyncio.sleep(0.001)
        assert house.short["a"] - before < 100
        for _ in range(200):
            assert (await wire.receive())[0] == 200


async def test_the_memory_that_it_takes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with MockBackend() as mb, opened(mb, tmp_path, monkeypatch, {"store.memory": "400KiB"}) as house:
        limit = 400 * 1024 // houses.HOT_SHARE
        for seed in range(60):
            data = http({**B0, "seed": seed, "metadata": {"pad": "y" * 500}})
            for _ in range(4):
                await house.once(data)
            assert house.hot._requests.bytes <= limit and house.hot._bodies.bytes <= limit
        assert house.short["a"] > 50


@pytest.fixture
async def without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    flags = {"store.url": f"sqlite:///{tmp_path}/s.db", "store.memory": 0}
    async with MockBackend() as mb, opened(mb, tmp_path, monkeypatch, flags) as made:
        yield made


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS.keys())
async def test_without_a_memory_tier_the_store_is_asked_and_all_else_is_the_same(
    without_memory: House, data: bytes
) -> None:
    house = without_memory
    await house.once(http())
    await house.warm(data, lane="store")
    seen: list[tuple[tuple[int, dict[str, str], bytes], dict[str, float]]] = []
    for lane in ("store", "long"):
        house.hot.enabled = lane != "long"
        sent = data.replace(b"\r\n\r\n", b"\r\ntraceparent: another\r\n\r\n", 1)
        before, shorts = await house.counters(), dict(house.short)
        answer = await house.once(sent)
        after = await house.counters()
        assert house.short["store"] - shorts["store"] == (lane == "store")
        change = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
        seen.append((answer, change))
    (short, short_counted), (long, counted) = seen
    assert short[0] == long[0] and short[2] == long[2] and lasting(short[1]) == lasting(long[1])
    assert set(short[1]) == set(long[1]) and short_counted == counted
    assert house.short["a"] == house.short["b"] == 0


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_what_operators_change_holds_without_a_memory_tier_too(
    without_memory: House, change: tuple[str, str, Any]
) -> None:
    house = without_memory
    method, path, body = change
    data = http(B0, ("x-samewise-tags", "t"))
    await house.warm(data, lane="store")
    _, headers, answer = await house.once(data)
    key = headers["x-samewise-key"]
    await house.admin(method, path.replace("KEY", key), json.loads(json.dumps(body).replace("KEY", key)))
    _, headers, after = await house.once(data)
    assert headers["x-samewise-cache"] == "MISS" and after != answer


async def test_an_entry_that_changed_in_the_store_is_not_given_as_it_was(without_memory: House) -> None:
    house = without_memory
    data = http()
    await house.warm(data, lane="store")
    _, headers, _ = await house.once(data)
    look = house.hot._look
    assert look is not None
    found = await look(headers["x-samewise-key"])
    assert found is not None
    await look.__self__.put(msgspec.structs.replace(found.entry, verified=5))  # type: ignore[attr-defined]
    before = dict(house.short)
    _, headers, _ = await house.once(data)
    assert headers["x-samewise-verified"] == "5" and house.short == before


async def test_what_comes_at_once_is_relayed_as_one_and_what_comes_alone_at_once(house: House) -> None:
    from tests.support.mock_backend import Script, sse

    def chunk(text: str, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        return sse({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})

    pieces = [chunk("a"), b"".join(chunk(str(at)) for at in range(50)), chunk("", "stop") + b"data: [DONE]\n\n"]
    sizes: list[int] = []
    heard = asyncio.Condition()

    async def one_by_one(at: int) -> None:
        """What comes next is said only once this was heard."""
        async with heard:
            await heard.wait_for(lambda: at == len(pieces) - 1 or len(sizes) > at)

    house.mb.always(Script(sse=pieces, sent=one_by_one))
    async with house.wire() as wire, asyncio.timeout(ENOUGH):
        wire.send(http({**B0, "stream": True}))
        await wire._reader.readuntil(b"\r\n\r\n")
        while size := int(await wire._reader.readline(), 16):
            sizes.append(len((await wire._reader.readexactly(size + 2)).split(b"\n\n")) - 1)
            async with heard:
                heard.notify_all()
    assert sizes[:2] == [1, 50] and sum(sizes) == 53

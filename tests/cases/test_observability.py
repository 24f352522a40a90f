"""What operators are told over OTLP: spans that hang together, figures that add up, and no harm from a collector."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.cases.conftest import MakeProxy
from tests.support.bodies import fresh
from tests.support.collector import Collector, attributes, collecting, collecting_grpc
from tests.support.mock_backend import MockBackend, Script
from tests.support.patience import ENOUGH
from tests.support.proxy import B0, Proxy, until
from tests.support.redis import RedisServer
from tests.support.wire import Wire

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SOON = {
    "OTEL_METRIC_EXPORT_INTERVAL": "200",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_BLRP_SCHEDULE_DELAY": "100",
}
EXPORT = 10.0
"""Seconds that an export waits for its collector."""
OUTCOMES = ("hit", "miss", "coalesced", "bypass", "refresh", "error")


def asked(text: str, **changes: Any) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": text}], **changes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def silent() -> AsyncIterator[str]:
    """A collector that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def by_outcome(spans: list[Any]) -> dict[str, list[Any]]:
    """The server's spans."""
    found: dict[str, list[Any]] = {}
    for span in spans:
        told = attributes(span)
        if "samewise.cache" in told:
            found.setdefault(told["samewise.cache"], []).append(span)
    return found


def below(spans: list[Any], parent: Any) -> dict[str, Any]:
    return {
        span.name: span for span in spans if span.parent_span_id == parent.span_id and span.trace_id == parent.trace_id
    }


async def test_a_miss_a_hit_shared_fetches_and_a_recomputation_are_trees_that_hang_together(
    make_proxy: MakeProxy, mb: MockBackend, collector: Collector
) -> None:
    proxy = await make_proxy(
        settings={"telemetry.otlp_endpoint": collector.url, "verify.rate": 1.0, "verify.each": 0}, env=SOON
    )
    gate = asyncio.Event()
    mb.once(Script(gate=gate))
    asking = [asyncio.create_task(proxy.post(B0, headers={"traceparent": CALLER}))]
    await mb.arrived(1)
    asking += [asyncio.create_task(proxy.post(B0)) for _ in range(2)]
    await proxy.waits(3)
    gate.set()
    await asyncio.gather(*asking)
    assert (await proxy.post(B0)).cache == "HIT"

    async def told() -> bool:
        return len(by_outcome(collector.traces())) == 3 and "verify" in {span.name for span in collector.traces()}

    await until(told)
    spans = collector.traces()
    servers = by_outcome(spans)
    (miss,), (hit,), followers = servers["miss"], servers["hit"], servers["coalesced"]
    assert (miss.trace_id.hex(), miss.parent_span_id.hex()) == (CALLER[3:35], CALLER[36:52])
    children = below(spans, miss)
    assert set(children) == {"lookup", "chat m", "store"}
    assert all(miss.start_time_unix_nano <= child.start_time_unix_nano for child in children.values())
    assert mb.received[0].headers["traceparent"] == f"00-{CALLER[3:35]}-{children['chat m'].span_id.hex()}-01"
    assert attributes(children["chat m"])["gen_ai.request.model"] == "m"
    assert attributes(children["chat m"])["gen_ai.usage.output_tokens"] == 18
    assert set(below(spans, hit)) == {"lookup"}
    assert hit.trace_id != miss.trace_id
    assert len(followers) == 2
    for follower in followers:
        assert [link.span_id for link in follower.links] == [miss.span_id]
        assert "chat m" not in below(spans, follower)
    (verify,) = [span for span in spans if span.name == "verify"]
    assert verify.parent_span_id == b""
    assert verify.trace_id not in {hit.trace_id, miss.trace_id}
    assert [link.span_id for link in verify.links] == [hit.span_id]
    assert attributes(verify)["samewise.verdict"] == "divergent"
    words = b"".join(body for bodies in collector.received.values() for body in bodies)
    assert b"nonce" not in words


@pytest.mark.parametrize("asked_for", [False, True])
async def test_prompts_and_answers_are_told_only_where_that_is_asked_for(
    make_proxy: MakeProxy, mb: MockBackend, collector: Collector, asked_for: bool
) -> None:
    proxy = await make_proxy(
        settings={"telemetry.otlp_endpoint": collector.url, "telemetry.content": asked_for, "server.workers": 1},
        env=SOON,
    )
    mb.always(Script(text=lambda body, number: "open sesame"))
    secret = asked("where is the treasure")
    for cache, stream in (("MISS", False), ("HIT", True), ("HIT", False)):
        answered = await proxy.post({**secret, "stream": stream})
        assert answered.cache == cache
    mb.always(Script(status=500))
    assert (await proxy.post(asked("where is the other treasure"))).status == 500

    async def told() -> bool:
        outcomes = {outcome: len(spans) for outcome, spans in by_outcome(collector.traces()).items()}
        return outcomes == {"miss": 1, "hit": 2, "error": 1}

    async def counted() -> bool:
        return collector.total("samewise.requests") == 4

    await until(told)
    await until(counted)
    servers = by_outcome(collector.traces())
    for span in servers["miss"] + servers["hit"] + servers["error"]:
        given, said = (attributes(span).get(f"gen_ai.{name}.messages") for name in ("input", "output"))
        assert (given is not None and "treasure" in given) is asked_for
        assert (said is not None) is (asked_for and span not in servers["error"])
    if asked_for:
        (miss,) = servers["miss"]
        assert json.loads(attributes(miss)["gen_ai.output.messages"]) == [
            {"role": "assistant", "parts": [{"type": "text", "content": "open sesame"}], "finish_reason": "stop"}
        ]
    everywhere_else = [
        *[body for path in ("/v1/metrics", "/v1/logs") for body in collector.received[path]],
        (await proxy.request("GET", "/metrics", admin=True)).body,
        json.dumps(await proxy.admin("GET", "/recent")).encode(),
        "".join(proxy.log).encode(),
        *([] if asked_for else collector.received["/v1/traces"]),
    ]
    assert not any(word in told for told in everywhere_else for word in (b"treasure", b"sesame"))


async def test_everything_arrives_over_grpc_too(make_proxy: MakeProxy, mb: MockBackend) -> None:
    with collecting_grpc() as collector:
        env = {**SOON, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        proxy = await make_proxy(env={**env, "OTEL_SERVICE_NAME": "a name of its own"})
        await proxy.post(B0, headers={"traceparent": CALLER})
        mb.always(Script(status=503))
        await proxy.post(asked("broken"))

        async def told() -> bool:
            return set(by_outcome(collector.traces())) == {"miss", "error"} and any(
                line.body.string_value == "a request failed" for line in collector.logs()
            )

        async def counted() -> bool:
            return collector.total("samewise.requests") == 2

        await until(told)
        await until(counted)
        (miss,) = by_outcome(collector.traces())["miss"]
        assert miss.trace_id.hex() == CALLER[3:35]
        assert collector.total("samewise.requests", outcome="miss") == 1
        assert all(b"a name of its own" in body for bodies in collector.received.values() for body in bodies)
        durations = collector.metrics()["samewise.request.duration"].histogram.data_points
        exemplars = {each.trace_id.hex(): each.span_id for point in durations for each in point.exemplars}
        assert exemplars[CALLER[3:35]] == miss.span_id
        proxy.signal()
        assert await proxy.ended() == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_every_outcome_is_on_its_span_as_it_was_in_its_head(
    make_proxy: MakeProxy, mb: MockBackend, collector: Collector, stream: bool
) -> None:
    proxy = await make_proxy(settings={"telemetry.otlp_endpoint": collector.url}, env=SOON)
    body = {**B0, "stream": stream}
    gate = asyncio.Event()
    mb.once(Script(gate=gate))
    asking = [asyncio.create_task(proxy.post(body)) for _ in range(2)]
    await proxy.waits(2)
    gate.set()
    answers = list(await asyncio.gather(*asking))
    answers.append(await proxy.post(body))
    controls = ("no-store", "no-cache", "only-if-cached")
    answers += [await proxy.post(body, headers={"Cache-Control": control}) for control in controls]
    mb.always(Script(status=500))
    answers.append(await proxy.post({**asked("broken"), "stream": stream}))
    answers.append(await proxy.post(b"{"))

    def spans() -> dict[str, dict[str, Any]]:
        told = [attributes(span) for span in collector.traces()]
        return {each["samewise.request_id"]: each for each in told if "samewise.cache" in each}

    async def told() -> bool:
        return len(spans()) == len(answers)

    await until(told)
    found = spans()
    for answer in answers:
        span = found[answer.headers["x-request-id"]]
        assert span["samewise.cache"] == str(answer.cache).lower()
        assert span["http.response.status_code"] == answer.status
        assert (answer.cache == "HIT") or span.get("samewise.reason") == answer.reason
    assert {"HIT", "MISS", "BYPASS", "REFRESH", "ERROR"} <= {answer.cache for answer in answers}


async def test_a_failure_leaves_a_log_line_with_its_trace(
    make_proxy: MakeProxy, mb: MockBackend, collector: Collector
) -> None:
    proxy = await make_proxy(settings={"telemetry.otlp_endpoint": collector.url}, env=SOON)
    mb.always(Script(status=503))
    await proxy.post(asked("broken"), headers={"traceparent": CALLER})

    async def told() -> bool:
        return any(line.body.string_value == "a request failed" for line in collector.logs())

    await until(told)
    (line,) = [line for line in collector.logs() if line.body.string_value == "a request failed"]
    assert line.trace_id.hex() == CALLER[3:35]
    assert attributes(line)["reason"] == "upstream-error"


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.slow)])
async def test_outcomes_add_up_in_prometheus_and_over_otlp(
    make_proxy: MakeProxy, mb: MockBackend, collector: Collector, workers: int
) -> None:
    redis = RedisServer()
    try:
        proxy = await make_proxy(
            settings={
                "server.workers": workers,
                "telemetry.otlp_endpoint": collector.url,
                "store.url": f"redis://127.0.0.1:{redis.port}",
                "store.memory": 0,
            },
            env=SOON,
        )
        gate = asyncio.Event()
        mb.once(Script(gate=gate))
        asking = [asyncio.create_task(proxy.post(B0)) for _ in range(8)]
        await proxy.waits(8)
        gate.set()
        answers = list(await asyncio.gather(*asking))

        answers += [await proxy.post(B0) for _ in range(3)]
        answers += [await proxy.post(B0, headers={"Cache-Control": "no-store"}) for _ in range(2)]
        redis.kill()
        answers += [await proxy.post(asked(f"without {number}")) for number in range(4)]
        assert mb.count == 1 + 2 + 4
        heads = [str(answer.cache).lower() for answer in answers]
        expected = {outcome: heads.count(outcome) for outcome in OUTCOMES}
        assert expected == {"hit": 3, "miss": 5, "coalesced": 7, "bypass": 2, "refresh": 0, "error": 0}

        async def scraped() -> bool:
            found = {each: await proxy.metric("samewise_requests_total", outcome=each) for each in OUTCOMES}
            return found == expected

        async def exported() -> bool:
            return {each: collector.total("samewise.requests", outcome=each) for each in OUTCOMES} == expected

        await until(scraped)
        await until(exported)
        assert collector.total("samewise.tokens", kind="saved") == 10 * 18
        assert collector.total("samewise.tokens", kind="generated") == 7 * 18
    finally:
        redis.close()


async def test_streams_that_clients_leave_end_their_spans_and_detach_nothing(
    make_proxy: MakeProxy, mb: MockBackend, collector: Collector
) -> None:
    proxy = await make_proxy(settings={"telemetry.otlp_endpoint": collector.url}, env=SOON)
    over = asyncio.Event()

    async def until_all_left(at: int) -> None:
        if at >= 2:
            await over.wait()

    mb.always(Script(chunks=40, text=lambda body, number: "word " * 40, sent=until_all_left))

    async def leave(number: int) -> None:
        async with proxy.session.post(
            proxy.url + "/v1/chat/completions", json=asked(f"left {number}", stream=True)
        ) as response:
            await response.content.readany()
            await asyncio.sleep(0.15)
            response.close()

    await asyncio.gather(*[leave(number) for number in range(100)])

    async def ended() -> bool:
        return len([span for span in collector.traces() if "samewise.cache" in attributes(span)]) == 100

    await until(ended)
    over.set()
    servers = [span for span in collector.traces() if "samewise.cache" in attributes(span)]
    assert {attributes(span)["error.type"] for span in servers} == {"cancelled"}
    assert all(attributes(span)["samewise.cancelled"] for span in servers)
    assert min(span.end_time_unix_nano - span.start_time_unix_nano for span in servers) > 0.1e9

    async def at_rest() -> bool:
        return await proxy.metric("samewise_inflight") == 0

    await until(at_rest)
    assert [line for line in proxy.log if "detach" in line.lower() or "Traceback" in line] == []


@contextlib.contextmanager
def _refused() -> Iterator[tuple[str, Callable[[], bool]]]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}", lambda: True


@contextlib.contextmanager
def _blackholed() -> Iterator[tuple[str, Callable[[], bool]]]:
    """Nobody takes up what connects, and there is no room for more: the kernel answers no SYN."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", lambda: True


@contextlib.contextmanager
def _frozen() -> Iterator[tuple[str, Callable[[], bool]]]:
    """A process that is stopped, with its port open."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.collector"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        process.send_signal(signal.SIGSTOP)
        try:
            yield url, lambda: True
        finally:
            process.kill()


@contextlib.contextmanager
def _holding(
    over: Callable[[], contextlib.AbstractContextManager[Collector]],
) -> Iterator[tuple[str, Callable[[], bool]]]:
    """It takes what it is sent, and answers never."""
    with over() as collector:
        collector.open.clear()
        yield collector.url, lambda: bool(collector.received["/v1/traces"])


FAULTS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[tuple[str, Callable[[], bool]]]], str]] = {
    "refused": (_refused, "http/protobuf"),
    "blackholed": (_blackholed, "http/protobuf"),
    "frozen": (_frozen, "http/protobuf"),
    "slow": (lambda: _holding(collecting), "http/protobuf"),
    "slow grpc": (lambda: _holding(collecting_grpc), "grpc"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_request_and_no_stop_waits_for_a_collector(make_proxy: MakeProxy, mb: MockBackend, fault: str) -> None:
    """Exporters are patient for ten minutes here: whoever waited for one of them would not end within this test."""
    broken, protocol = FAULTS[fault]
    with broken() as (url, hears):
        began = asyncio.get_running_loop().time()
        proxy = await make_proxy(
            settings={"telemetry.otlp_endpoint": url},
            env={
                **SOON,
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
                "OTEL_BSP_MAX_QUEUE_SIZE": "64",
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "32",
            },
        )

        async def heard() -> bool:
            await proxy.post(B0)
            return hears()

        await until(heard)
        for number in range(20):
            assert (await proxy.post(asked(f"cold {number}"))).cache == "MISS"
        for _ in range(300):
            assert (await proxy.post(B0)).cache == "HIT"
        async with proxy.stream(asked("streamed")) as streaming:
            assert [data async for data in streaming.data()][-1] == "[DONE]"
        assert await proxy.metric("samewise_requests_total") >= 321
        told = len([line for line in proxy.log if "telemetry can't be exported" in line])
        assert told <= 1 + (asyncio.get_running_loop().time() - began) / 30, "one in half a minute"
        proxy.signal(signal.SIGTERM)
        async with asyncio.timeout(ENOUGH):
            assert await proxy.ended() == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refused", "silent"])
async def test_who_is_served_waits_for_no_collector_that_is_gone_and_memory_stays_bounded(
    make_proxy: MakeProxy, silent: str, fault: str
) -> None:
    """Who waits for one export waits for seconds."""
    endpoint = "http://127.0.0.1:9" if fault == "refused" else silent
    began = asyncio.get_running_loop().time()
    proxy = await make_proxy(settings={"telemetry.otlp_endpoint": endpoint}, env=SOON)
    await proxy.post(B0)
    before = _memory(proxy)
    took = [(await proxy.post(B0)).seconds for _ in range(2000)]
    assert statistics.median(took) < EXPORT / 10
    assert _memory(proxy) - before < 64 * 1024
    complaints = [line for line in proxy.log if "telemetry can't be exported" in line]
    assert len(complaints) <= 1 + (asyncio.get_running_loop().time() - began) / 30, "one in half a minute"


def _memory(proxy: Proxy) -> int:
    """Resident KiB of the proxy's process."""
    status = Path(f"/proc/{proxy.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


async def test_metrics_can_be_switched_off(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"telemetry.prometheus": False})
    assert (await proxy.request("GET", "/metrics", admin=True)).status == 404


async def test_who_stops_looking_on_leaves_no_trace(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy()
    async with Wire.to(proxy.admin_address) as wire:
        await wire.send(b"GET /samewise/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await wire.head()
    for _ in range(5):
        await proxy.post(fresh())
    assert await proxy.stop() == 0
    assert not any("Traceback" in line for line in proxy.log)

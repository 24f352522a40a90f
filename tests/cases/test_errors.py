"""What goes wrong is told in the shape of OpenAI's errors, whoever noticed it, and nothing of it is kept."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import fresh
from tests.support.mock_backend import MockBackend, Script
from tests.support.ports import refusing
from tests.support.proxy import CHAT, Answered, Proxy
from tests.support.wire import Heard, Wire, chunked, request

KEY = "sk-known"
NOWHERE = "http://127.0.0.1:1/v1"


def error_of(answer: Answered, status: int) -> dict[str, Any]:
    """The error, where the response is one of the proxy's own with this status."""
    return _checked(answer.status, answer.headers, answer.body, status)


def _checked(got: int, headers: Mapping[str, str], body: bytes, status: int) -> dict[str, Any]:
    assert got == status, body
    assert headers["content-type"].startswith("application/json")
    assert headers["x-samewise-cache"] == "ERROR"
    assert headers["x-samewise-reason"]
    assert headers["x-request-id"]
    document = json.loads(body)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["message"]
    return dict(document["error"])


def heard_error(heard: Heard, status: int) -> dict[str, Any]:
    return _checked(heard.status, dict(heard.headers), heard.body, status)


@pytest.fixture
def dead_port() -> Iterator[int]:
    with refusing() as port:
        yield port


@pytest_asyncio.fixture(loop_scope="session")
async def strict(make_proxy: MakeProxy) -> Proxy:
    """A proxy with a key of its own and a small limit for bodies."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    keys = [{"tenant": "a", "sha256": digest, "models": ["m", "m-small"]}]
    return await make_proxy(settings={"auth.keys": keys, "server.max_body": 4096})


BROKEN = [
    b"",
    b"{",
    b'{"model": "m", "messages": [}',
    b'{"model": "m"} {}',
    b"[]",
    b'"text"',
    b"null",
    b'{"model": "m", "temperature": NaN, "messages": []}',
    b'{"model": "m", "x": "\xff\xfe"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("raw", BROKEN, ids=range(len(BROKEN)))
async def test_a_body_that_is_no_json_object_is_refused(pair: Pair, raw: bytes) -> None:
    for path in (CHAT, "/v1/completions", "/v1/embeddings"):
        answer = await pair.proxy.request("POST", path, body=raw)
        assert error_of(answer, 400)["type"] == "invalid_request_error"
        assert answer.headers["cache-status"] == "samewise; detail=bad-request"
    assert pair.mb.count == 0


async def test_a_body_of_another_kind_is_refused(pair: Pair) -> None:
    body = json.dumps(fresh()).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await pair.proxy.post(body, headers={"Content-Type": kind})
        assert error_of(answer, 415)["code"] == "unsupported_media"
    assert pair.mb.count == 0
    answer = await pair.proxy.post(body, headers={"Content-Type": "application/json; charset=utf-8"})
    assert answer.cache == "MISS"


async def test_a_body_over_the_limit_is_refused_however_it_comes(strict: Proxy, mb: MockBackend) -> None:
    large = json.dumps(fresh(user="x" * 5000)).encode()
    key = f"Authorization: Bearer {KEY}"
    answer = await strict.post(large, headers={"Authorization": f"Bearer {KEY}"})
    assert "max_body" in error_of(answer, 413)["message"]
    packed = gzip.compress(large)
    assert len(packed) < 4096
    for sent in (
        request(chunked(large, size=1000), key, "Transfer-Encoding: chunked", length=False),
        request(packed, key, "Content-Encoding: gzip"),
        request(chunked(large, size=1000), key, "Transfer-Encoding: chunked", length=False, path="/v1/tokenize"),
        request(large, key, path="/v1/tokenize"),
    ):
        async with Wire.to(strict.address) as wire:
            await wire.send(sent)
            heard_error(await wire.answer(), 413)
    assert mb.count == 0
    fits = json.dumps(fresh(user="x" * (4096 - len(json.dumps(fresh(user=""))) - 2))).encode()
    assert (await strict.post(fits, headers={"Authorization": f"Bearer {KEY}"})).cache == "MISS"


async def test_a_body_that_is_not_what_its_head_says_is_refused(pair: Pair) -> None:
    packed = gzip.compress(json.dumps(fresh()).encode())
    for path in (CHAT, "/v1/tokenize"):
        for sent in (
            request(b"no gzip at all", "Content-Encoding: gzip", path=path),
            *(request(packed[:-missing], "Content-Encoding: gzip", path=path) for missing in (1, 8, 20)),
            request(b"zz\r\nno chunk", "Transfer-Encoding: chunked", length=False, path=path),
        ):
            async with Wire.to(pair.proxy.address) as wire:
                await wire.send(sent)
                heard_error(await wire.answer(), 400)
    assert pair.mb.count == 0
    assert not any("Traceback" in line for line in pair.proxy.log)


async def test_a_transfer_coding_other_than_chunked_is_refused(pair: Pair) -> None:
    known = fresh()
    await pair.proxy.post(known)
    for path in (CHAT, "/v1/tokenize"):
        async with Wire.to(pair.proxy.address) as wire:
            body = chunked(json.dumps(known).encode(), size=1000)
            await wire.send(request(body, "Transfer-Encoding: gzip, chunked", length=False, path=path))
            assert heard_error(await wire.answer(), 501)["code"] == "unsupported_coding"
    assert pair.mb.count == 1


async def test_a_compressed_body_is_the_question_that_it_holds(pair: Pair) -> None:
    body = fresh()
    first = await pair.proxy.post(body)
    again = await pair.proxy.post(gzip.compress(json.dumps(body).encode()), headers={"Content-Encoding": "gzip"})
    assert (again.cache, again.body) == ("HIT", first.body)
    packed = gzip.compress(json.dumps(body).encode())
    assert (await pair.proxy.post(packed, headers={"Content-Encoding": "x-gzip"})).cache == "HIT"
    answer = await pair.proxy.post(b"xyz", headers={"Content-Encoding": "compress"})
    assert error_of(answer, 415)["code"] == "unsupported_coding"
    assert "gzip" in answer.headers["accept-encoding"]


async def test_a_compressed_body_that_grows_beyond_measure_takes_no_memory_and_holds_nobody_up(pair: Pair) -> None:
    bomb = gzip.compress(b" " * (60 << 20), 9)
    assert len(bomb) < 64 << 10
    async with Wire.to(pair.proxy.address) as wire:
        sent = request(bomb, "Content-Encoding: gzip")
        for at in range(0, len(sent), 8192):
            await wire.send(sent[at : at + 8192])
            await asyncio.sleep(0.005)
        heard_error(await wire.answer(), 413)


async def test_keys_and_models_that_are_not_allowed_are_refused(strict: Proxy, mb: MockBackend) -> None:
    for headers in ({}, {"Authorization": "Bearer nobody"}, {"Authorization": KEY}):
        answer = await strict.post(fresh(), headers=headers)
        assert error_of(answer, 401)["type"] == "authentication_error"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["cache-status"] == "samewise; detail=unauthorized"
    answer = await strict.post(fresh(model="m-large"), headers={"Authorization": f"Bearer {KEY}"})
    assert error_of(answer, 403)["param"] == "model"
    assert mb.count == 0


async def test_a_model_that_the_backend_does_not_know_is_its_to_refuse(pair: Pair) -> None:
    told = {"error": {"message": "The model `ghost` does not exist.", "type": "NotFoundError", "param": "model"}}
    pair.mb.when("ghost", Script(status=404, body=told))
    for stream in (False, True, False):
        answer = await pair.proxy.post(fresh(model="ghost", stream=stream))
        assert (answer.status, answer.json(), answer.cache) == (404, told, "ERROR")
        assert answer.headers["cache-status"] == "samewise; fwd=miss; fwd-status=404; detail=upstream-error"
    assert pair.mb.count == 3


async def test_a_backend_that_refuses_connections_is_502(make_proxy: MakeProxy, dead_port: int) -> None:
    patient = {f"timeouts.{name}": "1h" for name in ("connect", "first_byte", "total")}
    proxy = await make_proxy(f"http://127.0.0.1:{dead_port}/v1", settings=patient)
    for stream in (False, True):
        answer = await proxy.post(fresh(stream=stream))
        error = error_of(answer, 502)
        assert (error["type"], error["code"]) == ("server_error", "upstream_unreachable")
        assert answer.headers["cache-status"] == "samewise; fwd=bypass; detail=upstream-unreachable"
    passed = await proxy.request("GET", "/v1/models")
    assert error_of(passed, 502)["code"] == "upstream_unreachable"


async def test_a_backend_that_went_away_leaves_its_answers_behind(proxy: Proxy, mb: MockBackend) -> None:
    known = fresh()
    first = await proxy.post(known)
    await mb.stop()
    for body in (fresh(), fresh(stream=True)):
        answer = await proxy.post(body)
        assert error_of(answer, 502)["code"] == "upstream_unreachable"
        assert answer.headers["cache-status"] == "samewise; fwd=miss; detail=upstream-unreachable"
    hit = await proxy.post(known)
    assert (hit.cache, hit.body) == ("HIT", first.body)


async def test_what_may_not_be_asked_is_504_and_went_nowhere(pair: Pair) -> None:
    answer = await pair.proxy.post(fresh(), headers={"Cache-Control": "only-if-cached"})
    assert error_of(answer, 504)["code"] == "not_cached"
    assert answer.headers["cache-status"] == "samewise; detail=not-cached"
    assert answer.key
    assert pair.mb.count == 0


NOT_HTTP = {
    "no request": b"GARBAGE\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "two lengths": request(b"{}", "Content-Length: 3"),
    "another version": b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
    "an old version": b"GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", NOT_HTTP)
async def test_what_is_no_http_is_refused_in_json(pair: Pair, name: str) -> None:
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(NOT_HTTP[name])
        heard = await wire.answer()
        assert heard_error(heard, 400)["code"] == "bad_http"
        assert heard.header("cache-status") == "samewise; detail=bad-request"
        assert await wire.closed()
    assert not any("Traceback" in line for line in pair.proxy.log)


@pytest.mark.parametrize("bad", ["GARBAGE", "GET / HTTP/2.0\r\nHost: x"])
async def test_what_came_before_it_in_one_packet_is_answered_first(pair: Pair, bad: str) -> None:
    first = request(json.dumps(body := fresh()).encode())
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + first + bad.encode() + b"\r\n\r\n")
        assert json.loads((await wire.answer()).body) == {"status": "alive"}
        assert (await wire.answer()).header("x-samewise-cache") == "MISS"
        assert heard_error(await wire.answer(), 400)["code"] == "bad_http"
        assert await wire.closed()
    assert (await pair.proxy.post(body)).cache == "HIT"


LONG = {
    "one header": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"s3cr3t" * 20_000 + b"\r\n\r\n",
    "many headers": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
    + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(1050))
    + b"\r\n",
    "the address": b"GET /v1/" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", LONG)
async def test_a_head_that_is_too_long_is_refused_in_json_and_not_logged(pair: Pair, name: str) -> None:
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(LONG[name], piece=65536)
        assert heard_error(await wire.answer(), 431)["code"] == "headers_too_large"
    assert not any("s3cr3t" in line for line in pair.proxy.log)


async def test_every_response_has_an_id_of_its_own(pair: Pair) -> None:
    body = fresh()
    headers = {"x-request-id": "the-clients-own"}
    answers = [await pair.proxy.post(body, headers=headers) for _ in range(3)]
    answers += [await pair.proxy.request("GET", path) for path in ("/healthz", "/readyz", "/v1/models", "/nowhere")]
    answers += [await pair.proxy.request("POST", "/healthz"), await pair.proxy.post(b"{")]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == len(answers)
    assert "the-clients-own" not in ids
    assert [answer.cache for answer in answers[3:5]] == ["BYPASS", "BYPASS"]
    assert {answer.cache for answer in answers[6:]} == {"ERROR"}
    assert all(answer.headers.getall("x-request-id") for answer in answers)  # type: ignore[attr-defined]


RAISED = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    413: openai.APIStatusError,
    502: openai.InternalServerError,
    504: openai.InternalServerError,
}


@pytest.mark.parametrize("status", RAISED)
async def test_the_official_client_raises_what_it_raises_for_openai(
    strict: Proxy, mb: MockBackend, status: int
) -> None:
    body = fresh()
    key, headers = KEY, {}
    match status:
        case 400:
            body["extra_body"] = {"cache": {"ttl": "soon"}}
        case 401:
            key = "sk-unknown"
        case 403:
            body["model"] = "m-large"
        case 413:
            body["user"] = "x" * 5000
        case 502:
            mb.always(Script(wire=b"nothing like HTTP\r\n\r\n"))
        case 504:
            headers = {"Cache-Control": "only-if-cached"}
    async with openai.AsyncOpenAI(base_url=strict.url + "/v1", api_key=key, max_retries=0) as client:
        with pytest.raises(RAISED[status]) as raised:
            await client.chat.completions.create(**body, extra_headers=headers)
    assert raised.value.status_code == status
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["message"] and raised.value.body["code"]
    assert raised.value.request_id

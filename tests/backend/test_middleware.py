"""The contract's middleware around a small ASGI application, with a manifest of real files."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samewise_backend import manifest, model_files
from samewise_backend.digests import Digests
from samewise_backend.manifest import Live
from samewise_backend.middleware import EnvironmentContract

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Served:
    """The middleware with its manifest already made, around an application of the test's."""

    def __init__(self, model: Path, app: Any) -> None:
        listers = model_files.groups(model_files.resolve(str(model)))
        digests = Digests()
        self.live = Live(
            {"engine": "x"}, {"instance": "i"}, manifest.read(listers, digests), listers, digests, interval=0
        )
        self.state = SimpleNamespace(openai_serving_models=SimpleNamespace(lora_requests={}))
        self.contract = EnvironmentContract(app)
        self.contract._live = self.live

    async def ask(self, path: str = "/v1/x", method: str = "GET") -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(dict(message))

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "path": path, "method": method, "app": SimpleNamespace(state=self.state)}
        await self.contract(scope, receive, send)
        return sent


def _environment(sent: list[dict[str, Any]]) -> str:
    value: bytes = dict(sent[0]["headers"])[b"x-samewise-environment"]
    return value.decode()


async def _plain(scope: Any, receive: Any, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await send({"type": "http.response.body", "body": b"two"})


@pytest.fixture
def serve(own_model: Path) -> Iterator[Callable[[Any], Served]]:
    made: list[Served] = []

    def make(app: Any) -> Served:
        made.append(Served(own_model, app))
        return made[-1]

    yield make
    for one in made:
        one.live.close()


async def test_a_response_gets_the_header_and_its_body_stays_as_it_is(serve: Callable[[Any], Served]) -> None:
    served = serve(_plain)
    sent = await served.ask()
    assert _environment(sent) == served.live.current().id
    assert (b"x", b"y") in sent[0]["headers"]
    assert [message["body"] for message in sent[1:]] == [b"one", b"two"]


async def test_the_manifest_is_served_beside_the_application(serve: Callable[[Any], Served]) -> None:
    served = serve(_plain)
    sent = await served.ask("/samewise/environment")
    body = json.loads(sent[1]["body"])
    assert body["id"] == _environment(sent) == served.live.current().id
    assert (await served.ask("/samewise/environment", "HEAD"))[1]["body"] == b""
    assert (await served.ask("/samewise/environment", "POST"))[1]["body"] == b"one"


async def test_an_application_that_fails_answers_500_with_the_header(serve: Callable[[Any], Served]) -> None:
    async def failing(scope: Any, receive: Any, send: Send) -> None:
        raise ArithmeticError("broken")

    served = serve(failing)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {"type": "http", "path": "/v1/x", "method": "GET", "app": SimpleNamespace(state=served.state)}
    with pytest.raises(ArithmeticError):
        await served.contract(scope, lambda: asyncio.sleep(0), send)  # type: ignore[arg-type, return-value]
    assert sent[0]["status"] == 500
    assert _environment(sent) == served.live.current().id
    assert json.loads(sent[1]["body"])["error"]["code"] == 500


async def test_an_answer_across_a_change_carries_an_id_that_no_manifest_has(
    serve: Callable[[Any], Served], own_model: Path
) -> None:
    async def swapping(scope: Any, receive: Any, send: Send) -> None:
        (own_model / "model.safetensors").write_bytes(b"other")
        await _plain(scope, receive, send)

    served = serve(swapping)
    before = served.live.current().id
    value = _environment(await served.ask())
    assert value.startswith(f"{before}.")
    assert value.split(".")[1] != before
    assert len(value) <= 128


@pytest.mark.parametrize(
    "path", ["/collective_rpc", "/update_weights", "/start_weight_update", "/finish_weight_update"]
)
async def test_weights_changed_through_the_servers_own_endpoints_change_the_id(
    serve: Callable[[Any], Served], path: str
) -> None:
    served = serve(_plain)
    before = served.live.current().id
    await served.ask(path)
    assert served.live.current().id == before
    await served.ask(path, "POST")
    assert served.live.current().id != before


async def test_an_adapter_loaded_while_running_changes_the_next_header(
    serve: Callable[[Any], Served], tmp_path: Path
) -> None:
    served = serve(_plain)
    before = _environment(await served.ask())
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"a")
    request = SimpleNamespace(lora_path=str(adapter), load_inplace=False)
    served.state.openai_serving_models.lora_requests = {"lora": request}
    loaded = _environment(await served.ask())
    assert loaded != before
    served.state.openai_serving_models.lora_requests = {}
    assert _environment(await served.ask()) == before


async def test_a_header_that_the_application_sets_is_replaced(serve: Callable[[Any], Served]) -> None:
    async def lying(scope: Any, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Samewise-Environment", b"wrong")]})
        await send({"type": "http.response.body", "body": b""})

    sent = await serve(lying).ask()
    names = [name.lower() for name, _ in sent[0]["headers"]]
    assert names.count(b"x-samewise-environment") == 1
    assert _environment(sent) != "wrong"

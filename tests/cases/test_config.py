"""Settings act as they are written, wrong ones end the start in one line, and a start is quick."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.support.bodies import fresh
from tests.support.mock_backend import MockBackend
from tests.support.proxy import Proxy, until
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]

DOCS = Path(__file__).parents[2] / "docs"
UPSTREAM = '[[upstreams]]\nurl = "http://127.0.0.1:1/v1"\n'
PORTS = "[server]\nport = 0\n[admin]\nport = 0\n"


def serve(folder: Path, text: str, *flags: str, **variables: str) -> tuple[int, str, list[str]]:
    """Run `samewise serve` where it must end by itself: exit code, what it printed, lines of its errors."""
    config = folder / "samewise.toml"
    config.write_text(text)
    ended = subprocess.run(
        [sys.executable, "-m", "samewise.main", "serve", "--config", str(config), *flags],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        cwd=folder,
        env={**os.environ, **variables},
    )
    return ended.returncode, ended.stdout, ended.stderr.splitlines()


WRONG = {
    "not TOML": ("[server\nport = 1", "samewise.toml"),
    "an unknown setting": ("[store]\nttll = 600", "[store] ttll"),
    "a negative time": ("[store]\nttl = -1", "[store] ttl"),
    "a store nobody knows": ('[store]\nurl = "mongodb://x"', "[store] url"),
    "a variable that is not there": ('[admin]\ntoken = "${NOT_THERE_AT_ALL}"', "NOT_THERE_AT_ALL"),
    "an open admin port without a token": ('[admin]\nhost = "0.0.0.0"', "[admin] token"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_ends_with_2_and_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    text, named = WRONG[name]
    code, printed, lines = serve(tmp_path, text)
    assert (code, printed, len(lines)) == (2, "", 1)
    assert lines[0].startswith("samewise: ")
    assert named in lines[0]


def test_a_wrong_flag_or_variable_is_named_too(tmp_path: Path) -> None:
    code, _, lines = serve(tmp_path, UPSTREAM, "--store", "nowhere://")
    assert (code, len(lines)) == (2, 1)
    assert "[store] url" in lines[0]
    code, _, lines = serve(tmp_path, UPSTREAM, SAMEWISE_STOER__TTL="1")
    assert (code, len(lines)) == (2, 1)
    assert "SAMEWISE_STOER__TTL" in lines[0]


async def test_a_port_that_is_taken_is_named(tmp_path: Path, mb: MockBackend) -> None:
    text = f"[server]\nport = {mb.port}\n[admin]\nport = 0\n{UPSTREAM}"
    code, _, lines = await asyncio.to_thread(serve, tmp_path, text)
    assert code == 2
    assert "[server] port" in lines[-1]
    assert str(mb.port) in lines[-1]


@pytest.mark.redis
@pytest.mark.parametrize("ttl", [600, "600", "10m"], ids=repr)
@pytest.mark.parametrize("source", ["file", "variable"])
async def test_a_time_to_live_is_what_was_written(
    make_proxy: MakeProxy, redis_server: RedisServer, ttl: Any, source: str
) -> None:
    url = redis_server.url
    if source == "file":
        proxy = await make_proxy(settings={"store.url": url, "store.ttl": ttl})
    else:
        env = {"SAMEWISE_STORE__URL": url, "SAMEWISE_STORE__TTL": str(ttl)}
        proxy = await make_proxy(settings={"store.url": "memory://", "store.ttl": 5}, env=env)
    answer = await proxy.post(fresh())
    assert answer.cache == "MISS"
    (left,) = await _lifetimes(redis_server, answer.key or "")
    assert 590 <= left <= 600


async def _lifetimes(server: RedisServer, key: str) -> list[float]:
    """Seconds that the Redis keys of this entry have left, once nothing but the entry is there."""
    names: list[bytes] = []

    async def settled() -> bool:
        names[:] = re.findall(rb"\S*" + key.encode() + rb"\S*", server.command("KEYS", f"*{key}*"))
        return len(names) == 1 and b":l:" not in names[0]

    await until(settled)
    return [int(server.command("PTTL", name)[1:]) / 1000 for name in names]


async def test_flag_comes_before_variable_before_file(tmp_path: Path, mb: MockBackend) -> None:
    proxy = Proxy(
        tmp_path,
        mb.url,
        settings={"cache.mode": "off", "store.ttl": 5, "telemetry.log_level": "warning"},
        env={"SAMEWISE_CACHE__MODE": "on", "SAMEWISE_TELEMETRY__LOG_LEVEL": "info"},
    )
    async with proxy:
        settings = await proxy.admin("GET", "/config")
        assert settings["cache"]["mode"] == "on"
        assert settings["store"]["ttl"] == 5
        assert [(await proxy.post(body)).cache for body in [fresh()] * 2] == ["MISS", "HIT"]


async def test_an_empty_configuration_is_what_the_documents_say(make_proxy: MakeProxy) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "settings.md").read_text(), re.DOTALL)
    documented = tomllib.loads(block)
    proxy = await make_proxy(settings={"store.memory": "64MiB", "verify.rate": 0.01})
    shown = await proxy.admin("GET", "/config")
    assert shown["cache"] == documented["cache"]
    assert shown["verify"]["rate"] == documented["verify"]["rate"]
    assert (shown["store"]["ttl"], documented["store"]["ttl"]) == (3600.0, "1h")
    assert shown["auth"]["keys"] == documented["auth"]["keys"] == []
    (line,) = [line for line in proxy.log if "settings" in line and "server.port" in line]
    for told in ("cache.mode=on", "cache.unseeded=bypass", "store.ttl=3600", "verify.rate=0.01"):
        assert told in line


async def test_the_settings_are_logged_and_shown_without_their_secrets(make_proxy: MakeProxy) -> None:
    secrets = {"admin.token": "t0k3n-very", "store.secret": "s34l-very", "verify.hook": "http://h00k-very/"}
    proxy = await make_proxy(settings=secrets)
    shown = await proxy.admin("GET", "/config", headers={"Authorization": "Bearer t0k3n-very"})
    for secret in secrets.values():
        assert secret not in "".join(proxy.log)
        assert secret not in json.dumps(shown)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
async def test_it_is_ready_in_a_second_without_torch(make_proxy: MakeProxy) -> None:
    spent = []
    for _ in range(2):
        proxy = await make_proxy()
        used = Path(f"/proc/{proxy.pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
        spent.append(sum(map(int, used)) / os.sysconf("SC_CLK_TCK"))
        assert not re.search(r"/(torch|transformers|numpy|vllm)/", Path(f"/proc/{proxy.pid}/maps").read_text())
        await proxy.stop()
    assert min(spent) < 1.0, "seconds of one core; a machine with nothing else to do needs no more of the clock"


def test_nothing_that_serves_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys, samewise.main, samewise.http.data, samewise.http.admin, samewise.store.factory,"
        "samewise.upstream.factory, samewise.telemetry;"
        "print({'torch', 'transformers', 'numpy', 'vllm', 'samewise_backend'} & set(sys.modules) or 'none')"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert printed.stdout.strip() == "none"

"""How the proxy starts: soon, light, saying what it does, and not at all on wrong settings."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.support.bodies import fresh
from tests.support.mock_backend import MockBackend
from tests.support.patience import ENOUGH
from tests.support.proxy import Proxy, until
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]

SOON = 4.0
"""Times the work of importing aiohttp alone, until the ready line: a second, where the machine does nothing else."""
HEAVY = {"torch", "transformers", "vllm", "numpy", "samewise_backend"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
async def test_it_is_ready_soon(make_proxy: MakeProxy) -> None:
    def of_children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    async def once() -> float:
        before = of_children()
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "import aiohttp.web"], check=True)
        unit = of_children() - before
        proxy = await make_proxy()
        user, system = Path(f"/proc/{proxy.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") / unit

    took = [await once()]
    while min(took) >= SOON and len(took) < 5:
        took.append(await once())
    assert min(took) < SOON


async def test_it_answers_as_soon_as_it_says_so(proxy: Proxy) -> None:
    assert (await proxy.post(fresh())).cache == "MISS"


def test_serving_loads_no_engine() -> None:
    code = "import samewise.main, sys; from samewise.http import data, admin; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "samewise.main" in loaded
    assert not HEAVY & {name.partition(".")[0] for name in loaded}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
async def test_a_proxy_that_has_answered_has_loaded_no_engine(proxy: Proxy) -> None:
    await proxy.post(fresh())
    mapped = Path(f"/proc/{proxy.pid}/maps").read_text()
    assert "aiohttp" in mapped
    assert "/torch/" not in mapped
    assert "libtorch" not in mapped


async def serve(folder: Path, text: str, *flags: str, **variables: str) -> tuple[int, str]:
    """Run `samewise serve` on this file until it ends by itself; its exit code and what it printed."""
    path = folder / "samewise.toml"
    path.write_text(text)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "samewise.main", "serve", "--config", str(path), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **variables},
        cwd=folder,
    )
    try:
        async with asyncio.timeout(2 * ENOUGH):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, printed.decode()


WRONG = {
    "ttl": ('[store]\nttl = "-5s"', "ttl"),
    "zero-size": ('[server]\nmax_body = "lots"', "max_body"),
    "scheme": ('[store]\nurl = "mongodb://x"', "url"),
    "backend-scheme": ('[[upstreams]]\nurl = "ftp://x/v1"', "url"),
    "unknown-key": ("[store]\ntll = 5", "tll"),
    "unknown-section": ("[stores]\nttl = 5", "stores"),
    "word": ('[cache]\nmode = "maybe"', "mode"),
    "variable": ('[store]\nurl = "${SAMEWISE_TEST_IS_NOT_SET}"', "SAMEWISE_TEST_IS_NOT_SET"),
    "admin-open": ('[admin]\nhost = "0.0.0.0"', "token"),
    "rate": ("[verify]\nrate = 1.5", "rate"),
    "temperature": ('[sampling.profiles.default]\nmatch = "*"\ntemperature = "hot"', "temperature"),
    "not-toml": ("[store\nttl = 5", "samewise.toml"),
    "keys-file": ('[auth]\nfile = "/nope"', "[auth] file: /nope"),
    "receipts-secret": ("[receipts]\nenabled = true", "[receipts] secret"),
    "receipts-key": ('[receipts]\nenabled = true\nsecret = "ed25519:zz"', "[receipts] secret"),
    "host": ('[server]\nhost = "999.1.1.1"', "[server] host"),
    "host-of-several": ('[server]\nworkers = 2\nhost = "999.1.1.1"', "[server] host"),
    "folder": ('[store]\nurl = "sqlite:////nope/samewise.db"', "[store] url"),
    "workers": ('[server]\nworkers = 2\n[auth]\nfile = "/nope"', "[auth] file: /nope"),
    "hook": ('[verify]\nhook = "http://"', "[verify] hook"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_setting_ends_it_with_one_line_that_names_it(tmp_path: Path, wrong: str) -> None:
    text, named = WRONG[wrong]
    code, printed = await serve(tmp_path, text, "--port", "0", "--admin-port", "0")
    assert code == 2
    assert len(printed.strip().splitlines()) == 1
    assert named in printed
    assert "Traceback" not in printed


async def test_a_port_in_use_is_named(tmp_path: Path, proxy: Proxy) -> None:
    port = proxy.address[1]
    code, printed = await serve(tmp_path, "", "--port", str(port), "--admin-port", "0", "--store", "memory://")
    (line,) = printed.strip().splitlines()
    assert code == 2
    assert str(port) in line
    assert "[server] port" in line


async def test_a_start_says_what_is_in_effect_and_no_secret(make_proxy: MakeProxy, mb: MockBackend) -> None:
    token, sealed, key = "tok-3f2a", "sealed-9c", "sk-upstream"
    settings = {"admin.token": token, "store.secret": sealed, "cache.unseeded": "pin"}
    proxy = await make_proxy(settings=settings, env={"SAMEWISE_STORE__TTL": "10m"})

    async def told() -> bool:
        return any("store.ttl=600" in line for line in proxy.log)

    await until(told)
    log = "".join(proxy.log)
    assert "cache.unseeded=pin" in log
    assert "verify.rate=0" in log
    admin = await proxy.request("GET", "/samewise/v1/config", headers={"Authorization": f"Bearer {token}"}, admin=True)
    assert answer_is_masked(admin.json())
    for secret in (token, sealed, key):
        assert secret not in log
        assert secret not in admin.body.decode()


def answer_is_masked(config: dict[str, Any]) -> bool:
    return bool(config["admin"]["token"]) and config["store"]["ttl"] == 600


@pytest.mark.parametrize("written", [600.0, "10m"])
async def test_a_ttl_means_the_same_however_it_is_written(
    make_proxy: MakeProxy, redis_server: RedisServer, written: Any
) -> None:
    proxy = await make_proxy(settings={"store.url": redis_server.url, "store.ttl": written, "server.port": "0"})
    answer = await proxy.post(fresh())
    assert answer.cache == "MISS"
    name = f"samewise:default:e:{{{answer.key}}}"
    left = 0

    async def stored() -> bool:
        nonlocal left
        left = int(redis_server.command("PTTL", name)[1:])
        return left > 0

    await until(stored)
    assert 590_000 < left <= 600_000


async def test_a_flag_beats_a_variable_and_a_variable_the_file(make_proxy: MakeProxy) -> None:
    settings = {"store.ttl": 100, "cache.mode": "off"}
    proxy = await make_proxy(settings=settings, env={"SAMEWISE_STORE__TTL": "200"}, flags=["--log-format", "json"])
    config = await proxy.admin("GET", "/config")
    assert (config["store"]["ttl"], config["cache"]["mode"], config["telemetry"]["log_format"]) == (200, "off", "json")

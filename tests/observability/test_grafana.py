"""Every query of the Grafana dashboard answers, asked of a real Prometheus that scraped a real proxy under load."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases.conftest import MakeProxy
from tests.repo.files import load_yaml, text
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, Proxy, until

DASHBOARD: dict[str, Any] = json.loads(text("compose/grafana/dashboards/samewise.json"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def asked(text: str, **changes: Any) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": text}], **changes}


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[str]:
    """A Prometheus with our rules that scrapes the target five times a second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus on PATH (Debian's package prometheus has it)")
    (folder / "prometheus").mkdir(parents=True)
    (folder / "prometheus" / "rules.yaml").write_text(text("compose/prometheus/rules.yaml"))
    config = {
        **load_yaml("compose/prometheus.yaml"),
        "global": {"scrape_interval": "200ms", "evaluation_interval": "1s"},
    }
    config["scrape_configs"] = [{"job_name": "samewise", "static_configs": [{"targets": [target]}]}]
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    log = folder / "log"
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0",
            "--enable-feature=exemplar-storage",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=written,
        )

    async def ready() -> bool:
        if (url := where(log)) is None:
            return False
        async with aiohttp.request("GET", f"{url}/-/ready") as response:
            return response.status == 200

    try:
        await until(ready, every=0.1)
        yield str(where(log))
    finally:
        process.terminate()
        await process.wait()


def where(log: Path) -> str | None:
    """The URL of a Prometheus that says in its log where it listens."""
    found = re.search(r"Listening on.* address=(\S+)", log.read_text())
    return f"http://{found[1]}" if found else None


async def every_outcome(proxy: Proxy, mb: MockBackend, stop: asyncio.Event) -> None:
    """Hits, misses, shared fetches, bypasses, refreshes and errors, until it is told to stop."""
    mb.when("slow", Script(delay=0.05))
    mb.when("broken", Script(status=500))
    number = 0
    while not stop.is_set():
        number += 1
        await proxy.post(asked("known"))
        await proxy.post(asked(f"new {number}"))
        await asyncio.gather(*[proxy.post(asked(f"slow {number}")) for _ in range(3)])
        await proxy.post(asked("any", temperature=1, seed=None))
        await proxy.post(asked("known"), headers={"Cache-Control": "no-cache"})
        await proxy.post(asked(f"broken {number}"))
        await asyncio.sleep(0.05)


async def ask(session: aiohttp.ClientSession, url: str, expression: str) -> list[Any]:
    async with session.get(f"{url}/api/v1/query", params={"query": expression}) as response:
        told = await response.json()
    assert told["status"] == "success", (expression, told)
    return list(told["data"]["result"])


def filled(expression: str) -> str:
    """The query with Grafana's variables as for `All`."""
    for name, value in {"$__rate_interval": "5s", "$job": ".*", "$model": ".*"}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
async def test_every_panel_has_data_and_outcomes_add_up(make_proxy: MakeProxy, mb: MockBackend, tmp_path: Path) -> None:
    proxy = await make_proxy(settings={"verify.rate": 1.0, "verify.each": 0, "store.url": f"sqlite:///{tmp_path}/s.db"})
    stop = asyncio.Event()
    async with prometheus(tmp_path / "prometheus", proxy.admin_url.removeprefix("http://")) as url:
        loading = asyncio.create_task(every_outcome(proxy, mb, stop))
        queries = {
            (panel["title"], target["refId"]): filled(target["expr"]) for panel in PANELS for target in panel["targets"]
        }
        async with aiohttp.ClientSession() as session:
            empty = dict(queries)

            async def all_answer() -> bool:
                for place, expression in list(empty.items()):
                    result = await ask(session, url, expression)
                    if result and all(each["value"][1] != "NaN" for each in result):
                        del empty[place]
                await asyncio.sleep(0.3)
                return not empty

            try:
                await until(all_answer)
            except TimeoutError:
                pytest.fail(f"no data for {empty}")
            stop.set()
            await loading
            counted = {}
            for outcome in ("hit", "miss", "coalesced", "bypass", "refresh", "error"):
                counted[outcome] = await proxy.metric("samewise_requests_total", outcome=outcome)
            assert min(counted.values()) > 0

            async def scraped() -> bool:
                result = await ask(session, url, "sum by (outcome) (samewise_requests_total)")
                return {each["metric"]["outcome"]: float(each["value"][1]) for each in result} == counted

            await until(scraped)
            ratios = await ask(session, url, "samewise:hit_ratio:rate5m")
            assert len(ratios) <= 1


def test_annotations_tell_of_environments_and_profiles() -> None:
    told = {each["name"]: each["expr"] for each in DASHBOARD["annotations"]["list"]}
    assert "samewise_upstream_environment" in told["environments"]
    assert "samewise_changes_total" in told["profiles"]


def test_every_panel_has_a_place_of_its_own_and_every_series_a_name() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(re.match(r"samewise|Prometheus|prometheus", panel["datasource"]["uid"]) for panel in PANELS)


def test_exemplars_lead_from_a_bucket_to_a_trace() -> None:
    asked_for = [panel["title"] for panel in PANELS if any(target["exemplar"] for target in panel["targets"])]
    assert asked_for == ["Hits", "Misses"]

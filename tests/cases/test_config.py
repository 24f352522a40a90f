"""Settings that come from elsewhere than the file, and what holds where nothing is set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cases.conftest import MakeProxy
from tests.cases.test_explain import samewise
from tests.support.patience import ENOUGH
from tests.support.proxy import Proxy

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("flags", "variables", "named"),
    [
        (["--store", "nowhere://"], {}, "[store] url"),
        (["--upstream", "ftp://x"], {}, "url"),
        (["--log-format", "xml"], {}, "[telemetry] log_format"),
        (["--workers", "few"], {}, "[server] workers"),
        ([], {"SAMEWISE_AUTH__KEYS": "abc", "SAMEWISE_AUTH__FORWARD": "true"}, "SAMEWISE_AUTH__KEYS"),
        ([], {"SAMEWISE_UPSTREAMS": "http://x"}, "SAMEWISE_UPSTREAMS"),
        ([], {"SAMEWISE_STORE__TTL": "soon"}, "ttl"),
        ([], {"SAMEWISE_STOER__TTL": "1"}, "SAMEWISE_STOER__TTL"),
    ],
    ids=["flag", "upstream", "choice", "number", "list", "lists", "value", "name"],
)
def test_a_wrong_flag_or_variable_ends_the_start_in_one_line_that_names_it(
    tmp_path: Path, flags: list[str], variables: dict[str, str], named: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "samewise.main", "serve", "--port", "0", "--admin-port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=2 * ENOUGH,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **variables},
    )
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert named in line


async def test_where_nothing_is_set_the_documented_defaults_hold(make_proxy: MakeProxy) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "settings.md").read_text(), re.DOTALL)
    documented = tomllib.loads(block)
    proxy = await make_proxy()
    shown = await proxy.admin("GET", "/config")
    for section in ("cache", "auth"):
        assert shown[section] == documented[section]
    assert (shown["store"]["ttl"], documented["store"]["ttl"]) == (3600.0, "1h")
    (line,) = [line for line in proxy.log if "settings" in line and "server.port" in line]
    for told in ("cache.mode=on", "cache.unseeded=bypass", "store.ttl=3600", "auth.keys=[]"):
        assert told in line


async def test_a_command_that_is_pointed_at_the_data_port_says_so(proxy: Proxy) -> None:
    for words in (("stats",), ("tail",), ("entry", "show", "k")):
        code, _, err = await samewise(proxy, *words, "--admin", proxy.url)
        assert (code, len(err.splitlines())) == (2, 1)
        assert f"{proxy.url} is the data port" in err
        assert "--admin" in err

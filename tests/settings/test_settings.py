"""Settings: four sources, one meaning, and one line that says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from samewise.settings import Settings, SettingsError, flat, load, masked
from samewise.settings.units import memory, seconds, size, spelt


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in [name for name in os.environ if name.upper().startswith("SAMEWISE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def from_text(text: str, **flags: Any) -> Settings:
    path = Path("given.toml")
    path.write_text(text, encoding="utf-8")
    return load(path, flags)


# --- the documented defaults ------------------------------------------------------------------------------

DOCUMENTED = {
    "server.host": "127.0.0.1", "server.port": 8080, "server.workers": 1, "server.max_body": 32 * 2**20,
    "server.drain": 30.0, "admin.host": "127.0.0.1", "admin.port": 8081, "admin.token": "",
    "upstreams.0.url": "http://127.0.0.1:8000/v1", "upstreams.0.api_key": "", "upstreams.0.environment": "auto",
    "store.url": "sqlite:///samewise.db", "store.ttl": 3600.0, "store.max_ttl": 30 * 86400.0, "store.segment": 2**20,
    "store.memory": 256 * 2**20, "store.max_entry": 8 * 2**20, "store.timeout": 0.1, "store.secret": "",
    "cache.mode": "on", "cache.unseeded": "bypass", "cache.unknown_defaults": "bypass", "verify.rate": 0.01,
    "verify.concurrency": 1, "verify.action": "flag", "verify.target": 0.999, "verify.floor": 0.99, "verify.hook": "",
    "timeouts.connect": 5.0, "timeouts.first_byte": 600.0, "timeouts.idle": 120.0, "timeouts.total": 3600.0,
    "environments.rollout": "auto", "environments.poll": 2.0, "sampling.profiles.default.match": "*", "auth.keys": [],
    "telemetry.otlp_endpoint": "", "telemetry.prometheus": True,
}  # fmt: skip


def test_an_empty_configuration_has_the_documented_defaults() -> None:
    assert DOCUMENTED.items() <= flat(load()).items()


def test_the_default_profile_fills_nothing_in() -> None:
    assert {name: profile.values for name, profile in load().sampling.profiles.items()} == {"default": {}}


def test_a_profile_keeps_its_values_and_default_is_always_there() -> None:
    sampling = from_text('[sampling.profiles.warm]\nmatch = "m*"\ntemperature = 0.7\nstop = ["x"]').sampling
    assert sampling.profiles["warm"].values == {"temperature": 0.7, "stop": ["x"]}
    assert sampling.profiles["warm"].match == "m*"
    assert sampling.profiles["default"].values == {}


# --- one value, however it is written ---------------------------------------------------------------------

TEN_MINUTES = ["600", '"600"', '"10m"', "600.0", '"9m60s"']


@pytest.mark.parametrize("written", TEN_MINUTES)
def test_a_ttl_is_seconds_however_the_file_writes_it(written: str) -> None:
    ttl = from_text(f"[store]\nttl = {written}").store.ttl
    assert (ttl, type(ttl)) == (600.0, float)


@pytest.mark.parametrize("written", [text.strip('"') for text in TEN_MINUTES])
def test_a_ttl_is_seconds_however_the_variable_writes_it(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEWISE_STORE__TTL", written)
    ttl = load().store.ttl
    assert (ttl, type(ttl)) == (600.0, float)


def test_a_port_may_be_text() -> None:
    assert from_text('[server]\nport = "6379"').server.port == 6379


@trials(deadline=None)
@given(st.floats(0, 1e6, allow_nan=False))
def test_seconds_survive_being_written(number: float) -> None:
    assert seconds(number) == number
    assert seconds(repr(number)) == pytest.approx(number)


@trials(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_unit_multiplies(number: int, unit: str) -> None:
    if number * {"ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit] <= 3650 * 86400:
        one = seconds(f"1{unit}")
        assert seconds(f"{number}{unit}") == pytest.approx(number * one)
        assert seconds(f"{number} {unit.upper()}") == pytest.approx(number * one)


@trials(deadline=None)
@given(st.integers(1, 3650 * 86400))
def test_a_spelt_time_means_the_same(number: int) -> None:
    assert seconds(spelt(number)) == number


@trials(deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([("KiB", 1024), ("MB", 10**6), ("MiB", 2**20), ("B", 1), ("", 1)]))
def test_a_size_is_whole_bytes(number: int, unit: tuple[str, int]) -> None:
    assert size(f"{number}{unit[0]}") == number * unit[1]
    assert size(number) == number


@trials(deadline=None)
@given(st.one_of(st.text(max_size=8), st.floats(), st.integers(), st.booleans(), st.none(), st.lists(st.integers())))
def test_anything_else_is_refused_with_what_it_should_be(value: Any) -> None:
    for parse in (seconds, size, memory):
        try:
            assert parse(value) >= 0
        except ValueError as error:
            assert "should be" in str(error)


@pytest.mark.parametrize("value", [True, None, "", "1e3h", "-1", -1, float("nan"), float("inf"), "10 parsecs", 10**12])
def test_these_are_no_times(value: Any) -> None:
    with pytest.raises(ValueError, match="should be a time"):
        seconds(value)


def test_memory_may_be_a_share_of_what_there_is() -> None:
    whole = memory("100%")
    assert memory("20%") == pytest.approx(whole / 5, abs=1)
    assert memory("0") == memory(0) == 0


# --- who wins ---------------------------------------------------------------------------------------------


def test_flag_before_variable_before_file_before_default(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[server]\nhost = "a"\nport = 1\nworkers = 3'
    monkeypatch.setenv("SAMEWISE_SERVER__HOST", "b")
    monkeypatch.setenv("SAMEWISE_SERVER__PORT", "2")
    server = from_text(text, **{"server.host": "c", "admin.port": None}).server
    assert (server.host, server.port, server.workers, server.drain) == ("c", 2, 3, 30.0)


def test_lists_come_whole_from_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[[upstreams]]\nurl = "http://file/v1"\napi_key = "k"\n[[upstreams]]\nurl = "http://file2/v1"'
    assert [upstream.url for upstream in from_text(text).upstreams] == ["http://file/v1", "http://file2/v1"]
    monkeypatch.setenv("SAMEWISE_UPSTREAMS", '[{"url": "http://variable/v1/"}]')
    assert [(one.url, one.api_key) for one in from_text(text).upstreams] == [("http://variable/v1", "")]
    flagged = from_text(text, upstreams=[{"url": "http://flag/v1"}])
    assert [upstream.url for upstream in flagged.upstreams] == ["http://flag/v1"]


def test_the_file_in_the_working_directory_is_read_unless_another_is_named() -> None:
    Path("samewise.toml").write_text("[server]\nport = 1")
    assert load().server.port == 1
    assert from_text("").server.port == 8080


def test_a_text_of_the_file_may_refer_to_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "p$w")
    store = from_text('[store]\nurl = "redis://:${REDIS_PASSWORD}@h/0"\nsecret = "a$$b"').store
    assert (store.url, store.secret) == ("redis://:p$w@h/0", "a$b")


# --- what is refused --------------------------------------------------------------------------------------

REFUSED = [
    ("[store]\nttl = -1", "[store] ttl", "a time"),
    ("[store]\nttl = 1e12", "[store] ttl", "3650d"),
    ("[store]\nttl = 9223372036854775808", "[store] ttl", "3650d"),
    ('[store]\nttl = "40d"', "[store] ttl", "max_ttl"),
    ('[store]\nmax_entry = "1 elephant"', "[store] max_entry", "a size"),
    ('[store]\nsegment = "1KiB"', "[store] segment", "0 or at least 64KiB"),
    ('[store]\nmemory = "200%"', "[store] memory", "share"),
    ('[store]\ntimeout = "0s"', "[store] timeout", "greater than 0"),
    ('[store]\nurl = "mysql://x"', "[store] url", "redis://"),
    ('[store]\nurl = "redis://h:x"', "[store] url", "host"),
    ('[store]\nurl = "redis+sentinel://h:1"', "[store] url", "service"),
    ('[store]\nurl = "sqlite://x.db"', "[store] url", "sqlite:///PATH"),
    ("[store]\ntlt = 1", "[store] tlt", "did you mean ttl"),
    ("[stor]\nttl = 1", "stor", "did you mean store"),
    ('[[upstreams]]\nurl = "ftp://a"', "[upstreams.0] url", "http://127.0.0.1:8000/v1"),
    ('[[upstreams]]\nurl = "http://user:pass@a/v1"', "[upstreams.0] url", "api_key"),
    ("upstreams = []", "upstreams", "at least one"),
    ("[server]\nport = 65536", "[server] port", "65535"),
    ('[server]\nport = "x"', "[server] port", "whole number"),
    ('[cache]\nmode = "of"', "[cache] mode", "read-only"),
    ('[cache]\nadmit = "verified:0"', "[cache] admit", "verified:N"),
    ("[verify]\nrate = 1.1", "[verify] rate", "less than or equal to 1"),
    ("[verify]\nfloor = 0.9999", "[verify] floor", "target"),
    ('[admin]\nhost = "0.0.0.0"', "[admin] token", "set"),
    ('[auth]\nkeys = [{tenant = "a", sha256 = "zz"}]', "[auth.keys.0] sha256", "64 hex digits"),
    ('[auth]\nkeys = [{tenant = "a"}]', "[auth.keys.0] sha256", "set"),
    ('[store]\nsecret = "${NOT_THERE}"', "[store] secret", "NOT_THERE"),
    ("[store", "given.toml", "TOML"),
]


@pytest.mark.parametrize(("text", "setting", "wanted"), REFUSED)
def test_a_wrong_setting_is_named_in_one_line_with_what_it_should_be(text: str, setting: str, wanted: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_text(text)
    message = str(caught.value)
    assert message.startswith(f"{setting}: ")
    assert wanted in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("SAMEWISE_STORE__TTL", "soon", "[store] ttl"),
        ("SAMEWISE_STORE__TTLL", "1", "did you mean ttl"),
        ("SAMEWISE_STOR__TTL", "1", "did you mean store"),
        ("SAMEWISE_STORE_TTL", "1", "SAMEWISE_STORE__TTL"),
        ("SAMEWISE_UPSTREAMS", "http://a", "JSON"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load()
    assert variable in str(caught.value)
    assert wanted in str(caught.value)


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in [("ADMIN_URL", "http://x"), ("ADMIN_TOKEN", "t"), ("ADMIN_PORT", "tcp://10.0.0.1:80")]:
        monkeypatch.setenv(f"SAMEWISE_{name}", value)
    monkeypatch.setenv("SAMEWISE_SERVICE_HOST", "10.0.0.1")
    assert load().admin.token == ""


def test_a_lower_maximum_lowers_the_default_ttl() -> None:
    assert from_text('[store]\nmax_ttl = "10s"').store.ttl == 10


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load(Path("nowhere.toml"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_the_admin_port_needs_no_token_on_loopback(host: str) -> None:
    assert from_text(f'[admin]\nhost = "{host}"').admin.host == host


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().store.ttl = 1.0


# --- what is shown ----------------------------------------------------------------------------------------

SECRET = "hunter2hunter2"
SECRETS = f"""
[admin]
token = "{SECRET}"
[[upstreams]]
url = "http://a/v1"
api_key = "{SECRET}"
[store]
url = "redis://user:{SECRET}@h:6379/0?password={SECRET}"
secret = "{SECRET}"
old_secrets = ["{SECRET}"]
[verify]
hook = "https://hooks.example/{SECRET}"
[receipts]
secret = "{SECRET}"
[auth]
keys = [{{ tenant = "a", sha256 = "{"ab" * 32}" }}]
[telemetry]
otlp_endpoint = "http://u:{SECRET}@h:4318"
"""


def test_no_secret_is_ever_shown() -> None:
    settings = from_text(SECRETS)
    shown = json.dumps(masked(settings)) + json.dumps(flat(settings)) + repr(settings.admin) + repr(settings.auth)
    assert SECRET not in shown
    assert "abab" not in shown
    assert flat(settings)["store.url"].startswith("redis://********@h:6379/0")
    assert flat(settings)["auth.keys.0.tenant"] == "a"


@pytest.mark.parametrize(
    "text",
    [
        f'[admin]\ntoken = ["{SECRET}"]',
        f'[store]\nurl = "redis://:{SECRET}@h:x"',
        f'[receipts]\nsecret = {{a="{SECRET}"}}',
    ],
)
def test_an_error_does_not_tell_a_secret(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_text(text)
    assert SECRET not in str(caught.value)


def test_settings_need_neither_exporters_nor_servers_to_load() -> None:
    code = "import samewise.settings, sys; print([m for m in ('grpc', 'aiohttp', 'opentelemetry') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

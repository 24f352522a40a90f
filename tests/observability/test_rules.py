"""promtool accepts the rules and the configuration, and the rules say what they should of series made for them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from samewise.telemetry.instruments import INSTRUMENTS
from samewise.telemetry.prometheus import metric_name
from tests.repo.files import ROOT, load_yaml, text

RULES = "compose/prometheus/rules.yaml"
HERE = Path(__file__).parent


def promtool(*args: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool on PATH (Debian's package prometheus has it)")
    done = subprocess.run([program, *args], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(ROOT / RULES))


def test_promtool_accepts_the_configuration_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    (tmp_path / "prometheus" / "rules.yaml").write_text(text(RULES))
    token = tmp_path / "token"
    token.write_text("x")
    config = tmp_path / "prometheus.yaml"
    config.write_text(text("compose/prometheus.yaml").replace("/tmp/samewise-token", str(token)))
    promtool("check", "config", str(config))


def test_the_rules_say_what_they_should() -> None:
    promtool("test", "rules", "rules.test.yaml")


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    tests = (HERE / "rules.test.yaml").read_text()
    alerts = [rule for group in load_yaml(RULES)["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(alerts) >= 6
    for rule in alerts:
        assert f"alertname: {rule['alert']}" in tests
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


@pytest.mark.parametrize("name", [RULES, "compose/grafana/dashboards/samewise.json"])
def test_metrics_that_are_asked_for_exist(name: str) -> None:
    known = set()
    for instrument in INSTRUMENTS.values():
        family = metric_name(instrument)
        known |= {family, f"{family}_total", f"{family}_bucket", f"{family}_sum", f"{family}_count"}
    asked = set(re.findall(r"(?<![\w:-])samewise_[a-z_]+", text(name)))
    assert asked
    assert asked - known == set()

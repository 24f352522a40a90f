"""deploy/ is accepted by validators, and its settings are settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from samewise.settings import load
from tests.repo.files import ROOT, load_yaml, text

BIN = Path(sys.executable).parent
MANIFESTS = [
    document
    for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
CORE = [document for document in MANIFESTS if document["kind"] != "ServiceMonitor"]


def named(kind: str, name: str) -> dict[str, Any]:
    return next(each for each in MANIFESTS if each["kind"] == kind and each["metadata"]["name"] == name)


@pytest.mark.parametrize("manifest", CORE, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_kubernetes_accepts_it(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_validator_refuses_a_misspelt_member() -> None:
    wrong = {**named("Deployment", "samewise"), "spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_there_is_all_that_a_team_needs() -> None:
    kinds = {each["kind"] for each in MANIFESTS}
    assert {"Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "StatefulSet", "ServiceMonitor"} <= kinds
    assert named("Service", "vllm")["spec"]["clusterIP"] == "None"
    metric = named("HorizontalPodAutoscaler", "samewise")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert metric == "samewise_inflight"


def test_a_pod_is_given_the_time_that_draining_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEWISE_TOKEN", "t")
    settings = tmp_path / "samewise.toml"
    settings.write_text(named("ConfigMap", "samewise")["data"]["samewise.toml"], encoding="utf-8")
    loaded = load(settings)
    assert loaded.upstreams[0].resolve
    grace = named("Deployment", "samewise")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert loaded.server.drain < grace


def test_the_schema_of_the_compose_specification_accepts_the_cluster() -> None:
    done = subprocess.run(
        [
            str(BIN / "check-jsonschema"),
            "--builtin-schema",
            "vendor.compose-spec",
            str(ROOT / "deploy/compose/compose.yaml"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cluster_s_settings_name_the_services_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMEWISE_ADMIN__TOKEN", "t")
    settings = tmp_path / "samewise.toml"
    settings.write_text(text("deploy/compose/samewise.toml"), encoding="utf-8")
    loaded = load(settings)
    services = load_yaml("deploy/compose/compose.yaml")["services"]
    named_there = {upstream.url.removeprefix("http://").split(":")[0] for upstream in loaded.upstreams}
    nodes = {node.split(":")[0] for node in loaded.store.url.removeprefix("redis+cluster://").split(",")}
    assert named_there | nodes <= set(services)
    assert len(nodes) == 3

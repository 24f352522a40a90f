"""Every field of vLLM's own request classes has been looked at, and is treated as the list says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from samewise.core.controls import Controls
from samewise.core.dialects import NEUTRAL, dialect, member
from samewise.core.families.registry import BY_NAME, FAMILIES
from samewise.core.fingerprint import Environment
from samewise.core.plan import Context, Plan
from samewise.core.request import plan
from tests.support.vllm import require_vllm, vllm_python
from tests.vllm.families import CLASSES, FILE, LOOKED_AT, MARKS, table

ADVICE = (
    "vLLM has fields that tests/vllm/fields.json doesn't tell, or no longer has some that it tells. Look at each in "
    "vLLM's protocol class and put it into one class: `key` where it can change the answer (nothing else to do: every "
    "member is key unless it is said not to be), `default-filled` where vLLM has a default for it that a key should "
    "spell out (then name it in core/dialects.py), `delivery` where it only changes how the answer travels (then name "
    "it in the family's `delivery`), `uncacheable` where it refers to what the server keeps (then refuse it in the "
    "family's `refusal`). Then renew the table of the README with `PYTHONPATH=proxy python -m tests.vllm.families`."
)
VLLM = Environment(id="e", origin="contract", engine="vllm", defaults={})
PROBE = "samewise"
NAMES = [family.name for family in FAMILIES]


def planned(family: str, body: dict[str, Any]) -> Plan:
    raw = json.dumps(body).encode()
    return plan(BY_NAME[family], raw, Controls(), Context(environment=VLLM))


def base(family: str) -> dict[str, Any]:
    """A request of the family that can be cached and has as little as possible in it."""
    sampled = {"temperature": 0.5, "seed": 7} if BY_NAME[family].seeded else {"temperature": 0}
    return {"model": "m", **(sampled if BY_NAME[family].sampled else {})}


def key_of(family: str, body: dict[str, Any]) -> str:
    (unit,) = planned(family, body).units
    assert unit.key is not None, unit.reason
    return unit.key


def listed(kind: str) -> list[tuple[str, str]]:
    return [(family, name) for family, classes in LOOKED_AT["families"].items() for name in classes[kind]]


def test_every_field_is_in_one_class() -> None:
    assert LOOKED_AT["families"].keys() == set(NAMES)
    for family, classes in LOOKED_AT["families"].items():
        names = [name for kind in CLASSES for name in classes[kind]]
        assert classes.keys() == set(CLASSES), family
        assert len(names) == len(set(names)), family


@pytest.mark.parametrize(("family", "name"), listed("key"))
def test_a_field_of_the_key_makes_another_key(family: str, name: str) -> None:
    body = base(family)
    changed = {**body, name: PROBE if name != "seed" else 8}
    if name == "encoding_format":
        changed[name] = "base64"
    assert key_of(family, changed) != key_of(family, body)


@pytest.mark.parametrize(("family", "name"), listed("delivery"))
def test_delivery_leaves_the_key_alone_and_travels(family: str, name: str) -> None:
    value = {"stream": True, "stream_options": {"include_usage": True}}.get(name, PROBE)
    body = {**base(family), "stream": True} if name == "stream_options" else base(family)
    changed = planned(family, {**body, name: value})
    assert key_of(family, {**body, name: value}) == key_of(family, base(family))
    assert changed.delivery[name] == value


@pytest.mark.parametrize(("family", "name"), listed("uncacheable"))
def test_what_refers_to_the_server_makes_a_request_uncacheable(family: str, name: str) -> None:
    (unit,) = planned(family, {**base(family), name: True}).units
    assert (unit.key, str(unit.reason)) == (None, "stateful")


@pytest.mark.parametrize(("family", "name"), listed("default-filled"))
def test_a_default_says_the_same_spelled_out_and_left_out(family: str, name: str) -> None:
    known = dialect("vllm", family)
    assert known is not None
    body = base(family)
    spelled = {**body, member(family, name): known.defaults[name]}
    if name != "temperature":
        assert key_of(family, spelled) == key_of(family, body)
    other = {**spelled, name: {"temperature": 0.75, "top_p": 0.5, "max_tokens": 17}.get(name, 0.25)}
    if BY_NAME[family].seeded:
        assert key_of(family, other) != key_of(family, spelled)


def test_the_readme_lists_the_families_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    begin, end = MARKS
    told = page.partition(f"{begin}\n\n")[2].partition(f"\n\n{end}")[0]
    assert told == table(), "renew it with `PYTHONPATH=proxy python -m tests.vllm.families`"


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    require_vllm()
    python = vllm_python()
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), str(FILE.parent / "fields.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout[done.stdout.index('{"version"') :])
    return told


def unlike(family: str, fields: dict[str, Any]) -> list[str]:
    """One line for each field that is new, or gone."""
    known = {name for kind in CLASSES for name in LOOKED_AT["families"][family][kind]}
    new = [f"{family}: {name} is new" for name in sorted(fields.keys() - known)]
    return new + [f"{family}: {name} is gone" for name in sorted(known - fields.keys())]


@pytest.mark.vllm
@pytest.mark.parametrize("family", NAMES)
def test_no_field_of_the_installed_vllm_is_unknown(family: str, installed: dict[str, Any]) -> None:
    found = unlike(family, installed["fields"][family])
    assert not found, "\n".join([*found, ADVICE])


def test_a_new_field_is_noticed_and_the_advice_says_what_to_do() -> None:
    names = {name: [None] for kind in CLASSES for name in LOOKED_AT["families"]["chat"][kind]}
    assert unlike("chat", names) == []
    assert unlike("chat", {**names, "zz_new": [None]}) == ["chat: zz_new is new"]
    assert unlike("chat", {name: [None] for name in names if name != "n"}) == ["chat: n is gone"]
    assert "core/dialects.py" in ADVICE


@pytest.mark.vllm
@pytest.mark.parametrize("family", ["chat", "completions", "responses"])
def test_defaults_are_those_of_the_installed_vllm(family: str, installed: dict[str, Any]) -> None:
    known = dialect("vllm", family)
    assert known is not None
    for name, value in installed["sampling"][family].items():
        assert known.defaults[name] == value, name
    for name in NEUTRAL:
        assert installed["fields"][family].get(name, [None]) == [None], f"{name} has a default in the class itself"
    for name, value in known.implied.items():
        (told,) = installed["fields"][family][name]
        assert told is None or told == value, f"{name}: leaving it out isn't {value!r} any more"
    if family == "completions":
        assert installed["fields"][family]["max_tokens"] == [known.defaults["max_tokens"]]

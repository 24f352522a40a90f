"""Clients' keys at the command line: made here, listed and revoked there, never shown again."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

from samewise.cli.tenants import keys
from samewise.settings import load_keys

Run = Callable[..., Result]

ROW = {"tenant": "a", "sha256": "0123456789ab", "models": ["m-*"], "share": "team", "per_minute": 60, "revoked": False}


def test_keys_are_listed_by_what_does_not_give_them_away(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "keys", {"items": [ROW, {**ROW, "sha256": "ba9876543210", "revoked": True}]})
    lines = run("keys", "list").output.splitlines()
    (valid,) = [line for line in lines if "0123456789ab" in line]
    (revoked,) = [line for line in lines if "ba9876543210" in line]
    assert "valid" in valid and "m-*" in valid and "60" in valid
    assert "revoked" in revoked
    scripted.answer("GET", "keys", {"items": [ROW]})
    assert json.loads(run("keys", "list", "--json").output) == {"items": [ROW]}


def test_a_new_key_fits_its_line_and_is_told_to_nobody(run: Run, scripted: Any) -> None:
    said = run("keys", "new", "team-a").output
    key = re.search(r"sk-[\w-]{40,}", said)
    line = re.search(r"\{.*\}", said)
    assert key is not None and line is not None
    digest = hashlib.sha256(key[0].encode()).hexdigest()
    assert tomllib.loads(f"key = {line[0]}")["key"] == {"tenant": "team-a", "sha256": digest}
    assert json.loads(run("keys", "new", "a", "--json").output)["key"] != key[0]
    assert scripted.asked == []


@pytest.mark.parametrize("tenant", ["", 'team "a', "é x", "a b", "a\n", "x" * 129, "shared:a", "credential:a"])
def test_a_name_that_settings_would_refuse_makes_no_key(run: Run, tenant: str) -> None:
    for more in ((), ("--json",)):
        refused = run("keys", "new", tenant, *more)
        assert refused.exit_code == 2
        assert "should" in refused.output and "sk-" not in refused.output


@given(tenant=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128))
@example(tenant='"')
@example(tenant="${HOME}$$")
@example(tenant="\\u0041")
def test_the_line_of_a_new_key_is_read_by_the_settings_as_it_was_meant(
    tmp_path_factory: pytest.TempPathFactory, tenant: str
) -> None:
    said = CliRunner().invoke(keys, ["new", "--", tenant])
    (line,) = re.findall(r"\{ .* \}", said.output)
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(f"keys = [{line}]")
    assert [key.tenant for key in load_keys(str(file))] == [tenant]


def test_revoking_says_what_is_gone_and_what_is_not_known_exits_1(run: Run, scripted: Any) -> None:
    scripted.answer("DELETE", "keys/0123456789ab", {"revoked": "0123456789ab"})
    assert "0123456789ab is revoked" in run("keys", "revoke", "0123456789ab").output
    error = {"error": {"message": "0 keys begin with 0", "type": "t", "param": None, "code": "unknown_key"}}
    scripted.answer("DELETE", "keys/000000000000", error, status=404)
    assert run("keys", "revoke", "000000000000").exit_code == 1

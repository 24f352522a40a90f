"""What operators type, and what the proxy is asked for it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]

PARTS = {"temperature": {"value": 0, "from": "request"}, "top_p": {"value": 1, "from": "manifest"}}


def told(key: str | None = "a" * 64, **parts: Any) -> dict[str, Any]:
    found = {name: {"value": value, "from": "request"} for name, value in parts.items()}
    reason = None if key else "unseeded"
    return {"key": key, "cacheable": key is not None, "reason": reason, "parts": {**PARTS, **found}}


def write(path: Path, body: Any) -> str:
    path.write_text(json.dumps(body), encoding="utf-8")
    return str(path)


# --- explain and diff -------------------------------------------------------------------------------------


def test_explain_shows_every_part_with_its_origin(run: Run, scripted: Any, tmp_path: Path) -> None:
    scripted.answer("POST", "explain", told())
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": 2**53 + 1}
    result = run("explain", write(tmp_path / "r.json", body))
    assert result.exit_code == 0
    assert "a" * 64 in result.output
    assert "manifest" in result.output
    expected = {"endpoint": "chat", "body": json.dumps(body), "headers": {}, "full": False, "nearest": True}
    assert scripted.asked[0][2] == expected


def test_a_request_is_explained_as_it_is_spelled(run: Run, scripted: Any, tmp_path: Path) -> None:
    scripted.answer("POST", "explain", told())
    text = '{"model":"m","messages":[],"temperature":1,"temperature":0,"user":"\\ud800"}'
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    run("explain", str(tmp_path / "r.json"))
    assert scripted.asked[0][2]["body"] == text


@pytest.mark.parametrize(
    ("member", "endpoint"), [("messages", "chat"), ("prompt", "completions"), ("input", "embeddings")]
)
def test_the_endpoint_is_guessed_unless_it_is_said(
    run: Run, scripted: Any, tmp_path: Path, member: str, endpoint: str
) -> None:
    scripted.answer("POST", "explain", told())
    run("explain", write(tmp_path / "r.json", {member: "x"}))
    run("explain", write(tmp_path / "r.json", {member: "x"}), "--endpoint", "responses")
    assert [asked[2]["endpoint"] for asked in scripted.asked] == [endpoint, "responses"]


def test_explain_of_what_is_not_cacheable_exits_1_and_says_why(run: Run, scripted: Any, tmp_path: Path) -> None:
    scripted.answer("POST", "explain", told(key=None))
    result = run("explain", write(tmp_path / "r.json", {"messages": []}))
    assert result.exit_code == 1
    assert "unseeded" in result.output


def test_diff_of_the_same_key_exits_0(run: Run, scripted: Any, tmp_path: Path) -> None:
    scripted.answer("POST", "explain", told())
    a, b = write(tmp_path / "a.json", {"messages": []}), write(tmp_path / "b.json", {"messages": []})
    assert run("diff", a, b).exit_code == 0


def test_diff_names_the_place_and_keeps_prompts_to_itself(
    run: Run, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a long private matter"
    one = told("a" * 64, messages=[{"content": f"{secret} A"}])
    other = told("b" * 64, messages=[{"content": f"{secret} B"}], temperature=0.5)
    answers = iter([one, other, one, other])
    monkeypatch.setattr("samewise.cli.client.Admin.post", lambda *_, **__: next(answers))
    a, b = write(tmp_path / "a.json", {"messages": []}), write(tmp_path / "b.json", {"messages": []})
    result = run("diff", a, b)
    assert result.exit_code == 1
    assert f"messages[0].content: character {len(secret) + 1}" in result.output
    assert "temperature: value (0 against 0.5)" in result.output
    assert secret not in result.output
    assert secret in run("diff", "--full", a, b).output


@pytest.mark.parametrize("content", ["{", "[1]", '"x"'])
def test_a_file_that_is_no_request_is_a_usage_error(run: Run, scripted: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    result = run("explain", str(tmp_path / "r.json"))
    assert result.exit_code == 2
    assert "r.json" in result.output
    assert scripted.asked == []


# --- changing things --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "scope", "value"),
    [(("--all",), "all", ""), (("--model", "m"), "model", "m"), (("--tag", "t"), "tag", "t")],
)
def test_invalidate_asks_for_one_scope(run: Run, scripted: Any, args: tuple[str, ...], scope: str, value: str) -> None:
    scripted.answer("POST", "invalidate", {"epoch": 3})
    result = run("invalidate", *args, "--reason", "why")
    assert result.exit_code == 0
    assert "epoch 3" in result.output
    assert scripted.asked[0][2] == {"scope": scope, "value": value, "dry_run": False, "reason": "why"}


def test_a_tenants_tag_is_named_with_its_tenant(run: Run, scripted: Any) -> None:
    scripted.answer("POST", "invalidate", {"epoch": 1})
    assert "tag t of a: invalidated" in run("invalidate", "--tag", "t", "--tenant", "a").output
    assert scripted.asked[0][2] == {"scope": "tag", "value": "t", "dry_run": False, "reason": "", "tenant": "a"}


@pytest.mark.parametrize(
    "args", [(), ("--all", "--model", "m"), ("--tag", "t", "--key", "k"), ("--tenant", "a", "--all")]
)
def test_invalidate_of_nothing_or_of_two_things_is_refused(run: Run, scripted: Any, args: tuple[str, ...]) -> None:
    assert run("invalidate", *args).exit_code == 2
    assert scripted.asked == []


def test_a_dry_run_tells_the_number(run: Run, scripted: Any) -> None:
    scripted.answer("POST", "invalidate", {"matched": 17})
    assert "17 entries would be forgotten" in run("invalidate", "--all", "--dry-run").output
    assert scripted.asked[0][2]["dry_run"] is True
    scripted.answer("POST", "invalidate", {"matched": 1})
    assert "1 entry would be forgotten" in run("invalidate", "--all", "--dry-run").output


def test_numbers_and_times_are_shown_whole(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "entries/k", {"key": "k", "created": 1700000000.25, "ttl": 2592000.0, "age": 0.12345678})
    lines = [line.split(maxsplit=1) for line in run("entry", "show", "k").output.splitlines()]
    assert lines == [["key", "k"], ["created", "2023-11-14 22:13:20"], ["ttl", "2592000"], ["age", "0.123457"]]
    scripted.answer("GET", "config", {"store": {"max_ttl": 2592000.0}})
    assert run("config").output.split() == ["store.max_ttl", "2592000"]


def test_names_travel_as_one_step_of_the_path(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "entries/a%2F..%3Fb", {"key": "x"})
    assert run("entry", "show", "a/..?b").exit_code == 0


def test_an_entry_that_is_not_there_exits_1(run: Run) -> None:
    assert run("entry", "show", "k").exit_code == 1
    assert run("entry", "delete", "k").exit_code == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("v.json", '{"temperature": 0.5, "temperature": 0.6}'),
        ("v.json", '{"logit_bias": {"1": 1, "1": 2}}'),
        ("v.json", '{"temperature": NaN}'),
        ("v.json", "[]"),
        ("v.toml", "temperature = 0.5\ntemperature = 0.6"),
    ],
)
def test_a_profile_that_says_a_thing_twice_is_not_sent(
    run: Run, scripted: Any, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    refused = run("profiles", "set", "p", str(tmp_path / name))
    assert refused.exit_code == 2
    assert name in refused.output and "Traceback" not in refused.output
    assert scripted.asked == []


def test_profiles_take_values_from_json_toml_and_stdin(run: Run, scripted: Any, tmp_path: Path) -> None:
    scripted.answer("PUT", "profiles/p", {"name": "p", "active": 2, "versions": []})
    (tmp_path / "v.toml").write_text("temperature = 0.5")
    assert run("profiles", "set", "p", write(tmp_path / "v.json", {"temperature": 0.5})).exit_code == 0
    assert run("profiles", "set", "p", str(tmp_path / "v.toml")).exit_code == 0
    assert run("profiles", "set", "p", "-", input='{"temperature": 0.5}').exit_code == 0
    assert [asked[2]["values"] for asked in scripted.asked] == [{"temperature": 0.5}] * 3


def test_canary_promote_and_rollback(run: Run, scripted: Any, tmp_path: Path) -> None:
    for action in ("canary", "promote", "rollback"):
        scripted.answer("POST", f"profiles/p/{action}", {"name": "p", "active": 1, "versions": []})
    values = write(tmp_path / "v.json", {"temperature": 1})
    assert run("profiles", "canary", "p", values, "--percent", "10").exit_code == 0
    assert run("profiles", "promote", "p").exit_code == 0
    assert run("profiles", "rollback", "p", "--reason", "worse").exit_code == 0
    assert scripted.asked[0][2]["percent"] == 10
    assert scripted.asked[2][2]["reason"] == "worse"
    assert run("profiles", "canary", "p", values, "--percent", "0").exit_code == 2


def test_an_environment_is_activated(run: Run, scripted: Any) -> None:
    scripted.answer("POST", "environments/e1/activate", {"active": "e1"})
    assert run("environments", "activate", "e1", "--model", "m").exit_code == 0
    assert scripted.asked[0][2] == {"model": "m", "reason": ""}


# --- listings ---------------------------------------------------------------------------------------------

LISTINGS = [
    (("profiles", "list"), "profiles", {"items": [{"name": "n1", "match": "*", "active": 4, "versions": []}]}, "n1"),
    (("environments", "list"), "environments", {"items": [{"id": "e1", "active": True, "upstreams": []}]}, "e1"),
    (("upstreams", "list"), "upstreams", {"items": [{"url": "http://u/v1", "healthy": True}]}, "http://u/v1"),
    (("divergences", "list"), "divergences?limit=50", {"items": [{"id": "d1", "at": 1.0}]}, "d1"),
    (("divergences", "show", "d1"), "divergences/d1", {"id": "d1", "cached": {"text": "a"}}, "d1"),
    (("profiles", "show", "n1"), "profiles/n1", {"name": "n1", "versions": [{"version": 1, "values": {}}]}, "n1"),
    (("entry", "show", "k1"), "entries/k1", {"key": "k1"}, "k1"),
    (("stats",), "status", {"requests": {"hit": 3}}, "requests.hit  3"),
    (("config",), "config", {"store": {"ttl": 3600.0}}, "store.ttl  3600"),
]


@pytest.mark.parametrize(("args", "path", "answer", "shown"), LISTINGS)
def test_every_listing_is_for_people_and_for_programs(
    run: Run, scripted: Any, *, args: tuple[str, ...], path: str, answer: Any, shown: str
) -> None:
    scripted.answer("GET", path, answer)
    plain, machine = run(*args), run(*args, "--json")
    assert plain.exit_code == machine.exit_code == 0
    assert shown in plain.output
    assert json.loads(machine.output) == answer


def test_what_a_server_says_can_not_drive_the_terminal(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "upstreams", {"items": [{"url": "\x1b]0;owned\x07[red]x", "healthy": False}]})
    output = run("upstreams", "list").output
    assert "\x1b" not in output
    assert "[red]x" in output


def test_tail_prints_requests_and_notices_as_they_come(run: Run, scripted: Any) -> None:
    events = [
        {
            "event": "request",
            "at": 1.0,
            "outcome": "bypass",
            "status": 200,
            "duration": 0.1,
            "reason": "unseeded",
            "prefix_cached": 64,
        },
        {"event": "notice", "at": 2.0, "kind": "control", "attributes": {"kind": "invalidate"}},
    ]
    stream = b": hello\n\n" + b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    scripted.answer("GET", "events", stream)
    lines = run("tail").output.splitlines()
    assert "BYPASS" in lines[0]
    assert "unseeded" in lines[0]
    assert "prefix=64" in lines[0]
    assert "invalidate" in lines[1]
    assert [json.loads(line) for line in run("tail", "--json", "--count", "1").output.splitlines()] == events[:1]


# --- reaching the proxy -----------------------------------------------------------------------------------


def test_the_token_is_sent_from_the_environment(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "status", {})
    run("stats", env={"SAMEWISE_ADMIN_TOKEN": "t0k"})
    assert scripted.asked[0][3]["authorization"] == "Bearer t0k"


def test_the_flag_wins_over_the_variable(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "status", {})
    result = run("stats", "--admin", scripted.url, env={"SAMEWISE_ADMIN_URL": "http://127.0.0.1:1"})
    assert result.exit_code == 0


@pytest.mark.parametrize(("status", "code"), [(401, 2), (403, 2), (404, 1), (409, 1), (400, 2), (503, 3)])
def test_refusals_have_their_exit_codes_and_one_line(run: Run, scripted: Any, status: int, code: int) -> None:
    scripted.answer("GET", "status", {"error": {"message": "because"}}, status)
    result = run("stats")
    assert result.exit_code == code
    assert "because" in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(("status", "code"), [(404, 2), (500, 3)])
def test_an_answer_without_a_reason_is_told_once(run: Run, scripted: Any, status: int, code: int) -> None:
    scripted.answer("GET", "status", b"<html>", status)
    result = run("stats")
    assert (result.exit_code, len(result.output.splitlines())) == (code, 1)
    assert result.output.count(scripted.url) == 1
    assert str(status) in result.output


def test_no_proxy_exits_3_and_says_what_to_do(run: Run) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        result = run("stats", "--admin", url)
    assert result.exit_code == 3
    assert "samewise serve" in result.output
    assert "--admin" in result.output


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:99999"])
def test_a_wrong_url_is_a_usage_error(run: Run, url: str) -> None:
    assert run("stats", "--admin", url).exit_code == 2


def test_a_server_that_is_no_samewise_exits_3(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "status", b"<html>")
    assert run("stats").exit_code == 3


def test_help_lists_every_subcommand_and_knowing_the_commands_imports_no_tables(run: Run) -> None:
    assert "rollback" in run("profiles", "--help").output
    assert "--dry-run" in run("invalidate", "--help").output
    heavy = "import samewise.cli, sys; print([m for m in ('rich', 'aiohttp', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

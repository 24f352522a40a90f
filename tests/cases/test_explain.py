"""What operators are told of a key, by the real proxy and the real commands."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy, Pair
from tests.support.mock_backend import MockBackend
from tests.support.proxy import B0, Proxy, until

SECRET = "the patient's name is Rosalind"


async def samewise(proxy: Proxy, *words: str) -> tuple[int, str, str]:
    """A command against the proxy's admin port: exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "samewise.main",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SAMEWISE_ADMIN_URL": proxy.admin_url, "COLUMNS": "200"},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def saved(folder: Path, name: str, body: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(body), encoding="utf-8")
    return str(path)


def asking(text: str, **members: Any) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": text}], **members}


async def explained(proxy: Proxy, body: Any, **more: Any) -> dict[str, Any]:
    told = await proxy.admin("POST", "/explain", {"endpoint": "chat", "body": body, **more})
    assert isinstance(told, dict)
    return told


async def test_the_explained_key_is_the_one_that_answers_carry(proxy: Proxy) -> None:
    for body in (B0, asking("x", top_p=0.5, temperature=0.25), asking("y", user="u", metadata={"a": 1})):
        assert (await explained(proxy, body))["key"] == (await proxy.post(body)).key


async def test_a_spelling_is_explained_as_it_is_answered(proxy: Proxy, tmp_path: Path) -> None:
    odd, twice = tmp_path / "odd.json", tmp_path / "twice.json"
    odd.write_text('{"model":"m","messages":[{"role":"user","content":"\\ud800"}],"temperature":0}')
    twice.write_text(json.dumps(B0)[:-1] + ',"temperature":0}')
    answered = await proxy.post(odd.read_bytes())
    assert answered.status == 200
    code, told, _ = await samewise(proxy, "explain", str(odd), "--json")
    assert (code, json.loads(told)["key"]) == (0, answered.key)
    assert (await samewise(proxy, "explain", str(odd), "--full"))[0] == 0
    refused = await proxy.post(twice.read_bytes())
    assert (refused.status, refused.json()["error"]["code"]) == (400, "duplicate_member")
    code, told, said = await samewise(proxy, "explain", str(twice))
    assert (code, told) == (2, "") and "temperature" in said


async def test_explaining_asks_no_upstream_and_stores_nothing(proxy: Proxy, mb: MockBackend) -> None:
    assert (await explained(proxy, B0))["nearest"] is None
    assert mb.count == 0
    assert (await proxy.post(B0)).cache == "MISS"


async def test_parts_say_where_they_come_from(proxy: Proxy) -> None:
    await proxy.admin("PUT", "/profiles/default", {"values": {"presence_penalty": 0.5}})
    parts = (await explained(proxy, asking("x", temperature=0.5)))["parts"]
    assert parts["temperature"] == {"value": 0.5, "from": "request"}
    assert parts["presence_penalty"] == {"value": 0.5, "from": "default@2"}
    assert parts["top_p"] == {"value": 1, "from": "manifest"}


async def test_the_nearest_entry_is_named_with_the_paths_that_differ(proxy: Proxy) -> None:
    stored = await proxy.post(asking(f"{SECRET} A"))
    await proxy.post(asking("something else entirely", max_tokens=3))
    told = await explained(proxy, asking(f"{SECRET} B", max_tokens=17))
    nearest = told["nearest"]
    assert nearest["key"] == stored.key
    assert 0.5 < nearest["similarity"] < 1
    found = {each["path"]: each["what"] for each in nearest["differences"]}
    assert found == {"messages[0].content": f"character {len(SECRET) + 1}", "max_tokens": "value"}
    assert SECRET not in json.dumps(told)
    assert SECRET in json.dumps(await explained(proxy, asking(f"{SECRET} B"), full=True))


async def test_a_stored_request_is_its_own_nearest_entry(proxy: Proxy) -> None:
    stored = await proxy.post(B0)
    nearest = (await explained(proxy, B0))["nearest"]
    assert nearest == {"key": stored.key, "similarity": 1.0, "differences": []}


async def test_another_tenants_entries_and_ended_ones_are_never_near(make_proxy: MakeProxy) -> None:
    keys = [{"tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("a", "b")]
    proxy = await make_proxy(settings={"auth.keys": keys})
    mine = {"authorization": "Bearer a"}
    stored = await proxy.post(asking("x"), headers=mine)
    for told in ({"headers": mine}, {"tenant": "a"}):
        assert (await explained(proxy, asking("y"), **told))["nearest"]["key"] == stored.key
    assert (await explained(proxy, asking("x"), headers=mine))["key"] == stored.key
    assert (await explained(proxy, asking("y"), tenant="b"))["nearest"] is None
    await proxy.admin("POST", "/invalidate", {"scope": "all"})
    assert (await explained(proxy, asking("y"), tenant="a"))["nearest"] is None


@pytest.mark.parametrize("how", ["frozen", "only-if-cached"])
async def test_a_refusal_names_the_nearest_entry_and_no_text(
    make_proxy: MakeProxy, mb: MockBackend, tmp_path: Path, how: str
) -> None:
    store = {"store.url": f"sqlite:///{tmp_path / 'entries.db'}"}
    proxy = await make_proxy(settings=store)
    stored = await proxy.post(asking(f"{SECRET} A"))
    if how == "frozen":
        await proxy.stop()
        proxy = await make_proxy(settings={**store, "cache.mode": "frozen"})
    headers = {} if how == "frozen" else {"cache-control": "only-if-cached"}
    refused = await proxy.post(asking(f"{SECRET} B", max_tokens=17), headers=headers)
    assert (refused.status, refused.reason) == (504, "not-cached")
    message = refused.json()["error"]["message"]
    assert stored.key is not None and stored.key in message
    assert f"messages[0].content (character {len(SECRET) + 1})" in message
    assert "max_tokens (value)" in message
    assert "Rosalind" not in message
    assert mb.count == 1


async def test_a_refusal_of_an_empty_cache_names_nothing(proxy: Proxy, mb: MockBackend) -> None:
    refused = await proxy.post(B0, headers={"cache-control": "only-if-cached"})
    assert refused.status == 504
    assert "nearest" not in refused.json()["error"]["message"]
    assert mb.count == 0


async def test_many_refusals_in_a_large_store_are_answered_soon(proxy: Proxy) -> None:
    """The search is bounded and one at a time: 300 entries, 200 refusals at once."""
    text = "z" * 2000
    await asyncio.gather(*(proxy.post(asking(f"{text} {at}")) for at in range(300)))
    headers = {"cache-control": "only-if-cached"}
    hits = await asyncio.gather(*(proxy.post(asking(f"{text} {at}"), headers=headers) for at in range(200)))
    refused = await asyncio.gather(*(proxy.post(asking(f"{text} {at}!"), headers=headers) for at in range(200)))
    assert {each.status for each in refused} == {504}
    named = [each for each in refused if "the nearest entry is" in each.json()["error"]["message"]]
    assert 1 <= len(named) < 200
    assert max(each.seconds for each in refused) < 5 + 20 * max(each.seconds for each in hits)


# --- the commands -----------------------------------------------------------------------------------------


async def test_explain_prints_the_parts_and_the_nearest_entry(proxy: Proxy, tmp_path: Path) -> None:
    stored = await proxy.post(asking(f"{SECRET} A"))
    path = saved(tmp_path, "r.json", asking(f"{SECRET} B"))
    code, out, _ = await samewise(proxy, "explain", path)
    assert code == 0
    assert f"the nearest entry is {stored.key}" in out
    assert "messages[0].content" in out
    assert "Rosalind" not in out
    code, out, _ = await samewise(proxy, "explain", path, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["cacheable"] is True
    assert told["nearest"]["key"] == stored.key
    code, out, _ = await samewise(proxy, "explain", path, "--full")
    assert code == 0
    assert "Rosalind" in out


async def test_explain_of_a_stored_request_says_so(proxy: Proxy, tmp_path: Path) -> None:
    stored = await proxy.post(B0)
    code, out, _ = await samewise(proxy, "explain", saved(tmp_path, "r.json", B0))
    assert code == 0
    assert str(stored.key) in out
    assert "there is an entry under this key" in out


async def test_explain_of_what_has_no_key_exits_1_with_the_reason(pair: Pair, tmp_path: Path) -> None:
    path = saved(tmp_path, "r.json", {**B0, "temperature": 1, "seed": None})
    code, out, _ = await samewise(pair.proxy, "explain", path)
    assert code == 1
    assert "unseeded" in out
    code, out, _ = await samewise(pair.proxy, "explain", path, "--json")
    assert (code, json.loads(out)["reason"]) == (1, "unseeded")


async def test_explain_with_the_clients_credential_finds_the_clients_key(pair: Pair, tmp_path: Path) -> None:
    credential = {"authorization": "Bearer sk-mine"}
    body = asking("with a credential")
    stored = await pair.proxy.post(body, headers=credential)
    words = ("explain", saved(tmp_path, "r.json", body), "--json")
    _, out, _ = await samewise(pair.proxy, *words, "--header", "Authorization: Bearer sk-mine")
    assert json.loads(out)["key"] == stored.key
    _, out, _ = await samewise(pair.proxy, *words)
    assert json.loads(out)["key"] != stored.key


async def test_diff_of_the_same_key_exits_0(pair: Pair, tmp_path: Path) -> None:
    one = saved(tmp_path, "a.json", B0)
    other = saved(tmp_path, "b.json", {**dict(reversed(B0.items())), "top_p": 1.0, "user": "u"})
    code, out, _ = await samewise(pair.proxy, "diff", one, other)
    assert (code, out.startswith("same key: ")) == (0, True)
    code, out, _ = await samewise(pair.proxy, "diff", one, other, "--json")
    assert (code, json.loads(out)["same"], json.loads(out)["differences"]) == (0, True, [])


async def test_diff_of_two_keys_exits_1_with_the_paths(pair: Pair, tmp_path: Path) -> None:
    one = saved(tmp_path, "a.json", asking(f"{SECRET} A"))
    other = saved(tmp_path, "b.json", asking(f"{SECRET} B", max_tokens=17))
    code, out, _ = await samewise(pair.proxy, "diff", one, other)
    assert code == 1
    assert f"messages[0].content: character {len(SECRET) + 1}" in out
    assert "Rosalind" not in out
    code, out, _ = await samewise(pair.proxy, "diff", one, other, "--json")
    told = json.loads(out)
    assert (code, told["same"]) == (1, False)
    assert {each["path"] for each in told["differences"]} == {"messages[0].content", "max_tokens"}
    assert told["a"] != told["b"]


async def test_commands_tell_usage_from_a_proxy_that_is_not_there(make_proxy: MakeProxy, tmp_path: Path) -> None:
    proxy = await make_proxy()
    assert (await samewise(proxy, "explain", str(tmp_path / "none.json")))[0] == 2
    assert (await samewise(proxy, "explain", saved(tmp_path, "r.json", B0), "--endpoint", "nonsense"))[0] == 2
    await proxy.stop()
    for words in (["explain"], ["diff", saved(tmp_path, "q.json", B0)]):
        code, _, err = await samewise(proxy, *words, saved(tmp_path, "r.json", B0))
        assert code == 3
        assert "samewise serve" in err


async def test_the_store_is_searched_where_the_memory_tier_has_nothing(make_proxy: MakeProxy, tmp_path: Path) -> None:
    store = {"store.url": f"sqlite:///{tmp_path / 'entries.db'}"}
    proxy = await make_proxy(settings=store)
    stored = await proxy.post(asking("x"))
    await proxy.restart()

    async def known() -> bool:
        nearest = (await explained(proxy, asking("y")))["nearest"]
        return nearest is not None and nearest["key"] == stored.key

    await until(known)

"""Is an answer what the truth allows?"""

from __future__ import annotations

import json
from typing import Any

from loadtest.chaos.load import Asked
from loadtest.chaos.world import Truth

PROXY_SAYS = frozenset({"upstream_unreachable", "upstream_timeout", "upstream_truncated"})


def judge(asked: Asked, truth: Truth, ends: list[dict[str, Any]]) -> str | None:
    """What is wrong with it, None where nothing is. `ends`: invalidations that were acknowledged."""
    upstream = truth.broken("backend", asked.began, asked.ended)
    proxy = truth.broken(f"proxy-{asked.proxy}", asked.began, asked.ended)
    if asked.left:
        return None
    if asked.failure == "hang":
        return f"it hung ({asked.status or 'no head'})"
    if asked.failure.startswith("connection"):
        return None if proxy else asked.failure
    if asked.failure == "cut" or (asked.status == 200 and asked.body.get("stream") and not _whole(asked)):
        return None if proxy or upstream else "cut, and nothing was broken"
    if asked.status != 200:
        return _refused(asked, upstream=upstream, proxy=proxy)
    if asked.got.get("x-samewise-cache") not in {"HIT", "MISS", "COALESCED", "BYPASS", "REFRESH"}:
        return "no cache status"
    if not asked.body.get("stream") and b'"error"' in asked.raw[:12]:
        return _error_body(asked, upstream)
    text = _text(asked)
    if text is None:
        return "another form than was asked for"
    return _false(asked, text, truth, ends)


def _refused(asked: Asked, *, upstream: bool, proxy: bool) -> str | None:
    try:
        error = json.loads(asked.raw)["error"]
    except (ValueError, KeyError, TypeError):
        return f"{asked.status} in another shape"
    ours = error.get("code") in PROXY_SAYS
    theirs = "mock says" in str(error.get("message"))
    if (ours or theirs) and (upstream or proxy):
        return None
    return f"{asked.status} {error.get('code')} that no backend caused: {error.get('message')}"


def _error_body(asked: Asked, upstream: bool) -> str | None:
    if asked.got["x-samewise-cache"] == "HIT":
        return "an error was kept"
    return None if upstream else "an error that no backend made"


def _whole(asked: Asked) -> bool:
    return asked.raw.rstrip().endswith(b"data: [DONE]") and b'"finish_reason":"stop"' in asked.raw.replace(b" ", b"")


def _text(asked: Asked) -> str | None:
    stream = asked.got.get("content-type", "").startswith("text/event-stream")
    if stream != bool(asked.body.get("stream")):
        return None
    if not stream:
        return str(json.loads(asked.raw)["choices"][0]["message"]["content"])
    chunks = [
        json.loads(line[6:])
        for line in asked.raw.decode().split("\n")
        if line.startswith("data: ") and line != "data: [DONE]"
    ]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def _false(asked: Asked, text: str, truth: Truth, ends: list[dict[str, Any]]) -> str | None:
    if not text.endswith("end"):
        return f"not whole: {text[-40:]!r}"
    told, _ = json.JSONDecoder().raw_decode(text)
    call = truth.calls.get(told["call"])
    if call is None or {**told, "at": call["at"]} != {**call, "call": told["call"]}:
        return f"not what a backend said: {told}"
    if told["prompt"] != asked.body["messages"][-1]["content"] or told["seed"] != asked.body["seed"]:
        return f"the answer to another question: {told}"
    if told["asker"] != asked.tenant:
        return f"another tenant's answer: {told}"
    if told["environment"] != asked.got.get("x-samewise-environment"):
        return f"made by {told['environment']}, said to be of {asked.got.get('x-samewise-environment')}"
    for end in ends:
        same = end["proxy"] == asked.proxy and end["generation"] == asked.generation
        if same and asked.began > end["at"] and call["at"] < end["asked"] and _concerns(end, asked):
            return f"served after it was ended ({end['scope']})"
    return None


def _concerns(end: dict[str, Any], asked: Asked) -> bool:
    match end["scope"]:
        case "all" | "model":
            return True
        case "tenant":
            return bool(end["value"] == asked.tenant)
        case _:
            return False

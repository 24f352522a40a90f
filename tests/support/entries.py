"""Entries for tests: whole ones by hand, and any at all by hypothesis."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import strategies as st

from samewise.core.answer import Answer, Event, Usage
from samewise.core.entry import Entry

NOW = 1_700_000_000.0


def key_of(name: str) -> str:
    """64 hex digits that belong to this name."""
    return hashlib.sha256(name.encode()).hexdigest()


def make_entry(name: str = "a", *, body: bytes | None = None, **fields: Any) -> Entry:
    """A chat answer whose key follows from `name` and whose body says the name, unless fields say otherwise."""
    values: dict[str, Any] = {
        "key": key_of(name),
        "created": NOW,
        "ttl": 3600.0,
        "began": 0,
        "tenant": "",
        "family": "chat",
        "model": "m",
        "environment": "e" * 32,
        "snapshot": "default@1",
        "request": b'{"model":"m","messages":[{"role":"user","content":"' + name.encode() + b'"}],"seed":7}',
        "answer": Answer(
            form="json",
            headers=(("content-type", "application/json"),),
            body=body if body is not None else b'{"id":"chatcmpl-1","choices":[],"echo":"' + name.encode() + b'"}',
        ),
        "usage": Usage(prompt_tokens=3, completion_tokens=4),
    }
    return Entry(**(values | fields))


_text = st.text(max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
answers = st.builds(
    Answer,
    form=st.sampled_from(["json", "sse"]),
    status=st.integers(100, 599),
    headers=st.lists(st.tuples(_text, _text), max_size=3).map(tuple),
    body=st.binary(max_size=600),
    events=st.lists(st.builds(Event, data=st.binary(max_size=300), name=st.none() | _text), max_size=4).map(tuple),
)
entries = st.builds(
    Entry,
    key=st.text("0123456789abcdef", min_size=64, max_size=64),
    created=st.floats(0, 1e11),
    ttl=st.floats(0, 1e9),
    began=st.integers(0, 2**62),
    tenant=_text,
    family=_text,
    model=_text,
    environment=_text,
    snapshot=_text,
    request=st.binary(max_size=300),
    answer=answers,
    usage=st.builds(Usage, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40)),
    tags=st.lists(_text, max_size=3).map(tuple),
    sample=st.integers(0, 2**31),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    verified=st.integers(0, 1000),
    instance=st.none() | _text,
    concurrency=st.integers(1, 1000),
    extra=st.dictionaries(_text, _json, max_size=3),
)

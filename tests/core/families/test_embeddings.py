"""Embeddings: one unit an input, asked together, spelled as they came."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.answer import Answer, Usage
from samewise.core.families.embeddings import FAMILY, largest_remainder
from samewise.core.reason import Reason
from tests.core.families.support import body


def answer(*vectors: Any, tokens: int = 10) -> dict[str, Any]:
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return {
        "id": "e",
        "object": "list",
        "model": "m",
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


@pytest.mark.parametrize(
    ("given_input", "units"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [3]], ["a", [3]]),
        ([], [[]]),
        ([{"x": 1}], [[{"x": 1}]]),
    ],
)
def test_each_input_is_a_unit(given_input: Any, units: list[Any]) -> None:
    whole = {"model": "m", "input": given_input, "dimensions": 8}
    assert FAMILY.split(whole) == [{**whole, "input": unit} for unit in units]


def test_batch_undoes_split() -> None:
    whole = {"model": "m", "input": ["a", [1, 2], "b"]}
    assert FAMILY.batch(FAMILY.split(whole)) == whole


def test_vectors_keep_their_spelling_and_usage_adds_up() -> None:
    raw = (
        b'{"object":"list","data":[{"index":1,"embedding":[0.10, 1e-3]},{"index":0,"embedding":[2.50,-0.0]}],'
        b'"model":"m","usage":{"prompt_tokens":7,"total_tokens":7,"prompt_tokens_details":null}}'
    )
    requests = FAMILY.split({"input": ["a", "bbbbb"]})
    parts = FAMILY.unbatch(Answer(form="json", body=raw), requests)
    assert b"[2.50,-0.0]" in parts[0].body
    assert b"[0.10, 1e-3]" in parts[1].body
    assert [FAMILY.failure(part, request) for part, request in zip(parts, requests, strict=True)] == [None, None]
    assert [json.loads(part.body)["data"][0]["index"] for part in parts] == [0, 0]
    joined = FAMILY.join(parts, requests)
    told = json.loads(joined.body)
    assert [(item["index"], item["embedding"]) for item in told["data"]] == [(0, [2.5, -0.0]), (1, [0.1, 0.001])]
    assert told["usage"] == {"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": None}
    assert FAMILY.join(FAMILY.unbatch(joined, requests), requests).body == joined.body


def test_an_answer_that_does_not_match_is_refused() -> None:
    requests = FAMILY.split({"input": ["a", "b"]})
    for wrong in (
        answer([1.0]),
        answer([1.0], [2.0], [3.0]),
        {"data": [{"index": 0}, {"index": 0}]},
        {"object": "list"},
    ):
        with pytest.raises(ValueError, match="embedding"):
            FAMILY.unbatch(body(wrong), requests)


@given(st.integers(0, 10**6), st.lists(st.integers(1, 10**4), min_size=1, max_size=40))
def test_shares_add_up_and_are_within_one_of_their_proportion(total: int, weights: list[int]) -> None:
    shares = largest_remainder(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1


def test_whole_and_half() -> None:
    assert FAMILY.failure(body(answer([1.0])), {"input": "a"}) is None
    assert FAMILY.failure(body(answer([1.0], [2.0])), {"input": ["a", "b"]}) is None
    assert FAMILY.failure(body(answer([1.0])), {"input": ["a", "b"]}) == Reason.TRUNCATED
    assert FAMILY.failure(body(answer([])), {"input": "a"}) == Reason.TRUNCATED
    assert FAMILY.failure(body({"error": {"message": "x"}}), {"input": "a"}) == Reason.UPSTREAM_ERROR


def test_base64_and_floats_are_the_same_vector() -> None:
    vector = [0.25, -1.5, 3.0]
    packed = base64.b64encode(struct.pack("<3f", *vector)).decode()
    floats, text = (FAMILY.outputs(body(answer(each)))[0] for each in (vector, packed))
    assert floats.vector == text.vector == tuple(vector)


def test_answers_that_are_bytes_are_not_cached() -> None:
    assert FAMILY.refusal({"input": "a", "encoding_format": "bytes"}) == Reason.MALFORMED
    assert FAMILY.refusal({"input": "a", "encoding_format": "base64"}) is None


def test_usage() -> None:
    assert FAMILY.usage(body(answer([1.0]))) == Usage(10, 0, 0)

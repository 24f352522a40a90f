"""Rerank and score: whole when every document has its number."""

from __future__ import annotations

import pytest

from samewise.core.answer import Usage
from samewise.core.families import rerank, score
from samewise.core.reason import Reason
from tests.core.families.support import body

RERANKED = {
    "id": "r",
    "model": "m",
    "usage": {"total_tokens": 9},
    "results": [
        {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
        {"index": 0, "document": {"text": "a"}, "relevance_score": 0.1},
    ],
}
SCORED = {
    "object": "list",
    "data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.25}],
    "usage": {"prompt_tokens": 4},
}


def test_a_rerank_has_as_many_results_as_asked_for() -> None:
    for request in (
        {"documents": ["a", "b"]},
        {"documents": ["a", "b"], "top_n": 0},
        {"documents": ["a", "b", "c"], "top_n": 2},
        {"documents": {"content": [1, 2]}},
    ):
        assert rerank.FAMILY.failure(body(RERANKED), request) is None
    assert rerank.FAMILY.failure(body(RERANKED), {"documents": ["a", "b", "c"]}) == Reason.TRUNCATED
    assert rerank.FAMILY.failure(body({"error": "x"}), {"documents": ["a"]}) == Reason.UPSTREAM_ERROR


def test_results_are_compared_in_the_order_of_the_documents() -> None:
    assert [(output.index, output.vector) for output in rerank.FAMILY.outputs(body(RERANKED))] == [
        (0, (0.1,)),
        (1, (0.9,)),
    ]
    assert rerank.FAMILY.usage(body(RERANKED)) == Usage(9)


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")]
)
def test_a_score_has_one_number_a_pair(names: tuple[str, str]) -> None:
    assert score.FAMILY.failure(body(SCORED), {names[0]: "q", names[1]: ["a", "b"]}) is None
    assert score.FAMILY.failure(body(SCORED), {names[0]: ["p", "q"], names[1]: ["a", "b"]}) is None
    assert score.FAMILY.failure(body(SCORED), {names[0]: "q", names[1]: ["a", "b", "c"]}) == Reason.TRUNCATED
    assert [output.vector for output in score.FAMILY.outputs(body(SCORED))] == [(0.5,), (0.25,)]

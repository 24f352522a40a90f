"""`/v1/rerank`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samewise.core.answer import Answer
from samewise.core.families import alone, choices, scores, wire
from samewise.core.families.contract import Output
from samewise.core.reason import Reason


class Rerank:
    """A query and documents in, the documents by relevance out."""

    name = "rerank"
    path = "/v1/rerank"
    delivery = scores.DELIVERY
    sampled = False
    seeded = False
    together = False

    split = staticmethod(alone.split)
    batch = staticmethod(alone.batch)
    unbatch = staticmethod(alone.unbatch)
    join = staticmethod(alone.join)
    shift = staticmethod(alone.shift)
    closing = staticmethod(alone.closing)
    upstream_stream = staticmethod(alone.no_stream)
    ends = staticmethod(alone.never_ends)
    cut = staticmethod(choices.cut)
    noise = staticmethod(wire.is_noise)
    visible = staticmethod(alone.all_visible)
    to_events = staticmethod(alone.no_events)
    to_body = staticmethod(alone.body)
    usage = staticmethod(scores.usage)

    def refusal(self, body: Mapping[str, Any]) -> Reason | None:
        """Remote media in the query or a document."""
        return scores.refusal(body, ("query", "documents"))

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """An error, or a result too few or too many: `top_n` of the documents, all where it is 0 or absent."""
        documents = scores.length(request.get("documents"))
        return scores.failure(
            answer, "results", "relevance_score", min(documents, wire.number(request.get("top_n")) or documents)
        )

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """One a result, numbered as the documents were."""
        return scores.outputs(answer, "results", "relevance_score")


FAMILY = Rerank()

"""`/v1/score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samewise.core.answer import Answer
from samewise.core.families import alone, choices, scores, wire
from samewise.core.families.contract import Output
from samewise.core.reason import Reason

_SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))


class Score:
    """Pairs of texts in, a number each out. A single one on the first side is paired with all of the second."""

    name = "score"
    path = "/v1/score"
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
        """Remote media on either side."""
        return scores.refusal(body, tuple(name for side in _SIDES for name in side))

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """An error, or a score too few or too many."""
        sides = [side for side in _SIDES if all(name in request for name in side)]
        counts = [max(map(scores.length, map(request.get, side))) for side in sides]
        return scores.failure(answer, "data", "score", counts[0] if counts else 1)

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """One a pair."""
        return scores.outputs(answer, "data", "score")


FAMILY = Score()

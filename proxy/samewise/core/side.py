"""What a canary chooses its side by: the question itself, however it is sampled and wherever it travels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samewise.core import canonical
from samewise.core.dialects import member
from samewise.core.families.contract import Family
from samewise.core.sampling import FIELDS

_BESIDE = frozenset({"cache", "model", "max_tokens", "max_completion_tokens"})


def question(family: Family, body: Mapping[str, Any]) -> bytes:
    """The prompt and all that shapes it (tools, formats, unknown members), in one spelling.

    Left out is what a profile may set (all samples of one question are on one side), delivery, the model (told
    beside it) and the order of top-level members.
    """
    beside = _BESIDE | family.delivery | {member(family.name, name) for name in FIELDS}
    return canonical.encode({name: body[name] for name in sorted(body) if name not in beside})

"""The side of a canary hangs on the question alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.families.registry import BY_NAME, FAMILIES
from samewise.core.sampling import FIELDS
from samewise.core.side import question

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": []}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
def test_sampling_delivery_and_order_leave_it_alone(family: Any) -> None:
    same = question(family, BODY)
    for name in {*FIELDS, *family.delivery, "cache", "max_completion_tokens"} - BODY.keys():
        if (family.name, name) not in {("messages", "stop"), ("responses", "max_tokens")}:
            assert question(family, {**BODY, name: 1}) == same, name
    assert question(family, dict(reversed(BODY.items()))) == same
    assert question(family, {**BODY, "model": "other"}) == same


@given(st.text(min_size=1).filter(lambda text: text != "hi"))
def test_another_prompt_is_another_question(text: str) -> None:
    chat = BY_NAME["chat"]
    changed = {**BODY, "messages": [{"role": "user", "content": text}]}
    assert question(chat, changed) != question(chat, BODY)


@pytest.mark.parametrize("name", ["tool_choice", "response_format", "chat_template_kwargs", "zz_future"])
def test_what_shapes_the_prompt_counts(name: str) -> None:
    assert question(BY_NAME["chat"], {**BODY, name: {"a": 1}}) != question(BY_NAME["chat"], BODY)

"""One spelling for every JSON value, whether it is written at once or in steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samewise.core import canonical
from tests.core.planning import B0, VLLM, planned

_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
_LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
_JSON = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(_TEXT, inner, max_size=4), max_leaves=30
)


@settings(deadline=None)
@given(value=_JSON, sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 4)))
def test_in_steps_of_any_size_it_is_the_same_bytes(value: Any, sizes: tuple[int, int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("_STEP", "_ITEMS", "_SHORT"), sizes, strict=True):
            patch.setattr(canonical, name, size)
        assert canonical.encode_large(value) == canonical.encode(value)


@pytest.mark.parametrize(
    "member",
    [
        {"messages": [{"role": "user", "content": 'a "quoted"\n\ud83d\ude00 \udc00 text é ' * 40_000}]},
        {"messages": [{"role": "user", "content": f"turn {turn}"} for turn in range(20_000)]},
        {"prompt": list(range(200_000))},
        {"prompt": "x", "zz": [[1.5, None, True, {}], [], ["y" * 70_000, 2**80]] * 5},
    ],
    ids=["one long text", "many turns", "tokens", "nested"],
)
def test_a_long_prompt_has_the_key_that_it_would_have_if_it_were_written_at_once(
    member: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {**B0, **member}
    long = planned(body, environment=VLLM).units[0]
    assert len(long.preimage) > canonical.LARGE
    monkeypatch.setattr(canonical, "LARGE", 1 << 40)
    at_once = planned(body, environment=VLLM).units[0]
    assert (long.key, long.preimage) == (at_once.key, at_once.preimage)

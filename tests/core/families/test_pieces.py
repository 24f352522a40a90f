"""A text is cut where a reader would cut it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.families.pieces import MOST, pieces

CLUSTERS = [
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "🇩🇪",
    "e\u0301",
    "กำ",
    "각",
    "\r\n",
    "क्ष",
    "❤️",
    "🏴\U000e0067\U000e0062\U000e007f",
    "a",
    " ",
    "\n",
]


@given(st.text())
def test_pieces_join_to_the_text(text: str) -> None:
    found = pieces(text)
    assert "".join(found) == text
    assert all(found)
    assert len(found) <= MOST + 1


@given(st.text("abc xyz", min_size=2))
def test_two_characters_make_two_pieces(text: str) -> None:
    assert len(pieces(text)) >= 2


@given(st.lists(st.sampled_from(CLUSTERS), min_size=2, max_size=80))
def test_no_cluster_is_cut(clusters: list[str]) -> None:
    at, borders = 0, {0}
    for cluster in clusters:
        at += len(cluster)
        borders.add(at)
    place = 0
    for piece in pieces("".join(clusters)):
        place += len(piece)
        assert place in borders


@pytest.mark.parametrize("cluster", [cluster for cluster in CLUSTERS if len(cluster) > 1])
def test_one_cluster_is_one_piece(cluster: str) -> None:
    assert pieces(cluster) == [cluster]


def test_two_flags_are_cut_between() -> None:
    assert pieces("🇩🇪🇫🇷") == ["🇩🇪", "🇫🇷"]

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from samewise_backend.text import Detokeniser, Output, token_text


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model / "tokenizer.json"))


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_text_comes_out_in_pieces_that_are_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text).ids
    stream = Detokeniser(tokenizer, [10])
    pieces = [stream.add(token) for token in tokens]
    if "\N{REPLACEMENT CHARACTER}" not in text and "<|" not in text:
        assert "".join(pieces) == text
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_special_tokens_show_only_on_request(tokenizer: Tokenizer) -> None:
    assert Detokeniser(tokenizer, [10]).add(1) == ""
    assert Detokeniser(tokenizer, [10], skip_special=False).add(1) == "<|end|>"


@settings(max_examples=200)
@given(text=st.text("ab", min_size=1, max_size=30), cuts=st.data())
def test_a_stop_string_is_found_at_every_split_and_never_shown(text: str, cuts: st.DataObject) -> None:
    output, shown, stopped = Output(["abba"]), "", None
    rest = text
    while rest and stopped is None:
        size = cuts.draw(st.integers(1, len(rest)))
        stopped = output.add(rest[:size])
        rest = rest[size:]
        shown += output.take(finished=stopped is not None or not rest)
    expected, mark, _ = text.partition("abba")
    assert shown == expected
    assert (stopped == "abba") is bool(mark)


def test_the_stop_string_is_part_of_the_text_on_request() -> None:
    output = Output(["END"], include=True)
    assert output.add("one END two") == "END"
    assert output.take(finished=True) == "one END"


def test_stop_strings_wait_for_the_minimum() -> None:
    output = Output(["x"], min_tokens=2)
    assert output.add("x") is None
    assert output.add("x") is None
    assert output.add("yx") == "x"
    assert output.text == "xxy"


def test_a_part_of_a_character_has_no_text_of_its_own(tokenizer: Tokenizer) -> None:
    parts = tokenizer.encode("\N{GRINNING FACE}").ids
    assert len(parts) > 1
    assert token_text(tokenizer, parts[0]) == ""

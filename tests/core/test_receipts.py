"""A log of receipts shows whatever is done to it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samewise.core.receipts import Line, Receipt, append, check, parse
from samewise.pipeline.signing import Signer, signer

SIGNER = signer("a secret")
SEED = "ed25519:" + "07" * 32
words = st.sampled_from(["", "a", "hit", "\u00e4\U0001f600", '"\\\n'])
receipts = st.builds(
    Receipt,
    id=words,
    at=st.floats(0, 1e11),
    cache=words,
    family=words,
    model=words,
    tenant=words,
    key=st.none() | words,
    environment=st.none() | words,
    snapshot=st.none() | words,
    request=words,
    output=st.none() | words,
)


def log(written: list[Receipt], by: Signer = SIGNER) -> list[bytes]:
    lines: list[bytes] = []
    last: Line | None = None
    for receipt in written:
        last = append(last, receipt, by.sign)
        lines.append(last.encoded())
    return lines


@settings(deadline=None, max_examples=60)
@given(st.lists(receipts, max_size=6))
def test_what_was_written_is_whole_and_read_as_it_was(written: list[Receipt]) -> None:
    lines = log(written)
    found = check(lines, SIGNER.verify)
    assert found.whole
    assert found.lines == len(written)
    assert [line.receipt for raw in lines if (line := parse(raw)) is not None] == written


@settings(deadline=None, max_examples=60)
@given(st.lists(receipts, min_size=2, max_size=5), st.data())
def test_a_line_that_is_changed_left_out_put_in_or_moved_is_found(written: list[Receipt], data: st.DataObject) -> None:
    lines = log(written)
    place = data.draw(st.integers(0, len(lines) - 2))
    what = data.draw(st.sampled_from(["change", "leave out", "put in", "move"]))
    match what:
        case "change":
            raw = bytearray(lines[place])
            at = data.draw(st.integers(0, len(raw) - 2))
            raw[at] ^= 1
            changed = parse(bytes(raw))
            if changed is not None and changed == parse(lines[place]):
                return
            lines[place] = bytes(raw)
        case "leave out":
            del lines[place]
        case "put in":
            lines.insert(place + 1, lines[place])
        case "move":
            lines[place], lines[place + 1] = lines[place + 1], lines[place]
    found = check(lines, SIGNER.verify)
    assert not found.whole
    assert found.broken is not None
    assert found.broken.place in {place + 1, place + 2}


@settings(deadline=None, max_examples=60)
@given(st.lists(receipts, min_size=1, max_size=3))
def test_who_lacks_the_secret_can_write_no_log(written: list[Receipt]) -> None:
    found = check(log(written, signer("another")), SIGNER.verify)
    assert found.broken is not None
    assert found.broken.place == 1


def test_a_log_that_lost_its_end_has_another_head() -> None:
    receipt = Receipt(
        id="a", at=1.0, cache="hit", family="chat", model="m", tenant="", key=None, environment=None, snapshot=None,
        request="", output=None,
    )  # fmt: skip
    lines = log([receipt] * 3)
    whole, cut = check(lines, SIGNER.verify), check(lines[:2], SIGNER.verify)
    assert cut.whole
    assert cut.head != whole.head


def test_ed25519_is_checked_with_the_public_key_alone() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    by = signer(SEED)
    data = hashlib.sha256(b"x").hexdigest().encode()
    signature = by.sign(data)
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(by.public))
    public.verify(bytes.fromhex(signature.partition(":")[2]), data)
    assert by.verify(data, signature)
    assert not by.verify(data + b"y", signature)
    assert not by.verify(data, "ed25519:zz")


@pytest.mark.parametrize("secret", ["ed25519:", "ed25519:07", "ed25519:" + "zz" * 32])
def test_a_private_key_that_is_none_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        signer(secret)

"""An entry comes back as it was written down, under its own key, or not at all."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from samewise.core import codec as plain
from samewise.core.entry import FORMAT, Entry, EntryRefused
from samewise.store.codec import Codec
from samewise.store.seal import AesSealer
from tests.support.entries import NOW, entries, key_of, make_entry

OPEN = Codec()
SEALED = Codec(secrets=("correct horse battery staple",))
both = pytest.mark.parametrize("codec", [OPEN, SEALED], ids=["open", "sealed"])


def refused(codec: Codec, key: str, data: bytes) -> str:
    with pytest.raises(EntryRefused) as caught:
        codec.decode(key, data)
    return caught.value.kind


def forged(key: str, flags: int, payload: bytes, version: int = FORMAT) -> bytes:
    """What someone who may write to the store, but has no secret, can make: the checksum is right."""
    head = b"SW" + bytes((version, flags))
    name = key.encode()
    return head + hashlib.sha256(head + len(name).to_bytes(4, "big") + name + payload).digest() + payload


@both
@given(entry=entries)
def test_an_entry_comes_back_equal(codec: Codec, entry: Entry) -> None:
    assert codec.decode(entry.key, codec.encode(entry)) == entry


@both
@given(entry=entries, other=st.text("0123456789abcdef", min_size=64, max_size=64))
def test_under_another_key_it_is_refused(codec: Codec, entry: Entry, other: str) -> None:
    if other != entry.key:
        assert refused(codec, other, codec.encode(entry)) == "checksum"


@both
@pytest.mark.parametrize("size", [10, 5000])
def test_every_single_flipped_bit_is_refused(codec: Codec, size: int) -> None:
    entry = make_entry("a", body=b"x" * size)
    data = codec.encode(entry)
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        refused(codec, entry.key, bytes(flipped))


@both
@given(entry=entries, cut=st.integers(min_value=1), more=st.binary(min_size=1, max_size=9))
def test_cut_or_lengthened_it_is_refused(codec: Codec, entry: Entry, cut: int, more: bytes) -> None:
    data = codec.encode(entry)
    refused(codec, entry.key, data[: -(cut % len(data)) or None] if cut % len(data) else b"")
    refused(codec, entry.key, data + more)


@both
@given(data=st.binary(max_size=200))
@example(b"")
@example(b"SW")
@example(b"SW\x01\x00" + bytes(32))
def test_any_bytes_at_all_are_refused_and_never_crash(codec: Codec, data: bytes) -> None:
    refused(codec, key_of("a"), data)


@given(payload=st.binary(max_size=300), flags=st.integers(0, 255))
@example(payload=b"\x93" * 290, flags=0)
def test_bytes_with_a_right_checksum_are_refused_all_the_same(payload: bytes, flags: int) -> None:
    refused(OPEN, key_of("a"), forged(key_of("a"), flags, payload))
    refused(SEALED, key_of("a"), forged(key_of("a"), flags, payload))


def test_deep_nesting_is_refused() -> None:
    entry = msgspec.to_builtins(make_entry("a"), builtin_types=(bytes,))
    payload = msgspec.msgpack.encode(entry | {"extra": {"deep": None}})
    payload = payload.replace(b"\xa4deep\xc0", b"\xa4deep" + b"\x91" * 100_000 + b"\xc0")
    assert refused(OPEN, key_of("a"), forged(key_of("a"), 0, payload)) == "content"


def test_an_entry_that_names_another_key_inside_is_refused() -> None:
    payload = msgspec.msgpack.encode(make_entry("b"))
    assert refused(OPEN, key_of("a"), forged(key_of("a"), 0, payload)) == "key"


@pytest.mark.parametrize("version", [0, FORMAT + 1, 255])
def test_another_format_version_is_refused_by_name(version: int) -> None:
    payload = msgspec.msgpack.encode(make_entry("a"))
    assert refused(OPEN, key_of("a"), forged(key_of("a"), 0, payload, version)) == "version"


def test_members_of_a_later_release_are_ignored_and_missing_ones_take_their_defaults() -> None:
    fields = msgspec.to_builtins(make_entry("a"), builtin_types=(bytes,))
    del fields["verified"]
    payload = msgspec.msgpack.encode(fields | {"zz_future": [1, 2]})
    assert OPEN.decode(key_of("a"), forged(key_of("a"), 0, payload)) == make_entry("a")


def test_a_repetitive_answer_is_compressed_and_a_random_one_does_not_grow() -> None:
    repetitive = make_entry("a", body=b"the same again " * 1000)
    assert len(OPEN.encode(repetitive)) < 1500
    noise = make_entry("a", body=hashlib.shake_256(b"noise").digest(50_000))
    assert len(OPEN.encode(noise)) <= len(plain.encode(noise))


def test_a_bomb_is_refused_before_it_is_expanded() -> None:
    small = Codec(limit=1 << 20)
    bomb = zstandard.compress(bytes(1 << 30))
    assert len(bomb) < 1 << 17
    assert refused(small, key_of("a"), forged(key_of("a"), plain.COMPRESSED, bomb)) == "compressed"
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 22))
    assert refused(small, key_of("a"), forged(key_of("a"), plain.COMPRESSED, unsized)) == "compressed"


def test_sealed_bytes_show_nothing_of_prompt_and_answer() -> None:
    entry = make_entry("a", body=b"the patient's name", request=b"what is the name")
    assert b"patient" in plain.encode(entry)
    data = plain.encode(entry, sealer=AesSealer(["secret"]))
    assert b"patient" not in data
    assert b"what is" not in data


def test_without_a_secret_a_sealed_entry_is_refused_and_with_one_an_open_entry_is() -> None:
    entry = make_entry("a")
    assert refused(OPEN, entry.key, SEALED.encode(entry)) == "sealed"
    assert refused(SEALED, entry.key, OPEN.encode(entry)) == "unsealed"


def test_another_secret_does_not_open_it_and_rotation_does() -> None:
    entry = make_entry("a")
    old, new, rotated = Codec(secrets=("old",)), Codec(secrets=("new",)), Codec(secrets=("new", "old"))
    assert refused(new, entry.key, old.encode(entry)) == "sealed"
    assert rotated.decode(entry.key, old.encode(entry)) == entry
    assert new.decode(entry.key, rotated.encode(entry)) == entry
    assert refused(old, entry.key, rotated.encode(entry)) == "sealed"


def test_a_sealed_entry_moved_to_another_key_with_a_new_checksum_is_refused() -> None:
    data = SEALED.encode(make_entry("a"))
    moved = forged(key_of("b"), data[3], data[plain.HEADER :])
    assert refused(SEALED, key_of("b"), moved) == "sealed"


def test_two_sealings_of_one_entry_differ() -> None:
    assert SEALED.encode(make_entry("a")) != SEALED.encode(make_entry("a"))


def test_an_empty_secret_is_no_secret() -> None:
    with pytest.raises(ValueError, match="empty"):
        Codec(secrets=("",))


def test_age_is_never_negative_and_freshness_ends_at_the_ttl() -> None:
    entry = make_entry("a", ttl=10.0)
    assert entry.age(NOW - 5) == 0
    assert entry.age(NOW + 4) == 4
    assert entry.fresh(NOW + 9.999)
    assert not entry.fresh(NOW + 10)

import os
import time
from pathlib import Path

import pytest

from samewise_backend.digests import Digests, Unstable, observe, text_digest


def _aged(path: Path, content: bytes) -> Path:
    """A file that was written long ago, as far as the modification time says."""
    path.write_bytes(content)
    long_ago = time.time_ns() - 10**12
    os.utime(path, ns=(long_ago, long_ago))
    return path


def test_a_group_is_known_by_names_and_contents_not_by_where_it_lies(tmp_path: Path) -> None:
    digests = Digests()
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a").write_bytes(b"1")
        (tmp_path / place / "b").write_bytes(b"2")
    here, there = (observe(tmp_path / place, (tmp_path / place).iterdir()) for place in ("here", "there"))
    assert digests.group(here) == digests.group(there)
    (tmp_path / "there" / "b").rename(tmp_path / "there" / "c")
    renamed = observe(tmp_path / "there", (tmp_path / "there").iterdir())
    assert digests.group(renamed) != digests.group(here)


def test_no_file_has_a_digest_of_its_own(tmp_path: Path) -> None:
    assert Digests().group(()) == "none"
    (tmp_path / "empty").touch()
    assert Digests().group(observe(tmp_path, [tmp_path / "empty"])) != "none"


def test_a_file_that_was_replaced_with_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    file = _aged(tmp_path / "w", b"one")
    before = observe(tmp_path, [file])
    stamp = file.stat().st_mtime_ns
    while file.stat().st_ctime_ns == before[0].changed:  # until the file system's clock has moved on
        file.write_bytes(b"two")
        os.utime(file, ns=(stamp, stamp))
    after = observe(tmp_path, [file])
    assert (before[0].size, before[0].modified) == (after[0].size, after[0].modified)
    assert before != after
    assert before[0].key() != after[0].key()


def test_a_file_that_is_not_what_was_observed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w"
    file.write_bytes(b"one")
    before = observe(tmp_path, [file])
    file.write_bytes(b"longer")
    with pytest.raises(Unstable):
        Digests().group(before)


def test_what_is_remembered_is_not_read_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    snapshot = observe(tmp_path, [_aged(tmp_path / "w", b"weights")])
    (cache / snapshot[0].key()).write_text("0" * 64)
    assert Digests(cache).contents(snapshot) == ["0" * 64]
    assert Digests(cache).contents(snapshot) != Digests().contents(snapshot)


@pytest.mark.parametrize("damage", ["", "zz", "0" * 63, "Z" * 64])
def test_a_damaged_memory_is_read_past(tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    snapshot = observe(tmp_path, [_aged(tmp_path / "w", b"weights")])
    (cache / snapshot[0].key()).write_text(damage)
    assert Digests(cache).group(snapshot) == Digests().group(snapshot)


def test_what_changed_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"weights")
    cache = tmp_path / "cache"
    Digests(cache).group(observe(tmp_path, [fresh]))
    assert not cache.exists() or not list(cache.iterdir())


def test_what_was_settled_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled = tmp_path / "settled"
    settled.write_bytes(b"weights")
    snapshot = observe(tmp_path, [settled])
    later = time.time_ns() + 10**10
    monkeypatch.setattr("samewise_backend.digests.time.time_ns", lambda: later)
    cache = tmp_path / "cache"
    digest = Digests(cache).group(snapshot)
    assert [path.name for path in cache.iterdir()] == [snapshot[0].key()]
    assert Digests(cache).group(snapshot) == digest


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    file = _aged(tmp_path / "w", b"weights")
    snapshot = observe(tmp_path, [file])
    assert Digests(blocked / "cache").group(snapshot) == Digests().group(snapshot)


def test_a_link_is_known_by_what_it_leads_to(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode())
    link = tmp_path / "link"
    link.symlink_to("one")
    before = observe(tmp_path, [link])
    link.unlink()
    link.symlink_to("two")
    assert observe(tmp_path, [link]) != before


def test_a_text_has_the_digest_of_its_utf8() -> None:
    assert text_digest("ä") == "sha256:33e6d73fee82904c8d7afb78de1154d1e8dc2a0edb08120e63df5b9385c2d9cc"

"""Which content codings are taken off, and for whom."""

from __future__ import annotations

import pytest

from samewise.upstream.decode import of_strangers


@pytest.mark.parametrize(
    ("zstd", "taken"), [((1, 5, 7), False), ((1, 6, 0), True), ((1, 6, 1), True), ((2, 0, 0), True)]
)
def test_zstd_of_strangers_is_taken_off_by_a_library_that_shows_no_memory_alone(
    zstd: tuple[int, ...], taken: bool
) -> None:
    assert ("zstd" in of_strangers(zstd)) is taken
    assert {"gzip", "deflate", "br"} < of_strangers(zstd)

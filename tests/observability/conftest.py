"""A mock backend and the real proxy before it."""

from __future__ import annotations

from tests.cases.conftest import make_proxy, mb, proxy

__all__ = ["make_proxy", "mb", "proxy"]

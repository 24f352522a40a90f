"""Commands that talk to a running proxy over its admin port. Each is imported when it is called."""

from __future__ import annotations

from samewise.cli.lazy import Lazy, commands

__all__ = ["Lazy", "commands"]

"""How long tests wait for what must happen."""

from __future__ import annotations

ENOUGH = 60.0
"""Seconds, more than the busiest machine needs: only a fault lets them pass."""

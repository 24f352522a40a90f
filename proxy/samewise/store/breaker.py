"""A circuit breaker: after some failures in a row nobody asks any more, but for one probe now and then."""

from __future__ import annotations

from samewise.ports import Clock


class Breaker:
    """closed -> (`failures` in a row) -> open -> (a probe succeeds) -> closed.

    While open, `due` is true once at the end of each delay, which doubles from `first` to `longest`
    seconds: with the defaults at most one probe a second, and none later than 4 s after the last.
    """

    def __init__(self, clock: Clock, *, failures: int = 5, first: float = 1.0, longest: float = 4.0) -> None:
        self._clock = clock
        self._threshold = failures
        self._first = first
        self._longest = longest
        self._failures = 0
        self._delay = first
        self._next: float | None = None
        self._probing = False

    @property
    def closed(self) -> bool:
        """True where commands may be sent."""
        return self._next is None

    def due(self) -> bool:
        """True where the caller, and nobody else, may send a probe; it must tell how that went."""
        if self._next is None or self._probing or self._clock.monotonic() < self._next:
            return False
        self._probing = True
        return True

    def wait(self) -> float:
        """Seconds until a probe is due; 0 while closed."""
        return 0.0 if self._next is None else max(0.0, self._next - self._clock.monotonic())

    def success(self) -> None:
        """A command was answered. While open, only a probe's answer counts."""
        if self._next is not None and not self._probing:
            return
        self._failures = 0
        self._delay = self._first
        self._next = None
        self._probing = False

    def failure(self) -> bool:
        """A command was not answered. True where this opened the circuit."""
        if self._next is not None:
            if self._probing:
                self._probing = False
                self._delay = min(self._delay * 2, self._longest)
                self._next = self._clock.monotonic() + self._delay
            return False
        self._failures += 1
        if self._failures < self._threshold:
            return False
        self._next = self._clock.monotonic() + self._delay
        return True

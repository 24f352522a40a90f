"""Whether an upstream is worth asking: from looking at it, and from how requests to it went."""

from __future__ import annotations

from samewise.ports import Clock, UpstreamFailed

_STRIKES = 3
"""Failures in a row, of requests or of looks that ran out of time, that count as one that was refused."""
_FIRST_BAN = 1.0
_LONGEST_BAN = 30.0


class Health:
    """A refused connection, or `/health` with 503, ends it at once; the next good look restores it.

    Requests that fail in a row although looks go well put it out for a while (1 s, doubling to 30 s);
    it comes back by itself, and a request that goes well clears the record.
    """

    def __init__(self, clock: Clock) -> None:
        self.error = ""
        self._clock = clock
        self._up = False
        self._missed = 0
        self._strikes = 0
        self._bans = 0
        self._banned_until = 0.0
        self._since = clock.monotonic()

    @property
    def since(self) -> float:
        """When it became good, in monotonic seconds."""
        return max(self._since, self._banned_until)

    def good(self) -> bool:
        """True where requests may come."""
        return self._up and self._clock.monotonic() >= self._banned_until

    def looked(self, *, ready: bool) -> None:
        """It answered a look; `ready` is False where it says that it can't serve."""
        self._missed = 0
        if ready and not self._up:
            self._since = self._clock.monotonic()
        self._up = ready
        if not ready:
            self.error = "/health answers 503"
        elif self._clock.monotonic() >= self._banned_until:
            self.error = ""

    def unseen(self, failure: UpstreamFailed) -> None:
        """It did not answer a look. A server too busy to answer in time is given some more."""
        self._missed += 1
        if failure.kind == "unreachable" or self._missed >= _STRIKES or not self._up:
            self._up = False
            self.error = str(failure)

    def succeeded(self) -> None:
        """A request to it came to its end."""
        self._strikes = 0
        self._bans = 0

    def failed(self, failure: UpstreamFailed) -> None:
        """A request to it failed."""
        self.error = str(failure)
        if failure.kind == "unreachable":
            self._up = False
            return
        self._strikes += 1
        if self._strikes >= _STRIKES:
            self._strikes = 0
            self._banned_until = self._clock.monotonic() + min(_LONGEST_BAN, _FIRST_BAN * 2**self._bans)
            self._bans += 1

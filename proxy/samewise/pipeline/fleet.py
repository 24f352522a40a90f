"""Upstreams that operators add, drain and remove while the proxies run: the journal's word over the settings'."""

from __future__ import annotations

from samewise.core.address import base_url
from samewise.ports import ControlEvent, Roster

ADD, DRAIN, REMOVE = "upstream-add", "upstream-drain", "upstream-remove"
KINDS = frozenset({ADD, DRAIN, REMOVE})


class Fleet:
    """Carries out what the journal says of upstreams. The last word on a URL holds, also after a restart."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    async def apply(self, happened: ControlEvent) -> None:
        """Take in one event of the journal; its subject is a base URL. What is so already stays as it is.

        Raises ValueError where the subject is none.
        """
        url = base_url(happened.subject)
        match happened.kind:
            case "upstream-add":
                await self._roster.add(url)
            case "upstream-drain":
                self._roster.drain(url)
            case "upstream-remove":
                self._roster.remove(url)
            case _:
                pass

"""What a command says, kept in a page of the documentation between two marks that name the command."""

from __future__ import annotations

END = "<!-- end -->"


def renewed(page: str, command: str, told: str) -> str:
    """The page with this text between its marks. Raises ValueError where it has none."""
    begin = f"<!-- {command} -->"
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no {begin} ... {END}")
    return f"{before}{begin}\n\n{told}\n\n{END}{after}"

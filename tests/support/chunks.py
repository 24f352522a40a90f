"""Chunks of a chat stream, as a test wants them."""

from __future__ import annotations

from typing import Any

from tests.support.mock_backend import DONE, sse

BASE = {"id": "id-chunk", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 18, "total_tokens": 27}


def choice(delta: dict[str, Any] | str, *, index: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One choice of a chunk; a text is its content."""
    given = {"content": delta} if isinstance(delta, str) else delta
    return {"index": index, "delta": given, "finish_reason": finish, **more}


def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
    """One chunk as an event."""
    return sse({**BASE, "choices": list(choices), **more})


def text_stream(*words: str, finish: str | None = "stop", done: bool = True) -> list[bytes]:
    """A whole stream that says these words; without its finish or its `[DONE]` where told so."""
    pieces = [chunk(choice({"role": "assistant", "content": ""})), *(chunk(choice(word)) for word in words)]
    if finish is not None:
        pieces.append(chunk(choice({}, finish=finish)))
    return [*pieces, DONE] if done else pieces

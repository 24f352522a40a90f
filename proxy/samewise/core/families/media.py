"""Content that lies elsewhere: a URL that anyone may change, a file that the server keeps."""

from __future__ import annotations

from typing import Any

from samewise.core.reason import Reason

_TEXT = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning_text", "summary_text"})
_CARRIERS = frozenset({"image", "audio", "video", "input_image", "input_audio", "input_video", "document", "file"})
_REFERENCES = frozenset({"file_id", "container_id", "vector_store_id"})


def refusal(content: Any) -> Reason | None:
    """Why this content can't be described by its bytes; None where it is all there.

    `content` is what a message or an input item carries: a text, a part, or a list of either. A data URL
    is content. A part whose medium is absent and named by a `uuid` refers to what the server remembers.
    """
    if isinstance(content, list):
        return next((reason for part in content if (reason := refusal(part)) is not None), None)
    if not isinstance(content, dict) or content.get("type") in _TEXT:
        return None
    if content.get("type") == "container_upload":
        return Reason.STATEFUL
    for name, value in content.items():
        reason = _member(name, value)
        if reason is not None:
            return reason
        if value is None and content.get("uuid") and _locates(name):
            return Reason.STATEFUL
    return None


def _member(name: str, value: Any) -> Reason | None:
    if name in _REFERENCES:
        return Reason.STATEFUL if value else None
    if isinstance(value, str):
        if _locates(name):
            return None if _is_data(value) else Reason.REMOTE_MEDIA
        return Reason.REMOTE_MEDIA if name in _CARRIERS and _is_elsewhere(value) else None
    if isinstance(value, list) and name in _CARRIERS:
        remote = any(isinstance(item, str) and _is_elsewhere(item) for item in value)
        return Reason.REMOTE_MEDIA if remote else refusal(value)
    if isinstance(value, dict) and (_locates(name) or name in _CARRIERS or name in ("source", "output", "content")):
        return refusal(value)
    if isinstance(value, list) and name in ("content", "output", "source"):
        return refusal(value)
    return None


def _locates(name: str) -> bool:
    return name in ("url", "uri") or name.endswith(("_url", "_uri"))


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def _is_elsewhere(value: str) -> bool:
    return "://" in value[:32] and not _is_data(value)

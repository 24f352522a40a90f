"""Media that lie elsewhere are found in every spelling; data URLs are content."""

from __future__ import annotations

from typing import Any

import pytest

from samewise.core.families import chat, embeddings, messages, rerank, responses, score
from samewise.core.reason import Reason

DATA = "data:image/png;base64,AAAA"
URL = "https://example.org/cat.png"


def chat_body(part: Any) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": URL}, part]},
        ]
    }


def spelled(url: str) -> list[Any]:
    return [
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": url},
        {"image_url": url},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "image", "image": url},
        {"type": "video", "video": [url, url]},
        {"type": "input_audio", "input_audio": {"url": url}},
        {"type": "file", "file": {"file_url": url}},
    ]


@pytest.mark.parametrize("part", spelled(URL))
def test_a_url_in_a_chat_is_remote(part: Any) -> None:
    assert chat.FAMILY.refusal(chat_body(part)) == Reason.REMOTE_MEDIA


@pytest.mark.parametrize("part", [*spelled(DATA), *spelled("DATA:audio/wav;base64,AA")])
def test_a_data_url_in_a_chat_is_content(part: Any) -> None:
    assert chat.FAMILY.refusal(chat_body(part)) is None


@pytest.mark.parametrize("url", ["file:///etc/passwd", "s3://b/k", "http://x", "//x/y", "/local.png"])
def test_any_other_scheme_is_remote(url: str) -> None:
    assert chat.FAMILY.refusal(chat_body({"type": "image_url", "image_url": {"url": url}})) == Reason.REMOTE_MEDIA


def test_base64_content_is_content() -> None:
    assert (
        chat.FAMILY.refusal(chat_body({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}))
        is None
    )
    assert chat.FAMILY.refusal(chat_body({"type": "file", "file": {"file_data": DATA, "filename": "a.pdf"}})) is None


def test_media_that_the_server_remembers_are_stateful() -> None:
    assert chat.FAMILY.refusal(chat_body({"type": "image_url", "image_url": None, "uuid": "u"})) == Reason.STATEFUL


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"role": "user", "content": [{"type": "input_image", "image_url": URL}]}, Reason.REMOTE_MEDIA),
        ({"role": "user", "content": [{"type": "input_image", "image_url": DATA}]}, None),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, Reason.STATEFUL),
        ({"role": "user", "content": [{"type": "input_file", "file_url": URL}]}, Reason.REMOTE_MEDIA),
        ({"type": "function_call_output", "output": [{"type": "input_image", "image_url": URL}]}, Reason.REMOTE_MEDIA),
        ({"type": "computer_call_output", "output": {"type": "x", "image_url": URL}}, Reason.REMOTE_MEDIA),
        ({"type": "function_call_output", "output": URL}, None),
        ({"type": "item_reference", "id": "i"}, Reason.STATEFUL),
        ({"role": "user", "content": URL}, None),
    ],
)
def test_input_items_of_responses(item: Any, reason: Reason | None) -> None:
    assert responses.FAMILY.refusal({"input": [item]}) == reason


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"type": "image", "source": {"type": "url", "url": URL}}, Reason.REMOTE_MEDIA),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}, None),
        ({"type": "document", "source": {"type": "file", "file_id": "f"}}, Reason.STATEFUL),
        ({"type": "document", "source": {"type": "text", "data": URL}}, None),
        ({"type": "container_upload", "file_id": "f"}, Reason.STATEFUL),
        (
            {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]},
            Reason.REMOTE_MEDIA,
        ),
        ({"type": "tool_result", "content": URL}, None),
    ],
)
def test_blocks_of_messages(block: Any, reason: Reason | None) -> None:
    assert messages.FAMILY.refusal({"messages": [{"role": "user", "content": [block]}]}) == reason


def test_documents_and_inputs() -> None:
    part = {"type": "image_url", "image_url": {"url": URL}}
    assert rerank.FAMILY.refusal({"query": "q", "documents": {"content": [part]}}) == Reason.REMOTE_MEDIA
    assert rerank.FAMILY.refusal({"query": URL, "documents": [URL]}) is None
    assert score.FAMILY.refusal({"text_1": "a", "text_2": {"content": [part]}}) == Reason.REMOTE_MEDIA
    assert embeddings.FAMILY.refusal({"messages": [{"role": "user", "content": [part]}]}) == Reason.REMOTE_MEDIA
    assert embeddings.FAMILY.refusal({"input": [URL]}) is None

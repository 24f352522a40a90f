"""`/v1/embeddings`: each input is a question of its own; what is missing is asked for in one call.

`encoding_format` and `dimensions` are part of the key: floats and base64 are recorded as the upstream
spelled them, each in its own entry, because not every server's floats are exact as float32.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from samewise.core.answer import Answer, Usage
from samewise.core.families import alone, choices, media, wire
from samewise.core.families.contract import Output
from samewise.core.reason import Reason

_FORMATS = (None, "float", "base64")
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class Embeddings:
    """Inputs in, a vector each out."""

    name = "embeddings"
    path = "/v1/embeddings"
    delivery = frozenset({"user", "metadata", "safety_identifier", "request_id", "priority"})
    sampled = False
    seeded = False
    together = True

    shift = staticmethod(alone.shift)
    closing = staticmethod(alone.closing)
    upstream_stream = staticmethod(alone.no_stream)
    ends = staticmethod(alone.never_ends)
    cut = staticmethod(choices.cut)
    noise = staticmethod(wire.is_noise)
    visible = staticmethod(alone.all_visible)
    to_events = staticmethod(alone.no_events)
    to_body = staticmethod(alone.body)

    def refusal(self, body: Mapping[str, Any]) -> Reason | None:
        """Remote media; an answer that is bytes rather than JSON."""
        if body.get("encoding_format") not in _FORMATS:
            return Reason.MALFORMED
        for message in wire.objects(body.get("messages")):
            reason = media.refusal(message.get("content"))
            if reason is not None:
                return reason
        return media.refusal(body.get("input"))

    def split(self, body: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """One request an input; a list of one is the same as its only input."""
        inputs = _inputs(body.get("input"))
        return [body] if inputs is None else [{**body, "input": each} for each in inputs]

    def batch(self, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One request for all; they differ in nothing but their input."""
        if len(requests) == 1:
            return requests[0]
        return {**requests[0], "input": [request.get("input") for request in requests]}

    def unbatch(self, answer: Answer, requests: Sequence[dict[str, Any]]) -> Sequence[Answer]:
        """Each vector with its share of the usage, spelled as it came.

        Shares are in proportion to the lengths of the inputs (tokens, else characters) and add up exactly:
        the largest remainders are rounded up. So the same list asked again tells the same total.
        Raises ValueError where vectors and requests don't match.
        """
        if len(requests) == 1:
            return [answer]
        try:
            whole = _raw_object(answer.body)
            data = _raw_objects(whole["data"])
            places = [msgspec.json.decode(item["index"], type=int) for item in data]
        except (msgspec.DecodeError, KeyError) as error:
            raise ValueError("not a list of embeddings") from error
        if sorted(places) != list(range(len(requests))):
            raise ValueError(f"{len(places)} embeddings for {len(requests)} inputs")
        by_place = dict(zip(places, data, strict=True))
        weights = [max(1, len(request.get("input") or "")) for request in requests]
        usage = wire.mapping(wire.load(whole["usage"])) if "usage" in whole else None
        shares = [None] * len(requests) if usage is None else _apportion(usage, weights)
        return [
            choices.as_json(answer, _body(whole, [{**by_place[unit], "index": _ZERO}], share))
            for unit, share in enumerate(shares)
        ]

    def join(self, answers: Sequence[Answer], requests: Sequence[dict[str, Any]]) -> Answer:
        """One body: id and time of the first, all vectors in order and spelled as recorded, usage together."""
        if len(answers) == 1:
            return answers[0]
        wholes = [_raw_object(answer.body) for answer in answers]
        data = [item for whole in wholes for item in _raw_objects(whole["data"])]
        numbered = [{**item, "index": msgspec.Raw(b"%d" % at)} for at, item in enumerate(data)]
        total: dict[str, Any] = {}
        for whole in wholes:
            if "usage" in whole:
                choices.add_counts(total, wire.mapping(wire.load(whole["usage"])))
        return choices.as_json(answers[0], _body(wholes[0], numbered, total or None))

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """An error, or a vector too few or too many."""
        try:
            body = wire.load_object(answer.body)
        except ValueError:
            return Reason.TRUNCATED
        if choices.has_error(body):
            return Reason.UPSTREAM_ERROR
        data = wire.objects(body.get("data"))
        inputs = _inputs(request.get("input"))
        whole = len(data) == (1 if inputs is None else len(inputs)) and all(item.get("embedding") for item in data)
        return None if whole else Reason.TRUNCATED

    def usage(self, answer: Answer) -> Usage:
        """The tokens of the inputs."""
        return choices.usage(answer)

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """One a vector."""
        data = wire.objects(wire.load_object(answer.body).get("data"))
        return [_output(item, at) for at, item in enumerate(data)]


_ZERO = msgspec.Raw(b"0")


def _inputs(value: Any) -> list[Any] | None:
    """The inputs of a list of them; None where the value is one input (or nothing known)."""
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(item, str) or _is_tokens(item) for item in value):
        return value
    return None


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _body(whole: dict[str, msgspec.Raw], data: list[dict[str, msgspec.Raw]], usage: dict[str, Any] | None) -> bytes:
    body: dict[str, Any] = {**whole, "data": data}
    if usage is not None:
        body["usage"] = usage
    return wire.dump(body)


def _apportion(usage: dict[str, Any], weights: Sequence[int]) -> list[dict[str, Any]]:
    shares: list[dict[str, Any]] = [{} for _ in weights]
    for name, value in usage.items():
        parts: Sequence[Any]
        if isinstance(value, dict):
            parts = _apportion(value, weights)
        elif isinstance(value, int) and not isinstance(value, bool):
            parts = largest_remainder(value, weights)
        else:
            parts = [value] * len(weights)
        for share, part in zip(shares, parts, strict=True):
            share[name] = part
    return shares


def largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares in proportion to the weights that add up to the total; ties go to the earlier one."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    remainders = sorted(range(len(weights)), key=lambda at: (-(total * weights[at] % whole), at))
    for at in remainders[: total - sum(shares)]:
        shares[at] += 1
    return shares


def _output(item: dict[str, Any], position: int) -> Output:
    value = item.get("embedding")
    text, vector = "", None
    if isinstance(value, str):
        text, vector = value, _decoded(value)
    elif isinstance(value, list) and all(isinstance(number, int | float) for number in value):
        vector = tuple(map(float, value))
    else:
        text = wire.dump(value).decode()
    return Output(index=choices.index_of(item, position), text="" if vector else text, vector=vector)


def _decoded(text: str) -> tuple[float, ...] | None:
    """Little-endian float32, as OpenAI's API has it; None for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return struct.unpack(f"<{len(data) // 4}f", data) if len(data) % 4 == 0 else None


FAMILY = Embeddings()

"""Request bodies: strict JSON in, JSON out."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from samewise.core.errors import ProxyError, bad_request

MAX_DEPTH = 200
"""Objects and arrays inside each other; vLLM's own parser stops there too."""

_ADVICE = "Send one JSON object in UTF-8."


class _Overflow(Exception):
    pass


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object (RFC 8259) that the bytes spell, members in their order.

    Whole numbers are exact, whatever their size; escaped lone surrogates survive. Raises ProxyError 400 for
    everything that two parsers could read differently: a member that comes twice, at any depth (named in
    `param`); NaN, Infinity and numbers too big for a double; a byte order mark; invalid UTF-8; more than 200
    levels; anything but an object; broken JSON (line and column are told).
    """
    if raw.startswith(b"\xef\xbb\xbf"):
        raise _broken("The body begins with a byte order mark.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _broken(f"The body is not valid UTF-8 at byte {error.start}.") from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _broken(f"The body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).") from None
    except RecursionError:
        raise _too_deep() from None
    except _Overflow as error:
        raise _broken(f"The body has a number that no double can hold: {error}.") from None
    except ValueError:
        raise _broken("The body has a number with too many digits.") from None
    if not isinstance(value, dict):
        raise _broken("The body is not a JSON object.")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    return value


def write(body: Any) -> bytes:
    """Compact JSON in UTF-8, members in their order, lone surrogates escaped."""
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        shown = twice[:80].encode("utf-8", "replace").decode()
        raise bad_request(
            f"The body has the member {shown!r} twice in one object. Send it once.",
            code="duplicate_member",
            param=shown,
        )
    return members


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise _Overflow(text[:40])
    return value


def _constant(text: str) -> NoReturn:
    raise _broken(f"The body has {text}, which is no JSON number.")


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ProxyError:
    return _broken(f"The body has more than {MAX_DEPTH} levels of objects and arrays.")


def _broken(message: str) -> ProxyError:
    return bad_request(f"{message} {_ADVICE}", code="invalid_json")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)

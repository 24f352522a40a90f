"""What a request asks of the cache, from its headers and from LiteLLM's `cache` member of the body."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from samewise.core.errors import ProxyError, bad_request

MAX_DELTA = 2**31
"""Seconds that a larger delta-seconds counts as (RFC 9111, section 1.2.2)."""
MAX_TAGS = 32
MAX_TAG = 128
"""Characters of a tag."""
MAX_NAMESPACE = 256
"""Characters of a namespace."""

_DIRECTIVE = re.compile(
    r"""[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)      # a token
        (?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]*)))?   # with a quoted or a bare value
        [^,]*(?:,|$)""",
    re.VERBOSE | re.DOTALL,
)
_SECONDS = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,9})?", re.ASCII)
_SAMPLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_TAG = re.compile(r"[!-+\--~]+", re.ASCII)


class Controls(msgspec.Struct, frozen=True, kw_only=True):
    """Request controls. Times are in seconds; None means: not said."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    ttl: float | None = None
    sample: int = 0
    tags: tuple[str, ...] = ()
    namespace: str = ""
    variant: tuple[tuple[str, str], ...] = ()
    """What beside the body may change the answer: the query string, and fields that choose an API's behaviour."""


_PLAIN = Controls()
_VARIANT = ("anthropic-beta", "anthropic-version", "openai-beta", "openai-version")
_HEADERS = ("cache-control", "x-samewise-ttl", "x-samewise-sample", "x-samewise-tags", *_VARIANT)


def parse_controls(headers: Mapping[str, str], body_cache: object = None) -> Controls:
    """The controls of a request. Header names are in lower case; several lines of one are joined by commas.

    `Cache-Control` follows RFC 9111: names in any case, values quoted or not, unknown directives ignored,
    and never an error. A `max-age` that is no whole number of seconds counts as 0 (nothing recorded is
    young enough: section 4.2.1 would have it stale), one above 2^31 as 2^31, the smallest of several counts.

    Our own headers are strict, since a control that is silently dropped does harm: `x-samewise-ttl` is a
    decimal number of seconds, 0 or more (0: keep nothing); `x-samewise-sample` a whole number below 10^18;
    `x-samewise-tags` at most 32 words of visible ASCII, at most 128 characters each. Anything else raises
    ProxyError 400 naming the header.
    """
    controls = _from_headers(headers) if any(name in headers for name in _HEADERS) else _PLAIN
    return merge_body(controls, body_cache)


def merge_body(controls: Controls, body_cache: object) -> Controls:
    """The controls with those of LiteLLM's `cache` member, which may be null; the stricter of two counts.

    Known members are `no-cache`, `no-store`, `ttl`, `s-maxage` and `namespace`, also spelled with an
    underscore; true, false and numbers may be strings; others are ignored. Raises ProxyError 400.
    """
    if body_cache is None:
        return controls
    if not isinstance(body_cache, dict):
        raise _refused("cache", 'an object such as {"no-cache": true}, or be left out', "body member ")
    wanted = {name.replace("_", "-"): value for name, value in body_cache.items() if value is not None}
    age, ttl = wanted.get("s-maxage"), wanted.get("ttl")
    namespace = wanted.get("namespace", controls.namespace)
    if not isinstance(namespace, str) or len(namespace) > MAX_NAMESPACE:
        raise _refused("cache.namespace", f"a string of at most {MAX_NAMESPACE} characters", "body member ")
    return msgspec.structs.replace(
        controls,
        no_cache=controls.no_cache or _flag(wanted, "no-cache"),
        no_store=controls.no_store or _flag(wanted, "no-store"),
        max_age=_least(controls.max_age, None if age is None else _body_seconds("cache.s-maxage", age)),
        ttl=_least(controls.ttl, None if ttl is None else _body_seconds("cache.ttl", ttl)),
        namespace=namespace,
    )


def _from_headers(headers: Mapping[str, str]) -> Controls:
    no_cache = no_store = only_if_cached = False
    max_age: float | None = None
    for name, value in _directives(headers.get("cache-control", "")):
        match name:
            case "no-cache":
                no_cache = True
            case "no-store":
                no_store = True
            case "only-if-cached":
                only_if_cached = True
            case "max-age":
                max_age = _least(max_age, _delta(value))
    ttl = headers.get("x-samewise-ttl")
    sample = headers.get("x-samewise-sample")
    return Controls(
        no_cache=no_cache,
        no_store=no_store,
        only_if_cached=only_if_cached,
        max_age=max_age,
        ttl=None if ttl is None else _seconds("x-samewise-ttl", ttl, "header "),
        sample=0 if sample is None else _sample(sample),
        tags=_tags(headers.get("x-samewise-tags", "")),
        variant=tuple((name, headers[name]) for name in _VARIANT if name in headers),
    )


def with_query(controls: Controls, query: str) -> Controls:
    """The controls of a request whose URL has this query string: it may change the answer, so it is in the key."""
    if not query:
        return controls
    return msgspec.structs.replace(controls, variant=(("?", query), *controls.variant))


def _directives(text: str) -> Iterator[tuple[str, str]]:
    for found in _DIRECTIVE.finditer(text):
        name, quoted, bare = found.groups()
        yield name.lower(), (re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare or "")


def _delta(value: str) -> float:
    if not (value.isascii() and value.isdigit()):
        return 0.0
    return float(MAX_DELTA if len(value) > 10 else min(int(value), MAX_DELTA))


def _seconds(name: str, value: str, where: str) -> float:
    text = value.strip(" \t")
    if not _SECONDS.fullmatch(text):
        raise _refused(name, f"a number of seconds, 0 or more, such as 60; not {value[:40]!r}", where)
    return float(text)


def _body_seconds(name: str, value: object) -> float:
    if isinstance(value, str):
        return _seconds(name, value, "body member ")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e20:
        raise _refused(name, "a number of seconds, 0 or more, such as 60", "body member ")
    return float(value)


def _sample(value: str) -> int:
    text = value.strip(" \t")
    if not _SAMPLE.fullmatch(text):
        raise _refused("x-samewise-sample", f"a whole number from 0 to 10^18 - 1; not {value[:40]!r}", "header ")
    return int(text)


def _tags(value: str) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag for part in value.split(",") if (tag := part.strip(" \t"))))
    if len(tags) > MAX_TAGS or any(len(tag) > MAX_TAG or not _TAG.fullmatch(tag) for tag in tags):
        limits = f"at most {MAX_TAGS} words of visible ASCII of at most {MAX_TAG} characters, separated by commas"
        raise _refused("x-samewise-tags", limits, "header ")
    return tags


def _flag(wanted: Mapping[str, object], name: str) -> bool:
    match wanted.get(name, False):
        case bool(value):
            return value
        case str(text) if text.strip().lower() in ("true", "false"):
            return text.strip().lower() == "true"
        case _:
            raise _refused(f"cache.{name}", "true or false", "body member ")


def _least(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _refused(name: str, should: str, where: str) -> ProxyError:
    return bad_request(f"The {where}{name} must be {should}.", code="invalid_control", param=name)

"""Why an answer was not read from the cache, or not stored: one word each, as `x-samewise-reason` shows it."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The value is the word that users, metrics and documents see."""

    # known before anything is asked
    MODE = "mode"
    NO_STORE = "no-store"
    UNCACHED_PATH = "uncached-path"
    UNSEEDED = "unseeded"
    UNKNOWN_DEFAULTS = "unknown-defaults"
    UNKNOWN_ENVIRONMENT = "unknown-environment"
    REMOTE_MEDIA = "remote-media"
    STATEFUL = "stateful"
    MALFORMED = "malformed"
    QUARANTINED = "quarantined"
    # known after the store was asked
    STORE_DOWN = "store-down"
    TOO_OLD = "too-old"
    INVALIDATED = "invalidated"
    # known after the upstream was asked
    UPSTREAM_ERROR = "upstream-error"
    UPSTREAM_UNREACHABLE = "upstream-unreachable"
    UPSTREAM_TIMEOUT = "upstream-timeout"
    TRUNCATED = "truncated"
    ENVIRONMENT_CHANGED = "environment-changed"
    TOO_LARGE = "too-large"
    TTL = "ttl"
    READ_ONLY = "read-only"
    UNVERIFIED = "unverified"
    # refused by the proxy itself
    NOT_CACHED = "not-cached"
    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad-request"
    TOO_BUSY = "too-busy"
    RATE_LIMITED = "rate-limited"
    INTERNAL = "internal"

"""Authentication at the data port."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from samewise.core import tenants
from samewise.core.answer import Headers
from samewise.core.errors import ProxyError
from samewise.core.reason import Reason
from samewise.core.tenants import Key
from samewise.http.limits import Rates

CREDENTIALS = ("authorization", "x-api-key", "api-key")
"""Fields by which OpenAI, Anthropic and Azure clients say who they are."""


class Caller(NamedTuple):
    """Who asks. `space` is whose entries they are: the tenant's own, or those of the group it shares with."""

    space: str
    tenant: str
    key: Key | None

    @property
    def limited(self) -> bool:
        """True where each request must be counted."""
        return self.key is not None and self.key.per_minute > 0


class Keys(Protocol):
    """The keys in force, which may change between two requests."""

    @property
    def keys(self) -> Sequence[Key]: ...

    @property
    def guarded(self) -> bool:
        """True where a request needs a key."""


class Gate:
    """Says whose request it is, and which of its credentials travel on.

    With keys of our own a request needs one of them, and its tenant is the key's. Without, the gate is
    open; where the client's credential is what the upstream will judge, its holders are a tenant of their
    own, so that a hit never stands in for the upstream's refusal.
    """

    def __init__(
        self, keys: Keys, forward: Literal["auto", "always", "never"], *, replaced: bool, rates: Rates
    ) -> None:
        """`replaced`: every upstream has a key of its own."""
        self._keys = keys
        self._forward = forward
        self._replaced = replaced
        self._rates = rates

    def enter(self, headers: Headers) -> Caller:
        """Who asks. Raises ProxyError 401, and 429 for a key that asked too often."""
        caller = self.identify(headers)
        key = caller.key
        if key is not None and key.per_minute > 0:
            wait = self._rates.wait(key.sha256, key.per_minute)
            if wait > 0:
                raise ProxyError(
                    429,
                    f"this API key may ask {key.per_minute} times a minute; wait {math.ceil(wait)} s",
                    code="rate_limit_exceeded",
                    reason=Reason.RATE_LIMITED,
                    headers=(("retry-after", str(math.ceil(wait))),),
                )
        return caller

    def identify(self, headers: Headers) -> Caller:
        """Who asks, without counting it. Raises ProxyError 401."""
        given = [(name, value) for name, value in headers if name in CREDENTIALS]
        if self._keys.guarded:
            values = [value for name, value in given if name == "authorization"]
            others = [value for name, value in given if name != "authorization"]
            token = tenants.bearer(values) if values else (others[0] if len(others) == 1 else None)
            key = tenants.find(token, self._keys.keys) if token else None
            if key is None:
                raise ProxyError(
                    401,
                    "a valid API key is needed: send it as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    reason=Reason.UNAUTHORIZED,
                    headers=(("www-authenticate", 'Bearer realm="samewise"'),),
                )
            return Caller(key.space, key.tenant, key)
        if self._forwards and given:
            tenant = tenants.of_credential("\0".join(f"{name}={value}" for name, value in given))
            return Caller(tenant, tenant, None)
        return Caller("", "", None)

    def travelling(self, headers: Headers) -> Headers:
        """The fields without credentials that stop here."""
        if self._forwards:
            return headers
        return tuple(field for field in headers if field[0] not in CREDENTIALS)

    @staticmethod
    def check_model(key: Key | None, model: str) -> None:
        """Raises ProxyError 403 where the key may not ask for this model."""
        if key is not None and not key.allows(model):
            raise ProxyError(
                403,
                f"this API key may not use the model {model!r}",
                code="model_not_allowed",
                param="model",
                reason=Reason.UNAUTHORIZED,
            )

    @property
    def _forwards(self) -> bool:
        return self._forward == "always" or (self._forward == "auto" and not self._keys.guarded and not self._replaced)

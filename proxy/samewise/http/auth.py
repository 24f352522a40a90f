"""Authentication at the data port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from samewise.core import tenants
from samewise.core.answer import Headers
from samewise.core.errors import ProxyError
from samewise.core.reason import Reason
from samewise.core.tenants import Key

CREDENTIALS = ("authorization", "x-api-key", "api-key")
"""Fields by which OpenAI, Anthropic and Azure clients say who they are."""


class Gate:
    """Says whose request it is, and which of its credentials travel on.

    With keys of our own a request needs one of them, and its tenant is the key's. Without, the gate is
    open; where the client's credential is what the upstream will judge, its holders are a tenant of their
    own, so that a hit never stands in for the upstream's refusal.
    """

    def __init__(self, keys: Sequence[Key], forward: Literal["auto", "always", "never"], *, replaced: bool) -> None:
        """`replaced`: every upstream has a key of its own."""
        self._keys = tuple(keys)
        self._forward = forward == "always" or (forward == "auto" and not keys and not replaced)

    def enter(self, headers: Headers) -> tuple[str, Key | None]:
        """The tenant, and the key where there are keys. Raises ProxyError 401."""
        given = [(name, value) for name, value in headers if name in CREDENTIALS]
        if self._keys:
            values = [value for name, value in given if name == "authorization"]
            others = [value for name, value in given if name != "authorization"]
            token = tenants.bearer(values) if values else (others[0] if len(others) == 1 else None)
            key = tenants.find(token, self._keys) if token else None
            if key is None:
                raise ProxyError(
                    401,
                    "a valid API key is needed: send it as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    reason=Reason.UNAUTHORIZED,
                    headers=(("www-authenticate", 'Bearer realm="samewise"'),),
                )
            return key.tenant, key
        if self._forward and given:
            return tenants.of_credential("\0".join(f"{name}={value}" for name, value in given)), None
        return "", None

    def travelling(self, headers: Headers) -> Headers:
        """The fields without credentials that stop here."""
        if self._forward:
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

"""A family of the plainest kind, and short ways to plan with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from samewise.core.controls import Controls
from samewise.core.families.contract import Family
from samewise.core.fingerprint import Environment
from samewise.core.plan import Context, Plan
from samewise.core.reason import Reason
from samewise.core.request import plan

B0: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "seed": 7,
    "max_tokens": 16,
}


class PlainFamily:
    """As much of a family as planning looks at. A member `items` is split; `remote` is refused."""

    delivery = frozenset({"stream", "stream_options", "user", "metadata"})
    path = "/v1/plain"

    def __init__(
        self, name: str = "chat", *, sampled: bool = True, seeded: bool = True, together: bool = False
    ) -> None:
        self.name = name
        self.sampled = sampled
        self.seeded = seeded
        self.together = together

    def refusal(self, body: Mapping[str, Any]) -> Reason | None:
        return Reason.REMOTE_MEDIA if "remote" in body else None

    def split(self, body: dict[str, Any]) -> Sequence[dict[str, Any]]:
        if not isinstance(body.get("items"), list):
            return [body]
        return [{**body, "items": item} for item in body["items"]]

    def batch(self, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**requests[0], "items": [request["items"] for request in requests]}

    def upstream_stream(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "stream_options": {**(body.get("stream_options") or {}), "include_usage": True}}


def family(name: str = "chat", *, sampled: bool = True, seeded: bool = True, together: bool = False) -> Family:
    return cast(Family, PlainFamily(name, sampled=sampled, seeded=seeded, together=together))


CHAT = family()
OBSERVED = Environment(id="observed-1", origin="observed")
VLLM = Environment(id="vllm-1", origin="contract", engine="vllm", defaults={"temperature": 0.6, "top_k": 20})
OTHER = Environment(id="other-1", origin="contract", engine="other", defaults={"temperature": 0.6, "top_k": 20})


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


def planned(
    body: Any = None,
    *,
    of: Family = CHAT,
    environment: Environment | None = OBSERVED,
    controls: Controls | None = None,
    **context: Any,
) -> Plan:
    body = body if isinstance(body, bytes) else raw(B0 if body is None else body)
    return plan(of, body, controls or Controls(), Context(environment=environment, **context))


def key_of(body: Any = None, **how: Any) -> str:
    found = planned(body, **how)
    assert found.units[0].key is not None, found.units[0].reason
    return found.units[0].key


def reason_of(body: Any = None, **how: Any) -> Reason | None:
    return planned(body, **how).units[0].reason

"""The recipe of the key: what it is made of, and the bytes that it is the SHA-256 of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from samewise.core import canonical
from samewise.core.fingerprint import Environment
from samewise.core.plan import Epochs

KEY_VERSION = 1
"""Advanced with every change of the recipe; entries of other versions are simply never found."""

_TOKEN_WEIGHTS = "logit_bias"
_MODEL = "model"
_PIN_RANGE = 2**63 - 2**16


def preimage(
    *,
    tenant: str,
    namespace: str,
    family: str,
    model: str,
    environment: Environment,
    epochs: Epochs,
    sample: int,
    request: Mapping[str, Any],
    variant: Sequence[tuple[str, str]] = (),
    encode: Callable[[Any], bytes] = canonical.encode,
) -> bytes:
    """One JSON object that nothing else has: compact, in UTF-8, with its own members always in this order.

    `request` is the effective request. Its members are ordered by name, at the top level alone: inside
    messages, tools and schemas order changes the prompt. A number at the top level (or in `logit_bias`) has
    one spelling, 1.0 being 1. Deeper down 1.0 and 1 stay two things, since a chat template prints them
    differently; 1.0, 1e0 and 1.00 are one. `model` is told once, beside the request. `variant` (see
    `Controls`) is a member only where there is one. `encode`: the same as `canonical.encode`, in its own time.
    """
    members = {name: _top(name, request[name]) for name in sorted(request) if name != _MODEL}
    return encode(
        {
            "v": KEY_VERSION,
            "tenant": tenant,
            "namespace": namespace,
            "family": family,
            "model": model,
            "environment": environment.id,
            "epochs": [epochs.all, epochs.model, epochs.environment, epochs.tenant, epochs.profile],
            "sample": sample,
            **({"variant": [list(each) for each in variant]} if variant else {}),
            "request": members,
        }
    )


def key(image: bytes) -> str:
    """64 hex digits."""
    return canonical.sha256(image)


def pinned_seed(image: bytes) -> int:
    """A seed that follows from the preimage of the same request without a seed, its sample number included.

    63 bits of SHA-256, never negative (so never -1), and far enough below 2^63 that the seeds of further
    choices (vLLM's choice i runs with seed + i) are still seeds.
    """
    digest = hashlib.sha256(b"samewise seed\n" + image).digest()
    return (int.from_bytes(digest[:8], "big") >> 1) % _PIN_RANGE


def parts(image: bytes) -> dict[str, Any]:
    """What a preimage says, as it was put in, the epochs by name. `image` must be a preimage."""
    told: dict[str, Any] = json.loads(image.decode("utf-8", "surrogatepass"))
    names = ("all", "model", "environment", "tenant", "profile")
    told["epochs"] = dict(zip(names, told["epochs"], strict=True))
    return told


def _top(name: str, value: Any) -> Any:
    return canonical.normalise(value) if isinstance(value, float) or name == _TOKEN_WEIGHTS else value

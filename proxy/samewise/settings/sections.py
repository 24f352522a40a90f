"""Every setting with its default. Times are float seconds and sizes are int bytes once they are read."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from samewise.core import sampling, tenants
from samewise.core.address import base_url
from samewise.settings import units


class SecretMark:
    """Marks a setting that is never shown."""


SECRET = SecretMark()

KIB, MIB, GIB = 1024, 1024**2, 1024**3
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

Size = Annotated[int, BeforeValidator(units.size)]
Memory = Annotated[int, BeforeValidator(units.memory)]
Seconds = Annotated[float, BeforeValidator(units.seconds)]
Positive = Annotated[float, BeforeValidator(units.seconds), Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Secret = Annotated[str, Field(repr=False), SECRET]

SAMPLING_NUMBERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "length_penalty",
        "min_tokens",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "n",
    }
)


class Section(BaseModel):
    """Immutable; a name that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Server(Section):
    """The data port. `port` 0 takes a free one. `drain`: how long requests in flight may take to end at a stop.

    `patience`: seconds for a client's first head, of silence within a body, and without a byte of an answer taken.
    `ping`: silence within a stream after which a comment line shows that it lives (0: never). `max_requests`:
    more at once are refused with 503; fewer where the limit of open files allows fewer.
    """

    host: Text = "127.0.0.1"
    port: Port = 8080
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    max_body: Annotated[Size, Field(ge=1)] = 32 * MIB
    drain: Seconds = 30.0
    ping: Seconds = 15.0
    patience: Positive = 60.0
    max_requests: Count = 10_000


class Admin(Section):
    """The admin port. Without a token it binds to loopback alone."""

    host: Text = "127.0.0.1"
    port: Port = 8081
    token: Secret = ""


class Upstream(Section):
    """One backend. `environment`: `auto`, or a label that an operator vouches for and moves by hand.

    `resolve`: the URL's name stands for many; each address behind it is an upstream.
    """

    url: Annotated[str, AfterValidator(base_url)] = "http://127.0.0.1:8000/v1"
    api_key: Secret = ""
    environment: Annotated[str, AfterValidator(tenants.label)] = "auto"
    resolve: bool = False


class Store(Section):
    """Where entries are kept. `memory` is the tier in front (0: none), `disk` bounds a store on disk.

    `namespace` separates proxies that share a Redis and must not share entries. `old_secrets` are still
    read, never written with. `ttl` never exceeds `max_ttl`.
    """

    url: Annotated[str, AfterValidator(units.store_url)] = "sqlite:///samewise.db"
    ttl: Seconds = HOUR
    max_ttl: Seconds = 30 * DAY
    memory: Memory = 256 * MIB
    disk: Size = 8 * GIB
    max_entry: Size = 8 * MIB
    segment: Annotated[Size, AfterValidator(units.segment)] = MIB
    timeout: Positive = 0.1
    namespace: Annotated[str, AfterValidator(units.name_or_empty)] = ""
    secret: Secret = ""
    old_secrets: Annotated[tuple[str, ...], Field(repr=False), SECRET] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_ttl_within_maximum(cls, data: Any) -> Any:
        if isinstance(data, dict) and "max_ttl" in data and "ttl" not in data:
            try:
                return {**data, "ttl": min(HOUR, units.seconds(data["max_ttl"]))}
            except ValueError:
                return data
        return data

    @model_validator(mode="after")
    def _ttl_within_maximum(self) -> Store:
        if self.ttl > self.max_ttl:
            raise ValueError(f"ttl: should be at most max_ttl, which is {units.spelt(self.max_ttl)}")
        return self


class Cache(Section):
    """What may be read and kept. `frozen`: a miss is 504. `admit`: `first`, or `verified:N` agreeing recomputations.

    `unknown_defaults`: what to do with a request that leaves a sampling value to defaults nobody knows.
    """

    mode: Literal["on", "off", "read-only", "write-only", "frozen"] = "on"
    unseeded: Literal["bypass", "pin", "record"] = "bypass"
    unknown_defaults: Literal["bypass", "assume"] = "bypass"
    admit: str = "first"

    @field_validator("admit")
    @classmethod
    def _admit(cls, value: str) -> str:
        kind, _, count = value.partition(":")
        if value != "first" and not (kind == "verified" and count.isdecimal() and 1 <= int(count) <= 100):
            raise ValueError('should be "first" or "verified:N" with N from 1 to 100')
        return value

    @property
    def agreements(self) -> int:
        """Recomputations that must agree before an answer is kept; 0 for `first`."""
        return 0 if self.admit == "first" else int(self.admit.partition(":")[2])


class Verify(Section):
    """Recomputation in the background.

    `rate`: share of hits; `warm`: share of recomputations that may reuse prefix KV; `near_tie_nats`: at the
    first differing token, candidates closer than this are a near tie; `each`: an entry is looked at at most
    once in this time; `queue`: waiting recomputations at most; `keep`: divergences kept, with their `outputs`
    in full or as digests; `release`: agreeing recomputations that end a quarantine.
    """

    rate: Share = 0.01
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 1
    action: Literal["flag", "evict", "replace", "quarantine"] = "flag"
    target: Share = 0.999
    floor: Share = 0.99
    on_floor: Literal["alert", "pause", "drain"] = "alert"
    hook: Annotated[str, AfterValidator(units.hook), Field(repr=False), SECRET] = ""
    near_tie_nats: Annotated[float, Field(ge=0, le=100)] = 0.05
    warm: Share = 0.1
    each: Seconds = HOUR
    queue: Count = 1000
    keep: Count = 1000
    outputs: Literal["full", "digest"] = "full"
    release: Annotated[int, Field(ge=1, le=100)] = 3

    @model_validator(mode="after")
    def _floor_below_target(self) -> Verify:
        if self.floor > self.target:
            raise ValueError(f"floor: should be at most target, which is {self.target:g}")
        return self


class Routing(Section):
    """Which of several upstreams of an environment is asked; `session_header` is what `session` goes by.

    `hedge`: seconds without an answer after which a second upstream is asked a reproducible question; 0: never.
    """

    strategy: Literal["prefix", "least-loaded", "round-robin", "session"] = "prefix"
    session_header: Annotated[str, AfterValidator(units.name)] = "x-samewise-session"
    hedge: Seconds = 0.0


class Timeouts(Section):
    """Limits of one upstream call: to connect, to the head of the answer, of silence within it, of all of it."""

    connect: Positive = 5.0
    first_byte: Positive = 10 * MINUTE
    idle: Positive = 2 * MINUTE
    total: Positive = HOUR


class Environments(Section):
    """How a new environment becomes the active one; `poll` and `probe` are how often backends are looked at
    that keep the environment contract, and that do not. `canary`: share of misses for an environment in waiting.
    `trial`: how often the acceptance repeats each prompt before `verified` makes an environment active."""

    rollout: Literal["auto", "manual", "verified"] = "auto"
    poll: Positive = 2.0
    probe: Positive = 30.0
    canary: Share = 0.0
    trial: Annotated[int, Field(ge=2, le=1000)] = 10


class Profile(BaseModel):
    """A sampling profile: which models (a glob), and every other member is a value for a field left out."""

    model_config = ConfigDict(frozen=True, extra="allow")

    match: Text = "*"

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        """Variables are text: what is a number in a request becomes one."""
        if not isinstance(data, dict):
            return data
        return {name: _as_number(item) if name in SAMPLING_NUMBERS else item for name, item in data.items()}

    @model_validator(mode="after")
    def _acceptable(self) -> Self:
        """What vLLM would refuse is refused here, before it refuses every request."""
        for field, wanted in sampling.validate(self.values):
            raise ValueError(f"{field} should be {wanted}")
        return self

    @property
    def values(self) -> dict[str, Any]:
        """What fills the fields that a request left out, as JSON values."""
        return dict(self.model_extra or {})


class Sampling(Section):
    """Profiles by name. There is always one called `default`; it is empty unless it is set."""

    profiles: dict[Annotated[str, AfterValidator(units.name)], Profile] = {}

    @field_validator("profiles")
    @classmethod
    def _default(cls, profiles: dict[str, Profile]) -> dict[str, Profile]:
        return profiles if "default" in profiles else {**profiles, "default": Profile()}


class ApiKey(Section):
    """A client's key, known by its SHA-256, and the tenant that it names. `models` are globs.

    Tenants with the same `share` share entries. `per_minute`: requests that are let in, hits too; 0: all.
    """

    tenant: Annotated[str, AfterValidator(tenants.tenant)]
    sha256: Annotated[str, AfterValidator(units.digest), Field(repr=False), SECRET]
    models: tuple[str, ...] = ("*",)
    share: Annotated[str, AfterValidator(units.name_or_empty)] = ""
    per_minute: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class Auth(Section):
    """Who may ask. No keys and no file: open. `file` has more keys, and is read again when it changes.

    `forward`: whether the client's Authorization travels to the upstream; `auto` lets it where there are no keys
    here and the upstream has none of its own. `salt`: whether requests of tenants carry a `cache_salt` of the
    tenant's to engines that take one.
    """

    keys: tuple[ApiKey, ...] = ()
    file: str = ""
    forward: Literal["auto", "always", "never"] = "auto"
    salt: bool = True

    @field_validator("keys")
    @classmethod
    def _once(cls, keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
        if len({key.sha256 for key in keys}) < len(keys):
            raise ValueError("should name each sha256 once: a key belongs to one tenant")
        return keys


class Receipts(Section):
    """Signed proof of what was answered, in the file `path`. `secret`: of an HMAC, or `ed25519:` and a private key."""

    enabled: bool = False
    secret: Secret = ""
    path: Text = "samewise-receipts.jsonl"


class Telemetry(Section):
    """What is told, and where. The OTEL_* variables of the OpenTelemetry SDK count too.

    `content`: whether the spans of requests have the prompts and answers themselves.
    """

    otlp_endpoint: Annotated[str, AfterValidator(units.http_url)] = ""
    prometheus: bool = True
    content: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def is_loopback(host: str) -> bool:
    """True for `localhost` and addresses that only this machine reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _as_number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value

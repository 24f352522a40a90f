"""From a body to a plan, and from a plan to what is sent upstream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samewise.core import body as bodies
from samewise.core import canonical, salt
from samewise.core.body import parse
from samewise.core.controls import Controls, merge_body
from samewise.core.families.contract import Family
from samewise.core.fingerprint import Environment
from samewise.core.key import key, pinned_seed, preimage
from samewise.core.plan import Context, Plan, Unit
from samewise.core.reason import Reason
from samewise.core.sampling import PIN, REQUEST, Effective, resolve, with_profile

__all__ = ["parse", "plan", "upstream_body"]

_CACHE, _SEED, _STREAM, _STREAM_OPTIONS = "cache", "seed", "stream", "stream_options"
_INCLUDE_USAGE = "include_usage"


def plan(
    family: Family, raw: bytes, controls: Controls, context: Context, *, parsed: Mapping[str, Any] | None = None
) -> Plan:
    """What the request means. `parsed` spares reading `raw` again.

    Raises ProxyError 400 where the body can't be read, or its `cache` member.

    The member `cache` is taken out and joined with `controls`; it is never forwarded, nor are `stream_options`
    of a request that is no stream. A body without a usable `model`, or with a `stream` or `stream_options` that are
    none, is the upstream's to judge: one unit, MALFORMED, sent on as it came, and answered as the upstream answers.
    What can't be cached is never split.

    A request that can be cached is sent as its key describes it (`sampling.resolve`); one that can't gets the
    profile's values and nothing else. A recorded stream tells its usage, whoever asked for it, so `include_usage` is
    no part of the key; other members of `stream_options` (`include_obfuscation`, `continuous_usage_stats`) change
    what a stream contains, and give it an entry of its own.

    A seed of the client's and a sample number go together: the answer is the same, the entries are several.
    """
    body = parse(raw) if parsed is None else dict(parsed)
    order = tuple(body)
    whole = True
    if _CACHE in body:
        controls = merge_body(controls, body.pop(_CACHE))
        whole = False
    model = body.get("model")
    stream = body.get(_STREAM) if _STREAM in family.delivery else None
    if not isinstance(model, str) or not model or not _readable(stream, body.get(_STREAM_OPTIONS)):
        return Plan(
            family=family.name,
            path=family.path,
            model=model if isinstance(model, str) else "",
            stream=False,
            include_usage=True,
            relayed=True,
            controls=controls,
            context=context,
            units=(Unit(request=body, reason=Reason.MALFORMED),),
            raw=raw if whole else None,
            order=order,
        )
    streaming = stream is True
    reason = family.refusal(body)
    delivery = {name: body.pop(name) for name in order if name in family.delivery and name in body}
    options = delivery.get(_STREAM_OPTIONS)
    if not streaming and _STREAM_OPTIONS in delivery:
        del delivery[_STREAM_OPTIONS]
        whole = False
    include_usage = streaming and isinstance(options, dict) and options.get(_INCLUDE_USAGE) is True
    if reason is not None or context.environment is None:
        units, unchanged = _bypass(family, body, context, reason or Reason.UNKNOWN_ENVIRONMENT)
    else:
        encode = canonical.encode if len(raw) < canonical.LARGE else canonical.encode_large
        asked = _Asked(family, model, context.environment, controls, context, encode)
        units, unchanged = _cached(asked, body, _content_options(streaming, options))
    cacheable = any(unit.key is not None for unit in units)
    return Plan(
        family=family.name,
        path=family.path,
        model=model,
        stream=streaming,
        include_usage=include_usage,
        controls=controls,
        context=context,
        units=units,
        delivery=delivery,
        together=family.together,
        raw=raw if whole and unchanged and not (streaming and cacheable) else None,
        order=order,
    )


def upstream_body(plan: Plan, family: Family, units: Sequence[Unit], *, stream: bool) -> bytes:
    """What is sent to ask for these units of the plan: all that it would take to understand it the same.

    The client's own bytes where nothing has to change. Else its members in its order, delivery included, what was
    added at the end, everything inside them untouched. `stream` says which form of answer is wanted, and a stream
    then asks for what a record needs (`Family.upstream_stream`); what can't be cached is asked as the client did.
    The tenant's `cache_salt`, where there is one, comes last, unless the client sent one.
    """
    body = _asked(plan, family, units, stream=stream)
    salted = plan.context.salt and units[0].reason is not Reason.MALFORMED and salt.MEMBER not in units[0].request
    return salt.add(body, plan.context.salt) if salted else body


def _asked(plan: Plan, family: Family, units: Sequence[Unit], *, stream: bool) -> bytes:
    if len(units) == 1 and units[0].key is None:
        return bodies.write(_joined(plan, units[0].request)) if plan.raw is None else plan.raw
    complete = len(units) == len(plan.units) and (len(units) == 1 or plan.together)
    if plan.raw is not None and complete and not stream:
        return plan.raw
    request = units[0].request if len(units) == 1 else family.batch([unit.request for unit in units])
    members = _joined(plan, request)
    if stream:
        members[_STREAM] = True
        return bodies.write(family.upstream_stream(members))
    members.pop(_STREAM_OPTIONS, None)
    if members.get(_STREAM):
        del members[_STREAM]
    return bodies.write(members)


def _joined(plan: Plan, request: Mapping[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name in plan.order:
        if name in plan.delivery:
            members[name] = plan.delivery[name]
        elif name in request:
            members[name] = request[name]
    members.update({name: value for name, value in request.items() if name not in members})
    return members


def _content_options(streaming: bool, options: object) -> dict[str, Any]:
    if not streaming or not isinstance(options, dict):
        return {}
    return {name: value for name, value in options.items() if name != _INCLUDE_USAGE and value is not None}


def _readable(stream: object, options: object) -> bool:
    """True where it is plain whether a stream is wanted, and whether with its usage."""
    if stream is not True:
        return stream is None or stream is False
    return options is None or (isinstance(options, dict) and isinstance(options.get(_INCLUDE_USAGE), bool | type(None)))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a key tells beside the request."""

    family: Family
    model: str
    environment: Environment
    controls: Controls
    context: Context
    encode: Callable[[Any], bytes]

    def image(self, described: Mapping[str, Any]) -> bytes:
        return preimage(
            tenant=self.context.tenant,
            namespace=self.controls.namespace,
            family=self.family.name,
            model=self.model,
            environment=self.environment,
            epochs=self.context.epochs,
            sample=self.controls.sample,
            request=described,
            variant=self.controls.variant,
            encode=self.encode,
        )

    def units(self, effective: Effective, options: dict[str, Any], pin: bool) -> tuple[Unit, ...]:
        extra = {**effective.extra, _STREAM_OPTIONS: options} if options else effective.extra
        units = []
        for request in self.family.split(effective.sent) or (effective.sent,):
            described = {name: value for name, value in request.items() if name not in effective.omit} | extra
            if pin:
                units.append(self._pinned(request, described, effective.origins))
            else:
                image = self.image(described)
                units.append(Unit(request=request, key=key(image), preimage=image, origins=effective.origins))
        return tuple(units)

    def _pinned(self, request: dict[str, Any], described: dict[str, Any], origins: dict[str, str]) -> Unit:
        seed = pinned_seed(self.image(described))
        image = self.image({**described, _SEED: seed})
        return Unit(
            request={**request, _SEED: seed},
            key=key(image),
            preimage=image,
            seed=seed,
            pinned=True,
            origins={**origins, _SEED: PIN},
        )


def _cached(asked: _Asked, body: dict[str, Any], options: dict[str, Any]) -> tuple[tuple[Unit, ...], bool]:
    """The units, and whether the body is sent as it came."""
    family, context = asked.family, asked.context
    if not family.sampled:
        effective = Effective(sent=body, origins=dict.fromkeys(body, REQUEST))
        return asked.units(effective, options, False), True
    effective = resolve(family, body, context)
    pin = effective.unseeded and context.unseeded == "pin" and effective.seedable
    if effective.unseeded and not pin and context.unseeded != "record":
        return _bypass(family, body, context, Reason.UNSEEDED)
    if effective.reason is not None:
        return _bypass(family, body, context, effective.reason)
    return asked.units(effective, options, pin), not pin and _same(effective.sent, body)


def _bypass(family: Family, body: dict[str, Any], context: Context, reason: Reason) -> tuple[tuple[Unit, ...], bool]:
    if not family.sampled:
        return (Unit(request=body, reason=reason, origins=dict.fromkeys(body, REQUEST)),), True
    sent, origins = with_profile(family.name, body, context.snapshot)
    return (Unit(request=sent, reason=reason, origins=origins),), _same(sent, body)


def _same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return len(first) == len(second) and all(first.get(name, first) is value for name, value in second.items())

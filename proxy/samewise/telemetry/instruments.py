"""The metrics by name: what they are, in which unit, and how those of several workers become one."""

from __future__ import annotations

from typing import Literal

import msgspec

BOUNDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Upper ends of the buckets of durations, in seconds: from hits of tens of microseconds to long answers."""

AGES = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 604800.0, 2592000.0)
"""The same for the age of entries."""


class Instrument(msgspec.Struct, frozen=True):
    """`merge` says how the values of several workers under the same attributes become one."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    merge: Literal["sum", "max", "min"] = "sum"


INSTRUMENTS = {
    instrument.name: instrument
    for instrument in (
        Instrument("samewise.requests", "counter", "{request}", "Requests by how they were answered"),
        Instrument("samewise.uncached", "counter", "{request}", "Requests that were not read or not stored, by reason"),
        Instrument("samewise.lookup.duration", "histogram", "s", "Time to ask the stores"),
        Instrument("samewise.request.duration", "histogram", "s", "Time from the request to its last byte"),
        Instrument("samewise.time_to_first_token", "histogram", "s", "Time from the request to the first byte of it"),
        Instrument("samewise.entry.age", "histogram", "s", "Age of the entries that answered"),
        Instrument("samewise.tokens", "counter", "{token}", "Completion tokens, and prompt tokens from prefix reuse"),
        Instrument("samewise.verifications", "counter", "{verification}", "Recomputations by verdict"),
        Instrument("samewise.consistency.ratio", "gauge", "1", "Share of recomputations that agreed", "min"),
        Instrument("samewise.consistency.target", "gauge", "1", "What [verify] target asks for", "max"),
        Instrument("samewise.consistency.floor", "gauge", "1", "What [verify] floor asks for", "max"),
        Instrument("samewise.verify.dropped", "counter", "{verification}", "Recomputations that found no room"),
        Instrument("samewise.store.errors", "counter", "{error}", "Failures of the stores"),
        Instrument("samewise.store.evictions", "counter", "{entry}", "Entries that made room for others"),
        Instrument("samewise.store.entries", "gauge", "{entry}", "Entries kept"),
        Instrument("samewise.store.bytes", "gauge", "By", "Bytes kept"),
        Instrument("samewise.store.available", "gauge", "1", "1 while the store can be asked", "min"),
        Instrument("samewise.invalidations", "counter", "{invalidation}", "Invalidations by scope"),
        Instrument("samewise.changes", "counter", "{change}", "Other changes by operators or the proxy itself"),
        Instrument("samewise.events", "counter", "{event}", "Everything else that was noticed, by kind"),
        Instrument("samewise.inflight", "gauge", "{request}", "Requests being answered"),
        Instrument(
            "samewise.waiting", "gauge", "{request}", "Requests whose answer is being fetched, followers included"
        ),
        Instrument("samewise.upstream.healthy", "gauge", "1", "1 while the upstream answers", "min"),
        Instrument("samewise.upstream.environment", "gauge", "1", "1 for what the upstream is now", "max"),
        Instrument("samewise.upstream.running", "gauge", "{request}", "Requests of ours running on the upstream"),
        Instrument("gen_ai.server.request.duration", "histogram", "s", "Time of requests that an upstream answered"),
        Instrument("gen_ai.server.time_to_first_token", "histogram", "s", "Time to their first byte"),
    )
}

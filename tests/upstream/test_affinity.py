"""Where a question is sent when several upstreams could answer it."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samewise.core.route import ROUTED, prompt_prefix
from samewise.ports import Call
from samewise.upstream.affinity import Prefix, Session, by_name, by_rendezvous
from samewise.upstream.prefixes import SHARED_BY, Seen, blocks
from samewise.upstream.strategy import LeastLoaded
from tests.support.clock import ManualClock

SYSTEM = "You are helpful. " * 120


@dataclass
class Backend:
    url: str
    running: int = 0
    since: float = -1e9
    block_tokens: int = 16


def conversation(number: int, turns: int, system: str = SYSTEM) -> dict[str, object]:
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"conversation {number}, question {turn}: " + "why? " * 20})
        messages.append({"role": "assistant", "content": f"answer {number}.{turn}: " + "because. " * 20})
    return {"model": "m", "messages": messages[:-1]}


def call(request: dict[str, object]) -> Call:
    return Call(method="POST", path="/v1/chat/completions", route=lambda: prompt_prefix(request))


@settings(deadline=None)
@given(first=st.binary(max_size=600), more=st.binary(max_size=600), tokens=st.integers(1, 40))
def test_the_blocks_of_a_longer_prompt_begin_with_those_of_a_shorter_one(
    first: bytes, more: bytes, tokens: int
) -> None:
    short, long = blocks(first, tokens), blocks(first + more, tokens)
    whole = len(first) // (tokens * 4)
    assert long[:whole] == short[:whole]


def test_a_longer_conversation_s_prefix_begins_with_the_shorter_one_s() -> None:
    short, long = prompt_prefix(conversation(1, 2)), prompt_prefix(conversation(1, 4))
    assert long.startswith(short)


def test_other_salts_tools_and_models_share_no_blocks() -> None:
    plain = conversation(1, 2)
    variants = [
        plain,
        {**plain, "cache_salt": "a"},
        {**plain, "tools": [{"type": "function"}]},
        {**plain, "model": "n"},
    ]
    firsts = [blocks(prompt_prefix(variant), 16)[0] for variant in variants]
    assert len(set(firsts)) == len(variants)


def test_the_salt_that_a_tenant_s_requests_carry_separates_prefixes_like_a_client_s_own() -> None:
    plain = conversation(1, 2)
    own, sent = {**plain, "cache_salt": "a"}, prompt_prefix(plain, "a")
    assert sent == prompt_prefix(own) == prompt_prefix(own, "of the tenant")
    assert sent != prompt_prefix(plain)


@pytest.mark.parametrize(
    "long",
    [
        {"messages": [{"role": "user", "content": "x" * (4 << 20)}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * (4 << 20)}] * 3}] * 3},
        {"prompt": "y" * (4 << 20)},
        {"prompt": list(range(1_000_000))},
    ],
    ids=["one message", "many parts", "text", "tokens"],
)
def test_a_prompt_is_routed_by_no_more_than_its_beginning(long: dict[str, object]) -> None:
    assert len(prompt_prefix({"model": "m", **long})) == ROUTED


@settings(deadline=None)
@given(st.lists(st.integers(0, 200_000), max_size=300), st.lists(st.integers(0, 200_000), max_size=300))
def test_more_tokens_after_the_same_tokens_share_their_blocks(first: list[int], more: list[int]) -> None:
    short, long = (prompt_prefix({"model": "m", "prompt": prompt}) for prompt in (first, first + more))
    assert long.startswith(short)


def test_conversations_stay_where_they_began_and_spread_over_all() -> None:
    strategy, backends = Prefix(ManualClock()), [Backend(f"http://b{number}/v1") for number in range(4)]
    homes: dict[int, set[str]] = {}
    for turns in range(1, 7):
        for number in range(80):
            homes.setdefault(number, set()).add(strategy.choose(backends, call(conversation(number, turns))).url)
    moved = [number for number, urls in homes.items() if len(urls) > 1]
    assert len(moved) <= 4, "only the first ones, before it was known what all share, may move"
    spread = Counter(next(iter(urls)) for urls in homes.values())
    assert min(spread.values()) >= 8


def test_nobody_is_drowned_by_what_it_has_seen() -> None:
    strategy = Prefix(ManualClock())
    warm, cold = Backend("http://warm/v1"), Backend("http://cold/v1")
    asked = call(conversation(1, 3))
    strategy.seen.note(warm.url, blocks(asked.route(), 16))  # type: ignore[misc]
    assert strategy.choose([warm, cold], asked) is warm
    warm.running = 10
    assert strategy.choose([warm, cold], asked) is cold


def test_an_upstream_that_has_just_come_takes_its_share_gradually() -> None:
    clock = ManualClock()
    strategy = Prefix(clock)
    old, new = Backend("http://old/v1", running=4), Backend("http://new/v1", running=2, since=clock.monotonic())
    chosen = {strategy.choose([old, new], call(conversation(number, 1))).url for number in range(40)}
    assert chosen == {old.url}
    clock.advance(60)
    assert new.url in {strategy.choose([old, new], call(conversation(number, 1))).url for number in range(100, 140)}


def test_when_one_goes_only_its_own_conversations_move() -> None:
    backends = [Backend(f"http://b{number}/v1") for number in range(5)]
    before = {number: by_rendezvous(backends, str(number).encode())[0].url for number in range(200)}
    after = {number: by_rendezvous(backends[1:], str(number).encode())[0].url for number in range(200)}
    assert all(after[number] == url for number, url in before.items() if url != backends[0].url)


def test_a_session_goes_by_its_header_and_the_rest_by_load() -> None:
    strategy = Session("X-Session", ManualClock(), LeastLoaded())
    backends = [Backend(f"http://b{number}/v1") for number in range(3)]
    named = Call(method="POST", path="/", headers=(("x-session", "alice"),))
    assert len({strategy.choose(backends, named).url for _ in range(10)}) == 1
    backends[0].running = backends[1].running = 5
    assert strategy.choose(backends, Call(method="POST", path="/")) is backends[2]


def test_what_is_remembered_is_bounded() -> None:
    seen = Seen(remembered=10)
    for number in range(100):
        seen.note("http://b/v1", (number,))
    assert len(seen) == 10
    assert seen.depth("http://b/v1", (99,)) == 1
    assert seen.depth("http://b/v1", (1,)) == 0


def test_what_is_remembered_grows_with_the_upstreams_up_to_a_bound() -> None:
    seen = Seen(remembered=25, each=10)
    for upstream, length in enumerate((10, 20, 25, 25)):
        for number in range(100):
            seen.note(f"http://{upstream}/v1", (1000 * upstream + number,))
        assert len(seen) == length


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans()),
        max_size=40,
    )
)
def test_the_record_is_what_each_upstream_has_seen_since_it_was_forgotten(
    happened: list[tuple[str, list[int], bool]],
) -> None:
    seen, model, followers = Seen(), dict[str, set[int]](), dict[int, set[int]]()
    for url, numbers, forgotten in happened:
        chain = blocks(b"".join(bytes([number]) * 4 for number in numbers), 1)
        if forgotten:
            seen.forget(url)
            model.pop(url, None)
        else:
            seen.note(url, chain)
            model.setdefault(url, set()).update(chain)
            for before, link in itertools.pairwise(chain):
                followers.setdefault(before, set()).add(link)
        for each in "abc":
            known = model.get(each, set())
            assert seen.depth(each, chain) == next(
                (at for at, link in enumerate(chain) if link not in known), len(chain)
            )
        shared = [at + 1 for at, link in enumerate(chain) if len(followers.get(link, ())) >= SHARED_BY]
        assert seen.common(chain) == (shared[-1] if shared else 0)


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="least-loaded"):
        by_name("fastest", ManualClock(), "x-session")

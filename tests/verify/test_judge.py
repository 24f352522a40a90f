"""What is called a divergence, and what isn't."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from samewise.core.answer import Answer, Usage
from tests.verify.house import ENVIRONMENT, Reply, chat, house, logprobs, recorded

SAID = "the cat sat"


async def test_ten_thousand_that_differ_in_nothing_that_matters_raise_no_alarm() -> None:
    """Ids, times, fingerprints, usage, service tiers, ids of calls, the order and spelling of arguments."""
    numbers = itertools.count()

    def says(body: dict[str, Any], member: str) -> dict[str, Any]:
        number = next(numbers)
        arguments = '{"a":1,"b":2}' if number % 2 else '{ "b": 2.0, "a": 1 }'
        call = {"id": f"call-{number}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return chat(
            SAID,
            number,
            message={"tool_calls": [call]},
            system_fingerprint=f"fp-{number}",
            service_tier=("default", "flex")[number % 2],
            usage={"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": number}},
            timings={"ms": number},
        )

    it = house(says)
    entry = recorded(SAID, answer=says({}, ""))
    for _ in range(10_000):
        assert (await it.judge.verify(entry)).outcome == "match"


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (chat(SAID), "match"),
        (chat("the cat sit"), "divergent"),
        (chat(SAID, finish_reason="length"), "divergent"),
        (chat(SAID, message={"reasoning_content": "hm"}), "divergent"),
        (chat(SAID, choice={"logprobs": {"content": [{"token": "the cat sat", "logprob": -1.0001}]}}), "match"),
    ],
)
async def test_what_a_caller_would_notice_is_compared(now: dict[str, Any], outcome: str) -> None:
    it = house(lambda body, member: now)
    assert (await it.judge.verify(recorded(SAID))).outcome == outcome


async def test_a_divergence_is_confirmed_by_one_more_recomputation() -> None:
    answers = iter([chat("the dog"), chat(SAID)])
    it = house(lambda body, member: next(answers))
    found = await it.judge.verify(recorded(SAID))
    assert found.outcome == "flaky"
    assert found.comparison.position == 4
    assert len(found.runs) == 2


async def test_what_rounding_decided_is_a_near_tie_whichever_run_tells_it() -> None:
    close = logprobs(("the", {"the": -0.1}), (" cat", {" cat": -0.69, " dog": -0.70}))
    far = logprobs(("the", {"the": -0.1}), (" cat", {" cat": -0.1, " dog": -4.0}))
    for told, outcome in ((close, "near_tie"), (far, "flaky")):
        answers = iter([chat("the dog"), chat("the cat", choice=told)])
        it = house(lambda body, member, answers=answers: next(answers))  # type: ignore[misc]
        found = await it.judge.verify(recorded("the cat"))
        assert found.outcome == outcome
        assert found.comparison.gap == pytest.approx(0.01 if outcome == "near_tie" else 3.9)

    answers = iter(
        [chat("the dog")]
        + 3 * [chat("the dog", choice=logprobs(("the", {"the": -0.1}), (" dog", {" dog": -0.69, " cat": -0.70})))]
    )
    it = house(lambda body, member: next(answers))
    found = await it.judge.verify(recorded("the cat"))
    assert found.outcome == "near_tie"
    assert [each.token for each in found.comparison.candidates] == [" cat", " dog"]


async def test_only_the_second_one_asks_for_more_than_was_asked() -> None:
    it = house(lambda body, member: chat("the dog"))
    await it.judge.verify(recorded(SAID))
    first, second = (body for _, body in it.engine.asked[:2])
    asked = json.loads(recorded(SAID).request)
    assert {name: first[name] for name in asked} == asked
    assert first.keys() - asked.keys() == {"cache_salt"}
    assert second["logprobs"] is True
    assert second["top_logprobs"] == 20
    assert second["return_token_ids"] is True
    assert first["cache_salt"] != second["cache_salt"]


async def test_a_server_that_takes_less_is_asked_for_less_and_that_is_remembered() -> None:
    def says(body: dict[str, Any], member: str) -> dict[str, Any] | Reply:
        return Reply(status=400) if "cache_salt" in body or "return_token_ids" in body else chat(SAID)

    it = house(says)
    assert (await it.judge.verify(recorded(SAID))).outcome == "match"
    tried = len(it.engine.asked)
    assert tried > 1
    assert (await it.judge.verify(recorded(SAID))).outcome == "match"
    assert len(it.engine.asked) == tried + 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=429, headers=(("retry-after", "3"),)),
        Reply(status=503),
        Reply(status=400),
        Reply(body=json.dumps(chat(SAID, finish_reason=None)).encode()),
        Reply(body=b'{"choices": ['),
        Reply(fails="cut"),
        Reply(fails="timeout"),
        Reply(body=json.dumps(chat("other")).encode(), environment="f" * 32),
        Reply(body=json.dumps({**chat(SAID), "choices": []}).encode()),
        Reply(body=json.dumps({"error": {"message": "no"}}).encode()),
    ],
    ids=str,
)
async def test_what_is_no_answer_is_inconclusive(reply: Reply) -> None:
    it = house(lambda body, member: reply)
    assert (await it.judge.verify(recorded(SAID))).outcome == "inconclusive"


async def test_an_environment_that_changed_in_between_is_inconclusive() -> None:
    it = house(lambda body, member: chat("the dog"))
    entry = recorded(SAID)

    def says(body: dict[str, Any], member: str) -> dict[str, Any]:
        it.engine.environment = "f" * 32
        return chat("the dog")

    it.engine.says = says
    assert (await it.judge.verify(entry)).outcome == "inconclusive"


async def test_the_odd_one_of_three_is_named() -> None:
    urls = [f"http://{name}/v1" for name in ("one", "two", "three")]
    it = house(lambda body, member: chat(SAID if member != urls[2] else "the dog"), *urls)
    for entry in (recorded(SAID, instance=urls[0]), recorded("the dog", instance=urls[2])):
        found = [await it.judge.verify(entry) for _ in range(4)]
        blamed = [each for each in found if each.outcome == "divergent"]
        assert blamed
        assert all(each.odd == (urls[2],) for each in blamed)
        assert all(each.layer == "instance" for each in blamed)


async def test_the_odd_one_is_named_though_it_is_drained_while_it_is_asked() -> None:
    urls = [f"http://{name}/v1" for name in ("one", "two", "three")]

    def says(body: dict[str, Any], member: str) -> dict[str, Any]:
        if member == urls[2] and member not in it.engine.drained:
            it.engine.drain(member)
        return chat(SAID if member != urls[2] else "the dog")

    it = house(says, *urls)
    for _ in range(4):
        it.engine.drained.clear()
        found = await it.judge.verify(recorded(SAID, instance=urls[0]))
        if found.outcome == "divergent":
            assert it.engine.drained == [urls[2]] and found.odd == (urls[2],)
            break
    else:
        raise AssertionError("the odd one was never asked")


async def test_of_two_nobody_is_called_odd() -> None:
    it = house(lambda body, member: chat(f"from {member}"), "http://one/v1", "http://two/v1")
    found = await it.judge.verify(recorded("from http://one/v1", instance="http://one/v1"))
    assert found.outcome == "divergent"
    assert found.odd == ()
    assert found.layer == "instance"


async def test_a_warm_prefix_cache_is_named_where_it_makes_the_difference() -> None:
    def says(body: dict[str, Any], member: str) -> dict[str, Any]:
        cold = body.get("cache_salt", "").startswith("fresh")
        details = {"prompt_tokens_details": {"cached_tokens": 0 if cold else 128}}
        return chat("cold" if cold else "warm", usage={"prompt_tokens": 200, "completion_tokens": 1, **details})

    it = house(says)
    entry = recorded("warm", answer=says({}, ""), usage=Usage(200, 1, 128))
    found = await it.judge.verify(entry)
    assert found.outcome == "divergent"
    assert found.layer == "prefix cache"
    assert (await it.judge.verify(entry, warm=True)).outcome == "match"


async def test_batching_is_named_where_it_makes_the_difference() -> None:
    it = house(lambda body, member: chat("alone"))
    found = await it.judge.verify(recorded("batched", concurrency=8))
    assert found.layer == "batching"


async def test_a_stream_is_asked_again_as_a_stream() -> None:
    it = house(lambda body, member: chat(SAID))
    entry = recorded(SAID)
    await it.judge.verify(entry)
    assert "stream" not in it.engine.asked[-1][1]
    events = Answer(form="sse", events=())
    await it.judge.verify(
        recorded(SAID, answer=chat(SAID)).__class__(
            **{**{name: getattr(entry, name) for name in entry.__struct_fields__}, "answer": events}
        )
    )
    assert it.engine.asked[-1][1]["stream"] is True


async def test_what_beside_the_body_decided_the_answer_is_sent_again() -> None:
    entry = recorded(SAID, extra={"variant": [["?", "api-version=2"], ["openai-beta", "x=1"]]})
    from samewise.core import again
    from samewise.core.families.registry import BY_NAME

    assert again.path(BY_NAME["chat"], entry) == "/v1/chat/completions?api-version=2"
    assert ("openai-beta", "x=1") in again.fields(entry)


async def test_an_entry_of_an_environment_that_nobody_has_is_not_asked() -> None:
    it = house(lambda body, member: chat("other"))
    found = await it.judge.verify(recorded(SAID, environment="0" * 32))
    assert found.outcome == "inconclusive"
    assert it.engine.asked == []
    assert ENVIRONMENT != "0" * 32

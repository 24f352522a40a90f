"""The dashboard in a real browser: it shows what is, changes what it is told to, and runs nothing that it is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.support.browser import Tab, browsing
from tests.support.mock_backend import MockBackend
from tests.support.proxy import B0, Proxy, until

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]
EVIL = "<img src=x onerror=\"window.hacked='yes'\"><script>window.hacked='yes'</script>"
DIVERGENCE = {
    "id": "d1", "key": "a" * 64, "verdict": "divergent", "position": 2, "model": "m", "environment": "e" * 32,
    "instance": "gpu-0", "at": 1_700_000_000.0,
    "cached": {"text": f"The capital is Paris {EVIL}", "token_ids": [1, 2, 3, 4], "concurrency": 1},
    "recomputed": {"text": "The capital was Paris", "token_ids": [1, 2, 9, 4], "concurrency": 8},
    "candidates": [
        {"token": " is", "token_id": 3, "recorded_logprob": -0.69, "recomputed_logprob": -0.7},
        {"token": " was", "token_id": 9, "recorded_logprob": -0.71, "recomputed_logprob": -0.69},
    ],
}  # fmt: skip


def asked(text: str, **changes: Any) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": text}], **changes}


async def opened(tab: Tab, proxy: Proxy) -> Any:
    await tab.page.goto(proxy.admin_url + "/")
    return tab.page


async def shows(page: Any, place: str, text: str) -> None:
    """Return when the element's text has this in it."""
    await page.wait_for_function(
        "([place, text]) => document.querySelector(place)?.innerText.includes(text)",
        arg=[place, text],
    )


async def with_divergence(page: Any) -> None:
    """The proxy's answers about divergences, scripted."""
    await page.route("**/samewise/v1/divergences?*", lambda route: route.fulfill(json={"items": [DIVERGENCE]}))
    await page.route("**/samewise/v1/divergences/d1", lambda route: route.fulfill(json=DIVERGENCE))


async def test_it_loads_without_a_complaint_and_shows_what_is(tab: Tab, proxy: Proxy) -> None:
    await proxy.post(B0)
    page = await opened(tab, proxy)
    await shows(page, "#state", "ready")
    await shows(page, "#rows", "miss")
    await shows(page, "#environment-list", "a" * 16)
    await shows(page, "#profile-list", "default@1")
    assert tab.complaints == []
    assert await page.evaluate("document.title") == "Samewise"


async def test_it_follows_what_happens_without_being_touched(tab: Tab, proxy: Proxy) -> None:
    page = await opened(tab, proxy)
    await shows(page, "#state", "ready")
    for _ in range(3):
        await proxy.post(B0)
    await shows(page, "#rows", "hit")
    await shows(page, "#tiles", "66.7 %")
    await proxy.admin("POST", "/invalidate", {"scope": "model", "value": "m"})
    await shows(page, "#notices", "invalidate")


async def test_a_divergence_is_there_when_it_was_found(tab: Tab, make_proxy: MakeProxy, mb: MockBackend) -> None:
    mb.text = lambda body, number: f"the answer is {'this' if number == 1 else 'that'} and no other"
    proxy = await make_proxy(settings={"verify.rate": 1.0, "verify.each": 0})
    page = await opened(tab, proxy)
    await shows(page, "#divergence-list", "None")
    await proxy.post(B0)
    assert (await proxy.post(B0)).cache == "HIT"

    async def recomputed() -> bool:
        return bool((await proxy.admin("GET", "/divergences?limit=5"))["items"])

    await until(recomputed)
    await shows(page, "#divergence", "Served")
    await shows(page, "#divergence del", "this")
    assert (await page.inner_text("#divergence ins")).strip() == "that"
    await shows(page, "#consistency-body", "a" * 16)
    assert tab.complaints == []


async def test_a_divergence_is_shown_token_by_token_and_as_text_alone(tab: Tab, proxy: Proxy) -> None:
    page = tab.page
    await with_divergence(page)
    await opened(tab, proxy)
    await shows(page, "#divergence", "Served")
    assert (await page.inner_text("#divergence del")).strip().startswith("is")
    assert (await page.inner_text("#divergence ins")).strip() == "was"
    assert await page.locator("#divergence .ids .first").all_inner_texts() == ["3", "9"]
    await shows(page, "#divergence", "-0.6900")
    assert await page.evaluate("window.hacked") is None
    assert "<script>" in await page.inner_text("#divergence")


async def test_nothing_that_a_request_or_an_answer_has_runs(tab: Tab, proxy: Proxy, mb: MockBackend) -> None:
    mb.text = lambda body, number: EVIL
    page = await opened(tab, proxy)
    body = asked(EVIL, model=EVIL)
    await proxy.post(body, headers={"x-samewise-tags": "t"})
    await shows(page, "#rows", "<img src=x")
    await page.fill("#explain-body", json.dumps(body))
    await page.check("#full")
    await page.click("#explain-form button")
    await shows(page, "#explained", "window.hacked")
    await page.click("#rows button")
    await shows(page, "#entry-body", "<script>")
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main img, main script, dialog img, dialog script").count() == 0
    assert tab.complaints == []


async def test_the_policy_of_the_page_forbids_script_that_is_put_in(tab: Tab, proxy: Proxy) -> None:
    page = await opened(tab, proxy)
    await page.evaluate("""() => {
        const script = document.createElement("script");
        try { script.textContent = "window.hacked = 'yes'"; } catch (error) { return; }
        document.body.append(script);
    }""")
    assert await page.evaluate("window.hacked") is None
    response = await proxy.request("GET", "/", admin=True)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_invalidation_counts_first_and_then_ends(tab: Tab, proxy: Proxy) -> None:
    for text in ("one", "two"):
        await proxy.post(asked(text), headers={"x-samewise-tags": "suite"})
    page = await opened(tab, proxy)
    assert await page.is_disabled("#end")
    await page.select_option("#scope", "tag")
    await page.fill("#value", "suite")
    await page.click("#count")
    await shows(page, "#invalidated", "2 entries would end")
    assert (await proxy.post(asked("one"))).cache == "HIT"
    await page.fill("#value", "other")
    assert await page.is_disabled("#end")
    await page.fill("#value", "suite")
    await page.click("#count")
    await shows(page, "#end", "Invalidate 2")
    await page.click("#end")
    await shows(page, "#invalidated", "Done")
    assert (await proxy.post(asked("one"))).cache == "MISS"


async def test_a_profile_is_rolled_back_and_an_environment_activated(
    tab: Tab, make_proxy: MakeProxy, mb: MockBackend
) -> None:
    async with MockBackend(manifest={"id": "b" * 32, "weights": "sha256:other"}) as other:
        proxy = await make_proxy(mb.url, other.url)
        await proxy.admin("PUT", "/profiles/default", {"values": {"temperature": 0.5}})
        page = await opened(tab, proxy)
        await shows(page, "#profile-list", "default@2")
        await page.click("#profile-list button:has-text('Roll back')")
        await page.fill("#ask-input", "it was better")
        await page.click("#ask-yes")
        await shows(page, "#profile-list", "default@1")
        await shows(page, "#environment-list", "sha256:other")
        await page.click("#environment-list button:has-text('Activate')")
        await page.click("#ask-yes")

        async def active() -> bool:
            items = (await proxy.admin("GET", "/environments"))["items"]
            return [item["id"][0] for item in items if item["active"]] == ["b"]

        await until(active)
        assert tab.complaints == []


async def test_the_token_is_asked_for_and_kept_in_this_tab_alone(tab: Tab, make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"admin.token": "a-secret"})
    page = await opened(tab, proxy)
    await page.wait_for_selector("#ask[open]")
    await page.fill("#ask-input", "wrong")
    await page.keyboard.press("Enter")
    await shows(page, "#ask", "refused")
    await page.fill("#ask-input", "a-secret")
    await page.keyboard.press("Enter")
    await shows(page, "#state", "ready")
    assert await page.evaluate("Object.values(sessionStorage)") == ["a-secret"]
    assert await page.evaluate("Object.values(localStorage)") == []
    assert "a-secret" not in await page.content()
    answer = await proxy.request("GET", "/samewise/v1/status", admin=True)
    assert answer.status == 401
    foreign = {"Authorization": "Bearer a-secret", "Origin": "http://elsewhere.example"}
    posted = await proxy.request("POST", "/samewise/v1/invalidate", body={"scope": "all"}, headers=foreign, admin=True)
    assert posted.status == 403


async def test_it_can_be_used_without_a_mouse_and_every_field_has_a_name(tab: Tab, proxy: Proxy) -> None:
    page = await opened(tab, proxy)
    await shows(page, "#state", "ready")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
    nameless = await page.evaluate("""() => [...document.querySelectorAll("input, select, textarea, button")]
        .filter(each => !each.labels?.length && !each.innerText.trim() && !each.ariaLabel && !each.closest("dialog"))
        .map(each => each.outerHTML)""")
    assert nameless == []
    headings = await page.evaluate(
        "[...document.querySelectorAll('main section')].every(each => each.hasAttribute('aria-labelledby'))"
    )
    assert headings


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_can_be_read_in_light_and_dark(chromium: Any, proxy: Proxy, scheme: str) -> None:
    async with browsing(chromium, color_scheme=scheme) as tab:
        page = await opened(tab, proxy)
        await shows(page, "#state", "ready")
        ratios = await page.evaluate("""() => {
            const light = colour => {
                const parts = colour.match(/[\\d.]+/g).slice(0, 3)
                    .map(each => each / 255)
                    .map(each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
                return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
            };
            const against = (place, card) => {
                const style = each => getComputedStyle(document.querySelector(each));
                const [a, b] = [style(place).color, style(card).backgroundColor].map(light);
                return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            };
            return [against(".tile strong", ".tile"), against(".tile .hint", ".tile"), against("#count", "#count")];
        }""")
        assert min(ratios) >= 4.5, ratios

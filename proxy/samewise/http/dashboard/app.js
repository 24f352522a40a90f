// Looks every second, listens all the time, and asks before it changes anything.

import { call, follow, list, token } from "./api.js";
import { Bars, Dots, OUTCOMES } from "./charts.js";
import { $, badge, count, duration, el, percent, put, rate, short } from "./dom.js";
import { Notices, Requests } from "./requests.js";
import * as views from "./views.js";

const EVENTS = "events?rate=50";
const bars = new Bars($("rates"));
const dots = new Dots($("latency"));
const requests = new Requests(openEntry);
const notices = new Notices();
const verify = { target: null, floor: null };
let before = null;
let chosen = null;
let listening = null;
let asking = false;

// --- asking the operator ---

function ask({ title, text = "", label, yes, secret = false, required = false }) {
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-label").textContent = label;
  $("ask-yes").textContent = yes;
  const input = $("ask-input");
  input.type = secret ? "password" : "text";
  input.required = required;
  input.value = "";
  const dialog = $("ask");
  dialog.returnValue = "";
  dialog.showModal();
  input.focus();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes" ? input.value : null), { once: true });
  });
}

$("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("ask").close("yes");
});
$("ask-no").addEventListener("click", () => $("ask").close(""));
$("entry-close").addEventListener("click", () => $("entry").close());

async function askToken(text = "It stays in this tab and is sent as a header.") {
  if (asking) return;
  asking = true;
  const given = await ask({ title: "Admin token", text, label: "Token", yes: "Use it", secret: true });
  asking = false;
  if (given === null) return;
  token.set(given.trim());
  await begin();
}

function say(text, kind) {
  const state = $("state");
  if (state.textContent !== text) state.textContent = text;
  state.className = `pill ${kind}`;
}

async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.status === 401) {
      say("token needed", "bad");
      askToken(token.get() ? "That token was refused." : undefined);
    } else say(error.status ? error.message : "not reachable", "bad");
    return null;
  }
}

// --- what is now ---

async function look() {
  if (document.hidden || asking) return;
  await attempt(async () => {
    const told = await call("GET", "status");
    const now = performance.now();
    const totals = told.requests ?? {};
    if (before) {
      const passed = (now - before.at) / 1000;
      bars.add(Object.fromEntries(OUTCOMES.map((name) => [name, Math.max(0, (totals[name] ?? 0) - (before.totals[name] ?? 0)) / passed])));
    }
    before = { at: now, totals };
    const degraded = told.degraded ?? [];
    say(told.ready ? (degraded.length ? `degraded: ${degraded.join(", ")}` : "ready") : told.status, told.ready ? (degraded.length ? "warn" : "good") : "bad");
    tiles(told);
    await lookForDivergences();
    views.consistency(Object.entries(told.consistency ?? {}).map(([environment, item]) => ({ environment, ...item })), verify);
  });
}

function tiles(told) {
  const second = told.rate ?? {};
  const all = Object.values(second).reduce((sum, value) => sum + value, 0);
  const totals = told.requests ?? {};
  const seconds = told.seconds ?? {};
  const each = (name) => (totals[name] ? (seconds[name] ?? 0) / totals[name] : 0);
  const spared = (totals.hit ?? 0) + (totals.coalesced ?? 0);
  const time = totals.miss ? Math.max(0, (totals.hit ?? 0) * (each("miss") - each("hit"))) : 0;
  const items = [
    ["Hit rate", percent(told.hit_ratio_last_minute), `last minute; ${percent(told.hit_ratio)} in all`],
    ["Requests a second", rate(all), `${short(Object.values(totals).reduce((sum, value) => sum + value, 0))} in all`],
    ["Tokens saved", short(told.tokens?.saved), `${short(spared)} calls spared`],
    ["Waiting saved", time ? duration(time) : "–", "hits, against the mean miss"],
    ["In flight", count(told.inflight), told.workers ? `${told.workers} workers` : `${short(told.tokens?.prefix_cached)} tokens of prefix reuse`],
  ];
  put($("tiles"), items.map(([name, value, hint]) => el("div", { class: "tile" }, el("span", { class: "hint" }, name), el("strong", {}, value), el("span", { class: "hint" }, hint))));
  put($("legend"), OUTCOMES.map((name) => el("li", {}, badge(name), ` ${short(totals[name])}`)));
}

function drawLatency() {
  if (document.hidden) return;
  dots.draw(Date.now() / 1000);
  const hit = [0.5, 0.95].map((share) => duration(dots.quantile(["hit"], share)));
  const miss = [0.5, 0.95].map((share) => duration(dots.quantile(["miss", "refresh", "bypass"], share)));
  put($("quantiles"), badge("hit"), `median ${hit[0]}, p95 ${hit[1]}`, badge("asked", "miss"), `median ${miss[0]}, p95 ${miss[1]}`);
  $("latency").setAttribute("aria-label", `Latency of recent requests: hits median ${hit[0]}, upstream calls median ${miss[0]}`);
}

// --- what changes seldom ---

async function lookAround() {
  if (document.hidden || asking) return;
  await attempt(async () => {
    const [environments, upstreams, profiles] = await Promise.all([list("environments"), list("upstreams"), list("profiles")]);
    redraw("environment-list", [environments, upstreams], () => views.environments(environments, upstreams, activate));
    redraw("profile-list", profiles, () => views.profiles(profiles, act));
  });
}

// What says the same is left alone, and so is what somebody is using: focus and open parts stay.
const drawn = {};
function redraw(place, told, draw) {
  const said = JSON.stringify(told);
  if (drawn[place] === said || $(place).contains(document.activeElement)) return;
  drawn[place] = said;
  draw();
}

async function lookForDivergences() {
  const items = await list("divergences?limit=50");
  if (!chosen && items.length) await choose(items[0].id, items);
  else redraw("divergence-list", items, () => views.divergences(items, chosen, choose));
}

async function choose(id, items) {
  chosen = id;
  views.divergences(items ?? (await list("divergences?limit=50")), chosen, choose);
  await attempt(async () => views.divergence(await call("GET", `divergences/${encodeURIComponent(id)}`)));
}

// --- what happens ---

function hear(event) {
  if (event.event === "request") {
    if (requests.add(event) && !event.cancelled) dots.add(event.outcome, event.at, event.duration);
    return;
  }
  notices.add(event);
  if (event.kind === "control" || event.kind?.startsWith("environment")) lookAround();
}

// What happened before anybody listened; told once, whoever told it first.
function catchUp() {
  attempt(async () => {
    for (const event of (await list("recent?limit=200")).reverse()) hear(event);
    requests.draw();
  });
}

function listen() {
  listening?.abort();
  listening = new AbortController();
  follow(EVENTS, hear, catchUp, listening.signal);
}

// --- what operators do ---

async function activate(item) {
  const reason = await ask({ title: `Activate ${item.id.slice(0, 16)}?`, text: "Its entries are served from now on, and its upstreams are asked.", label: "Reason", yes: "Activate" });
  if (reason === null) return;
  document.activeElement?.blur();
  await attempt(() => call("POST", `environments/${encodeURIComponent(item.id)}/activate`, { reason }));
  await lookAround();
}

async function act(item, what) {
  const words = { promote: ["Promote the canary", "It answers every request from now on."], rollback: ["Roll back", "Requests take the earlier version from now on; its entries are live again."] };
  const reason = await ask({ title: `${words[what][0]} of ${item.name}?`, text: words[what][1], label: "Reason", yes: words[what][0] });
  if (reason === null) return;
  document.activeElement?.blur();
  await attempt(() => call("POST", `profiles/${encodeURIComponent(item.name)}/${what}`, { reason }));
  await lookAround();
}

async function openEntry(key) {
  try {
    views.entry(await call("GET", `entries/${key}`));
  } catch (error) {
    put($("entry-body"), el("p", {}, error.message));
  }
  $("entry").showModal();
}

$("explain-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    views.explained(await call("POST", "explain", { endpoint: $("endpoint").value, body: $("explain-body").value, full: $("full").checked }));
  } catch (error) {
    put($("explained"), el("p", { class: "bad" }, error.message));
  }
});

const wanted = () => ({ scope: $("scope").value, value: $("scope").value === "all" ? "" : $("value").value });

function forget() {
  $("end").disabled = true;
  $("end").textContent = "Invalidate";
  $("value").disabled = $("scope").value === "all";
  $("invalidated").textContent = "";
}
for (const id of ["scope", "value"]) $(id).addEventListener("input", forget);
$("invalidate-form").addEventListener("submit", (event) => event.preventDefault());

$("count").addEventListener("click", async () => {
  forget();
  try {
    const { matched } = await call("POST", "invalidate", { ...wanted(), dry_run: true });
    $("invalidated").textContent = `${count(matched)} ${matched === 1 ? "entry" : "entries"} would end. Nothing has changed.`;
    $("end").disabled = false;
    $("end").textContent = `Invalidate ${count(matched)}`;
  } catch (error) {
    $("invalidated").textContent = error.message;
  }
});

$("end").addEventListener("click", async () => {
  try {
    const { scope, value } = wanted();
    await call("POST", "invalidate", { scope, value, dry_run: false, reason: $("reason").value });
    forget();
    $("invalidated").textContent = `Done: ${scope}${value ? ` ${value}` : ""} was invalidated.`;
  } catch (error) {
    $("invalidated").textContent = error.message;
  }
});

// --- the page itself ---

const THEME = "samewise-theme";
function theme(value) {
  $("theme").value = value;
  document.documentElement.dataset.theme = value;
}
theme(localStorage.getItem(THEME) ?? "auto");
$("theme").addEventListener("input", () => {
  localStorage.setItem(THEME, $("theme").value);
  theme($("theme").value);
});
$("token").addEventListener("click", () => askToken());
document.addEventListener("visibilitychange", () => {
  before = null;
});

async function begin() {
  await attempt(async () => {
    const config = await call("GET", "config");
    verify.target = config.verify?.target ?? null;
    verify.floor = config.verify?.floor ?? null;
    listen();
  });
  await Promise.all([look(), lookAround()]);
}

async function start() {
  await begin();
  requests.draw(true);
  setInterval(look, 1000);
  setInterval(lookAround, 5000);
  setInterval(() => requests.draw(), 500);
  setInterval(drawLatency, 500);
  $("foot").textContent = "Samewise: the same question gets the same answer.";
}

start();

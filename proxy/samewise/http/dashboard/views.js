// Consistency, divergences, environments, profiles, explanations: what the lists and forms show.

import { $, badge, brief, clock, count, duration, el, facts, percent, put, said, svg, table } from "./dom.js";
import { difference, tokens } from "./diff.js";

// --- consistency ---

export function consistency(items, { target, floor }) {
  if (!items.length) {
    put($("consistency-body"), el("p", { class: "hint" }, "No answer has been recomputed yet. The share of hits that is comes from [verify] rate."));
    return;
  }
  const lows = items.map((item) => Math.min(item.checked ? item.low : 1, floor ?? 1));
  const least = Math.max(0, Math.min(...lows) - (1 - Math.min(...lows)) * 0.15 - 0.001);
  put($("consistency-body"), items.map((item) => gauge(item, least, target, floor)));
}

function gauge(item, least, target, floor) {
  const x = (value) => ((value - least) / (1 - least)) * 600;
  const kind = item.ratio === null ? "none" : item.state === "degraded" || (floor && item.ratio < floor) ? "bad" : target && item.ratio < target ? "warn" : "good";
  const interval = item.checked ? `95 % interval ${percent(item.low, 2)} to ${percent(item.high, 2)}` : null;
  const differed = item.checked - item.agreed;
  const marks = [["target", target], ["floor", floor]]
    .filter(([, value]) => value && value > least)
    .map(([name, value]) => svg("line", { x1: x(value), x2: x(value), y1: 0, y2: 26, class: name }));
  const drawn =
    item.ratio === null
      ? null
      : svg(
          "svg",
          { viewBox: "0 0 600 26", preserveAspectRatio: "none", class: `gauge ${kind}`, "aria-hidden": "true" },
          svg("rect", { x: 0, y: 11, width: 600, height: 4, class: "track" }),
          svg("rect", { x: x(item.low), y: 7, width: Math.max(3, x(item.high) - x(item.low)), height: 12, rx: 3, class: "interval" }),
          svg("rect", { x: x(item.ratio) - 2, y: 3, width: 4, height: 20, rx: 2, class: "value" }),
          marks,
        );
  return el(
    "div",
    { class: "consistent" },
    el("div", { class: "row" }, el("span", { class: "mono", title: item.environment }, brief(item.environment, 16), item.state === "degraded" ? [" ", badge("degraded", "error")] : null), el("strong", { class: kind }, percent(item.ratio, 2))),
    drawn,
    el("p", { class: "hint" }, [interval, `${count(item.checked)} recomputed`, differed ? `${count(differed)} differed` : null, item.odd?.length ? `contradicted by the others: ${item.odd.join(", ")}` : null, target ? `target ${percent(target, 2)}, floor ${percent(floor, 2)}` : null].filter(Boolean).join(" · ")),
  );
}

// --- divergences ---

export function divergences(items, chosen, choose) {
  if (!items.length) {
    put($("divergence-list"), el("li", { class: "hint" }, "None. What was recomputed said the same."));
    if (!chosen) put($("divergence"));
    return;
  }
  put(
    $("divergence-list"),
    items.map((item) =>
      el(
        "li",
        {},
        el(
          "button",
          { type: "button", "aria-pressed": item.id === chosen ? "true" : "false", onclick: () => choose(item.id) },
          el("span", { class: "row" }, badge(item.verdict), el("span", { class: "mono hint" }, clock(item.at))),
          el("span", {}, `${item.model || "–"} at ${item.position ?? "?"}`),
          el("span", { class: "mono hint" }, brief(item.environment)),
        ),
      ),
    ),
  );
}

export function divergence(item) {
  const [cached, recomputed] = [item.cached ?? {}, item.recomputed ?? {}];
  const pieces = difference(tokens(cached), tokens(recomputed));
  const side = (kind) =>
    pieces.filter(([what]) => what === "same" || what === kind).map(([what, text]) => (what === "same" ? el("span", {}, text) : el(what === "gone" ? "del" : "ins", {}, text)));
  const about = (one) =>
    [`ended by ${one.finish_reason ?? "?"}`, one.concurrency ? `${one.concurrency} at once` : null, one.cached_tokens !== undefined && one.cached_tokens !== null ? `${one.cached_tokens} tokens of prefix KV` : null, one.at ? clock(one.at) : null].filter(Boolean).join(" · ");
  put(
    $("divergence"),
    el("div", { class: "row wrap" }, badge(item.verdict), el("span", {}, `first difference at ${item.position ?? "?"}${item.unit ? ` (${item.unit})` : ""}`), item.layer && item.layer !== "unknown" ? el("span", { class: "hint" }, `points at: ${item.layer}`) : null, el("span", { class: "mono hint" }, brief(item.key, 20)), el("span", { class: "hint" }, item.instance ?? "")),
    el(
      "div",
      { class: "sides" },
      el("section", { "aria-label": "Served" }, el("h3", {}, "Served"), el("pre", {}, side("gone")), el("p", { class: "hint" }, about(cached))),
      el("section", { "aria-label": "Recomputed" }, el("h3", {}, "Recomputed"), el("pre", {}, side("come")), el("p", { class: "hint" }, about(recomputed))),
    ),
    ids(item, cached, recomputed),
    candidates(item.candidates ?? []),
  );
}

function ids(item, cached, recomputed) {
  if (!cached.token_ids || !recomputed.token_ids || item.position === null || item.position === undefined) return null;
  const from = Math.max(0, item.position - 5);
  const strip = (name, all) =>
    el("tr", {}, el("th", { scope: "row" }, name), all.slice(from, from + 12).map((id, at) => el("td", { class: from + at === item.position ? "mono first" : "mono" }, id)));
  return el("div", { class: "scroll" }, el("table", { class: "ids" }, el("caption", {}, `Token ids from position ${from}`), el("tbody", {}, strip("served", cached.token_ids), strip("recomputed", recomputed.token_ids))));
}

function candidates(items) {
  const known = (each) => each.token || each.token_id !== null || each.recorded_logprob !== null || each.recomputed_logprob !== null;
  if (!items.some(known)) return null;
  const nats = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(4)} (${percent(Math.exp(value), 2)})`);
  const names = ["served", "recomputed"];
  return el(
    "div",
    { class: "scroll" },
    table(
      ["Candidate", "Token", "Log-probability when served", "when recomputed"],
      items.map((each, at) => [names[at] ?? "", el("code", {}, each.token ? said(JSON.stringify(each.token)) : each.token_id ?? "?"), nats(each.recorded_logprob), nats(each.recomputed_logprob)]),
    ),
  );
}

// --- environments and profiles ---

const light = (good, word) => el("span", { class: `light ${good ? "good" : "bad"}` }, word);

export function environments(items, upstreams, activate) {
  const seen = new Set(items.flatMap((item) => item.upstreams.map((each) => each.url)));
  const unknown = upstreams.filter((each) => !seen.has(each.url));
  const cards = items.map((item) => environment(item, upstreams, activate));
  if (unknown.length)
    cards.push(el("article", { class: "part" }, el("h3", {}, "Not known yet"), el("ul", { class: "plain" }, unknown.map(upstream))));
  put($("environment-list"), cards.length ? cards : el("p", { class: "hint" }, "No upstream is configured."));
}

function upstream(each) {
  return el("li", {}, light(each.healthy, each.healthy ? (each.draining ? "draining" : "healthy") : "away"), " ", el("span", { class: "mono" }, each.url), each.running ? el("span", { class: "hint" }, ` · ${each.running} running`) : null, each.error ? el("p", { class: "hint" }, each.error) : null);
}

function environment(item, upstreams, activate) {
  const known = Object.fromEntries(upstreams.map((each) => [each.url, each]));
  const differs = item.differs ?? [];
  const cell = (value) => (value === undefined ? "–" : el("span", { title: said(value) }, brief(said(value), 26)));
  return el(
    "article",
    { class: item.active ? "part active" : "part" },
    el("div", { class: "row" }, el("h3", { class: "mono", title: item.id }, brief(item.id, 16)), item.active ? badge("active", "hit") : el("button", { type: "button", onclick: () => activate(item) }, "Activate")),
    el("p", { class: "hint" }, [item.model, item.engine, item.origin].filter(Boolean).join(" · ")),
    el("ul", { class: "plain" }, item.upstreams.map((each) => upstream({ ...each, ...known[each.url] }))),
    differs.length
      ? el("div", { class: "scroll" }, table(["Differs in", "Active one", "Here"], differs.map((each) => [el("span", { class: "mono" }, each.field), cell(each.active), cell(each.here)])))
      : null,
  );
}

export function profiles(items, act) {
  put($("profile-list"), items.length ? items.map((item) => profile(item, act)) : el("p", { class: "hint" }, "No profiles."));
}

function profile(item, act) {
  const version = (number) => item.versions.find((each) => each.number === number);
  const values = (number) => {
    const told = Object.entries(version(number)?.values ?? {});
    return told.length ? facts(told.map(([name, value]) => [name, said(value)])) : el("p", { class: "hint" }, "Sets nothing.");
  };
  const earlier = item.versions.length > 1;
  return el(
    "article",
    { class: "part" },
    el("div", { class: "row" }, el("h3", {}, `${item.name}@${item.active ?? "–"}`), el("span", { class: "hint" }, `for ${item.match}`)),
    values(item.active),
    item.canary ? el("div", { class: "canary" }, el("p", {}, badge("canary", "refresh"), ` @${item.canary.version} for ${item.canary.percent} % of requests`), values(item.canary.version)) : null,
    el("details", {}, el("summary", {}, `${item.versions.length} version${item.versions.length === 1 ? "" : "s"}`), el("ol", { class: "plain", reversed: true }, [...item.versions].reverse().map((each) => el("li", {}, `@${each.number} `, el("code", {}, JSON.stringify(each.values ?? {})), el("span", { class: "hint" }, [each.by, each.reason].filter(Boolean).map((word) => ` · ${word}`).join("")))))),
    el(
      "div",
      { class: "row" },
      item.canary ? el("button", { type: "button", onclick: () => act(item, "promote") }, "Promote the canary") : null,
      item.canary || earlier ? el("button", { type: "button", onclick: () => act(item, "rollback") }, item.canary ? "End the canary" : "Roll back") : null,
    ),
  );
}

// --- explain, entries ---

export function explained(told) {
  const parts = Object.entries(told.parts ?? {}).map(([name, part]) => [el("span", { class: "mono" }, name), el("code", {}, said(part.value)), part.from]);
  const near = told.nearest;
  put(
    $("explained"),
    el("p", { class: "row wrap" }, told.cacheable ? badge("cacheable", "hit") : badge(`not cacheable: ${told.reason}`, "error"), el("span", { class: "mono key" }, told.key ?? "")),
    el("div", { class: "scroll" }, table(["Part", "Value", "From"], parts)),
    told.prefix ? prefix(told.prefix) : null,
    near ? nearest(near, told.key) : el("p", { class: "hint" }, "Nothing like it is in the cache."),
  );
}

function prefix(told) {
  const warm = Object.entries(told.warm ?? {}).map(([url, blocks]) => [el("span", { class: "mono" }, url), `${blocks} of ${told.blocks}`]);
  return el(
    "div",
    {},
    el("p", { class: "hint" }, `Prefix ${told.digest}: ${told.blocks} blocks of ${told.block_tokens} tokens${told.assumed ? " (assumed)" : ""}`),
    warm.length ? el("div", { class: "scroll" }, table(["Upstream", "Warm blocks"], warm)) : null,
  );
}

function nearest(near, key) {
  if (near.key === key) return el("p", {}, badge("in the cache", "hit"), " This request would be a hit.");
  const cell = (each, side) => (side in each ? el("code", {}, said(each[side])) : "–");
  return el(
    "div",
    {},
    el("h3", {}, `Nearest entry, ${percent(near.similarity, 0)} alike`),
    el("p", { class: "mono key" }, near.key),
    near.differences.length
      ? el("div", { class: "scroll" }, table(["Differs in", "How", "This request", "The entry"], near.differences.map((each) => [el("span", { class: "mono" }, each.path), each.what, cell(each, "a"), cell(each, "b")])))
      : el("p", { class: "hint" }, "It differs in what an entry doesn't tell: namespace, epoch, or a header of the API's version."),
  );
}

export function entry(told) {
  const made = { created: clock(told.created), ttl: duration(told.ttl), usage: JSON.stringify(told.usage), tags: (told.tags ?? []).join(", ") || "–" };
  put($("entry-body"), facts(Object.entries({ ...told, ...made }).map(([name, value]) => [name, value === null ? "–" : said(value)])));
}

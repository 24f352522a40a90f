// Recent requests, and what else happened.

import { $, badge, brief, clock, count, duration, el, put, said } from "./dom.js";
import { OUTCOMES } from "./charts.js";

const KEPT = 400;
const SHOWN = 60;
const NOTICES = 40;
const QUIET = new Set(["tokens", "store-eviction", "verify-dropped", "consistency", "admin"]);

// Newest first, each once. True where it was new.
function insert(items, item, same, most) {
  if (items.some(same)) return false;
  const place = items.findIndex((each) => each.at <= item.at);
  items.splice(place < 0 ? items.length : place, 0, item);
  if (items.length > most) items.length = most;
  return true;
}

export class Requests {
  constructor(open) {
    this.records = [];
    this.open = open;
    this.changed = true;
    for (const name of OUTCOMES) $("outcome").append(el("option", {}, name));
    for (const id of ["outcome", "contains", "pause"]) $(id).addEventListener("input", () => this.draw(true));
  }

  add(record) {
    const isNew = insert(this.records, record, (each) => each.request_id === record.request_id, KEPT);
    this.changed ||= isNew;
    return isNew;
  }

  draw(now = false) {
    const used = $("rows").matches(":hover") || $("rows").contains(document.activeElement);
    if (!now && (!this.changed || used || $("pause").checked)) return;
    this.changed = false;
    const outcome = $("outcome").value;
    const words = $("contains").value.toLowerCase();
    const fits = (record) =>
      (!outcome || record.outcome === outcome) &&
      (!words ||
        [record.model, record.reason, record.key, record.endpoint, record.tenant, record.request_id].some((each) =>
          String(each ?? "").toLowerCase().includes(words),
        ));
    const rows = this.records.filter(fits).slice(0, SHOWN).map((record) => this.row(record));
    const nothing = el("tr", {}, el("td", { colspan: 9, class: "hint" }, "Nothing yet. Requests appear here as they end."));
    put($("rows"), rows.length ? rows : nothing);
  }

  row(record) {
    const key = record.key
      ? el("button", { type: "button", class: "link mono", title: record.key, onclick: () => this.open(record.key) }, brief(record.key))
      : "–";
    const outcome = record.cancelled ? [badge(record.outcome), " ", badge("left", "quiet")] : badge(record.outcome);
    return el(
      "tr",
      {},
      el("td", { class: "mono" }, clock(record.at)),
      el("td", {}, outcome),
      el("td", {}, record.reason ?? ""),
      el("td", {}, record.status),
      el("td", { class: "number" }, duration(record.duration)),
      el("td", { class: "number" }, record.prefix_cached ? count(record.prefix_cached) : "–"),
      el("td", {}, record.model || "–"),
      el("td", {}, record.endpoint + (record.stream ? " · stream" : "")),
      el("td", {}, key),
    );
  }
}

export class Notices {
  constructor() {
    this.items = [];
    this.draw();
  }

  add(notice) {
    if (QUIET.has(notice.kind) || (notice.kind === "verification" && notice.attributes?.verdict === "match")) return;
    const same = (each) => each.at === notice.at && each.kind === notice.kind;
    if (insert(this.items, notice, same, NOTICES)) this.draw();
  }

  draw() {
    const none = el("li", { class: "hint" }, "Nothing out of the ordinary.");
    put($("notices"), this.items.length ? this.items.map(line) : none);
  }
}

function line(notice) {
  const told = { ...notice.attributes, ...notice.detail };
  const kind = notice.kind === "control" ? told.kind : notice.kind;
  for (const name of ["kind", "id", "outcome", "tenant"]) delete told[name];
  const words = Object.entries(told)
    .filter(([, value]) => value !== "" && value !== null && typeof value !== "object")
    .map(([name, value]) => `${name} ${brief(said(value), /^[0-9a-f]{16,}$/.test(value) ? 12 : 60)}`)
    .join(" · ");
  return el("li", {}, el("span", { class: "mono hint" }, clock(notice.at)), badge(kind, notice.kind), el("span", {}, words));
}

// Elements and figures. Whatever a server or a prompt says goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function put(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value) => whole.format(value ?? 0);
export const short = (value) => (Math.abs(value ?? 0) < 10000 ? whole.format(value ?? 0) : compact.format(value));

export function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${(value * 100).toFixed(value === 1 ? 0 : digits)} %`;
}

export function rate(value) {
  if (!value) return "0";
  return value < 10 ? value.toFixed(1) : short(value);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

export function clock(seconds) {
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? "–" : at.toLocaleTimeString("en-GB");
}

export const brief = (identity, length = 12) =>
  identity && identity.length > length ? `${identity.slice(0, length)}…` : identity || "–";

export const said = (value) => (typeof value === "string" ? value : JSON.stringify(value));

export const badge = (word, kind = word) => el("span", { class: `badge ${String(kind).replace(/[^a-z-]/gi, "")}` }, word);

export const facts = (pairs) =>
  el("dl", { class: "facts" }, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

export function table(heads, rows) {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))),
  );
}

// Requests a second as bars, latencies as dots. Colours come from the style sheet.

import { duration, rate, svg } from "./dom.js";

export const OUTCOMES = ["hit", "coalesced", "miss", "refresh", "bypass", "error"];
export const SECONDS = 120;
const WIDTH = 600;
const HEIGHT = 150;

export function colour(outcome) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${outcome}`).trim();
}

export class Bars {
  constructor(place) {
    this.place = place;
    this.history = [];
    this.paths = Object.fromEntries(OUTCOMES.map((name) => [name, svg("path", { class: `fill-${name}` })]));
    this.top = svg("text", { x: 4, y: 14, class: "axis" });
    this.lines = [0.25, 0.5, 0.75].map((share) =>
      svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT * share, y2: HEIGHT * share, class: "line" }),
    );
    place.append(
      svg(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        this.lines,
        Object.values(this.paths),
      ),
    );
    this.label = document.createElement("span");
    this.label.className = "axis";
    place.append(this.label);
  }

  add(rates) {
    this.history.push(rates);
    if (this.history.length > SECONDS) this.history.shift();
    this.draw();
  }

  draw() {
    const totals = this.history.map((rates) => OUTCOMES.reduce((sum, name) => sum + (rates[name] ?? 0), 0));
    const highest = Math.max(...totals, 1);
    const step = WIDTH / SECONDS;
    const first = SECONDS - this.history.length;
    const bases = new Array(this.history.length).fill(0);
    for (const name of OUTCOMES) {
      let drawn = "";
      this.history.forEach((rates, at) => {
        const tall = ((rates[name] ?? 0) / highest) * (HEIGHT - 6);
        if (tall <= 0) return;
        const x = ((first + at) * step + 0.6).toFixed(1);
        const y = (HEIGHT - bases[at] - tall).toFixed(1);
        drawn += `M${x} ${y}h${(step - 1.2).toFixed(1)}v${tall.toFixed(1)}h-${(step - 1.2).toFixed(1)}z`;
        bases[at] += tall;
      });
      this.paths[name].setAttribute("d", drawn);
    }
    this.label.textContent = Math.max(...totals) > 0 ? `${rate(highest)}/s` : "";
    this.place.setAttribute("aria-label", `Requests a second by outcome: at most ${rate(highest)}, now ${rate(totals.at(-1))}`);
  }
}

const LOW = -4.3;
const HIGH = 2;

export class Dots {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
  }

  add(outcome, at, took) {
    this.points.push([outcome, at, took]);
    if (this.points.length > 1500) this.points.splice(0, 300);
  }

  quantile(names, share) {
    const values = this.points.filter(([name]) => names.includes(name)).map(([, , took]) => took);
    values.sort((a, b) => a - b);
    return values.length ? values[Math.min(values.length - 1, Math.floor(values.length * share))] : null;
  }

  draw(now) {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: wide, clientHeight: tall } = this.canvas;
    this.canvas.width = wide * ratio;
    this.canvas.height = tall * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    const y = (took) => tall - 6 - ((Math.log10(Math.max(took, 6e-5)) - LOW) / (HIGH - LOW)) * (tall - 12);
    for (const mark of [0.0001, 0.001, 0.01, 0.1, 1, 10]) {
      pen.fillStyle = colour("line");
      pen.fillRect(0, Math.round(y(mark)), wide, 1);
      pen.fillStyle = colour("quiet");
      pen.fillText(duration(mark), 4, y(mark) - 3);
    }
    const colours = Object.fromEntries(OUTCOMES.map((name) => [name, colour(name)]));
    for (const [outcome, at, took] of this.points) {
      const x = wide - ((now - at) / SECONDS) * wide;
      if (x < 0 || x > wide + 4) continue;
      pen.fillStyle = colours[outcome] ?? colours.bypass;
      pen.globalAlpha = 0.75;
      pen.beginPath();
      if (outcome === "hit" || outcome === "coalesced") pen.arc(x - 3, y(took), 2.6, 0, 7);
      else pen.rect(x - 5.4, y(took) - 2.4, 4.8, 4.8);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }
}

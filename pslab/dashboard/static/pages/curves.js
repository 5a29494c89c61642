// Pages of curves: Learning (loss, evaluations, learning rate), Staleness by worker and over time, and Rates.

import { h, put, say, number } from "../dom.js";
import { upTo } from "../model.js";
import { canvas } from "../draw/canvas.js";
import { drawChart, drawHeat, smooth } from "../draw/chart.js";

const AXES = { version: ["version", (row) => row[1]], seconds: ["seconds", (row) => row[0]], samples: ["samples", (row) => row[7]] };
const EVALS = ["--a", "--b", "--c"], DASHES = [[], [7, 4], [2, 3]];

export function choice(name, options, chosen, changed) {
  return h("fieldset", { class: "choice" }, h("legend", {}, name), Object.entries(options).map(([value, text]) =>
    h("label", {}, h("input", { type: "radio", name: `choice-${name}`, value, checked: value === chosen, onchange: () => changed(value) }), h("span", {}, text))));
}

export function learning(context) {
  const chart = canvas("Loss of the updates", "chart tall"), scaled = canvas("Factor of the learning rate", "chart");
  const scales = h("div", { class: "card", hidden: true }, h("h2", {}, "Learning rate × "), scaled);
  const measured = h("div", { class: "columns" });
  let axis = "version", names = "";
  const element = h("section", { class: "page", "aria-label": "Learning" },
    h("div", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, "Loss"), choice("over", { version: "versions", seconds: "seconds", samples: "samples" }, axis, (value) => { axis = value; context.changed(); })), chart,
      h("p", { class: "dim" }, "Faint: each update; strong: a running mean.")), measured, scales);

  function update({ model, clock }) {
    const [label, key] = AXES[axis], end = clock.live ? model.updates.length : upTo(model.updates, clock.t);
    // The last version is evaluated after the job has stopped.
    const all = clock.live || clock.t >= model.seconds;
    const seen = model.updates.slice(0, end), raw = seen.map((row) => [key(row), row[5] ?? NaN]);
    const newest = model.final ?? model.updates.at(-1), last = newest ? key(newest) : null;
    drawChart(chart, [{ points: raw, colour: "--a", faint: true, width: 1 }, { points: smooth(raw, 20), colour: "--a", width: 2.2 }],
      { xLabel: label, log: true, end: last, at: null });
    const found = [...new Set(model.evals.flatMap((row) => Object.keys(row[2])))];
    if (names !== found.join()) {
      names = found.join();
      put(measured, found.map((name) => h("div", { class: "card" }, h("h2", {}, `Evaluation: ${name}`), canvas(`Evaluation: ${name}`, "chart"))));
    }
    found.forEach((name, place) => {
      const rows = model.evals.filter((row) => name in row[2] && (all || row[0] <= clock.t));
      const x = (row) => axis === "seconds" ? row[0] : axis === "version" ? row[1] : samplesAt(model, row[0]);
      const points = rows.map((row) => [x(row), row[2][name]]);
      drawChart(measured.children[place].lastChild, [{ points, colour: EVALS[place % 3], dash: DASHES[place % 3] }, { points: points.length < 60 ? points : [], colour: EVALS[place % 3], dots: true }], { xLabel: label, end: last, log: name !== "accuracy" });
    });
    const factors = seen.map((row) => [key(row), row[6]]);
    scales.hidden = !factors.some(([, factor]) => factor !== 1);
    if (!scales.hidden) drawChart(scaled, [{ points: factors, colour: "--c" }], { xLabel: label, zero: true, end: last });
  }
  return { element, update };
}

function samplesAt(model, t) {
  const place = upTo(model.updates, t);
  return place ? model.updates[place - 1][7] : 0;
}

export function staleness() {
  const map = canvas("Applied contributions by worker and staleness", "heat"), chart = canvas("Staleness of the updates", "chart");
  const words = h("p", { class: "headline" });
  const element = h("section", { class: "page", "aria-label": "Staleness" },
    h("div", { class: "card lead" }, words),
    h("div", { class: "card" }, h("h2", {}, "Contributions by worker and staleness"), h("div", { class: "scroll" }, map),
      h("p", { class: "dim" }, "Staleness of a contribution: number of versions made between reading the weights and being applied.")),
    h("div", { class: "card" }, h("h2", {}, "Over time"), chart, h("ul", { class: "legend" }, h("li", {}, h("span", { class: "swatch line-a" }), "mean"), h("li", {}, h("span", { class: "swatch line-b" }), "max"))));

  function update({ model, clock }) {
    const t = clock.live ? Infinity : clock.t, ages = model.ages(t);
    map.style.height = `${Math.max(120, 40 + model.workers.length * (model.workers.length > 24 ? 16 : 32))}px`;
    const order = model.order(), sorted = (rows) => order.map((worker) => rows[worker]);
    drawHeat(map, sorted(model.workers), { applied: sorted(ages.applied), dropped: sorted(ages.dropped) });
    let count = 0, sum = 0, most = 0;
    for (const worker of ages.applied) for (const [age, n] of worker) { count += n; sum += age * n; most = Math.max(most, age); }
    const dropped = ages.dropped.reduce((a, b) => a + b, 0);
    say(words, count ? `${count} contributions applied, mean staleness ${number(sum / count)}, at most ${most}${dropped ? `; ${dropped} dropped` : "; none dropped"}.` : "Nothing has been applied yet.");
    const seen = model.updates.slice(0, upTo(model.updates, t));
    const mean = seen.map((row) => [row[0], row[3]]), worst = seen.map((row) => [row[0], row[4]]);
    drawChart(chart, [{ points: worst, colour: "--b", width: 1, faint: true }, { points: smooth(worst, 10), colour: "--b", dash: [7, 4] }, { points: smooth(mean, 10), colour: "--a" }],
      { xLabel: "seconds", yLabel: "versions", zero: true, end: clock.live ? null : model.seconds });
  }
  return { element, update };
}

export function rates() {
  const versions = canvas("Versions per second", "chart"), samples = canvas("Samples per second", "chart");
  const shares = h("ul", { class: "shares equal", "aria-label": "Share of applied contributions" }), words = h("p", { class: "dim" });
  const element = h("section", { class: "page", "aria-label": "Rates" },
    h("div", { class: "columns" }, h("div", { class: "card" }, h("h2", {}, "Versions per second"), versions), h("div", { class: "card" }, h("h2", {}, "Samples per second"), samples)),
    h("div", { class: "card" }, h("h2", {}, "Whose contributions were applied"), shares, words));

  function update({ model, clock }) {
    const t = clock.live ? Infinity : clock.t, seen = model.updates.slice(0, upTo(model.updates, t));
    const begin = clock.live ? Math.max(seen[0]?.[0] ?? 0, clock.t - 120) : model.begin, end = clock.live ? clock.t : model.seconds;
    const bins = Math.max(8, Math.min(60, Math.round(model.updates.length / 5)));
    const width = Math.max((end - begin) / bins, 1e-9), counts = new Map();
    let former = null;
    for (const row of seen) {
      const bin = Math.floor((row[0] - begin) / width);
      if (bin >= 0 && former) {
        const held = counts.get(bin) ?? [0, 0];
        held[0] += row[1] - former[1]; held[1] += row[7] - former[7]; counts.set(bin, held);
      }
      former = row;
    }
    const last = Math.floor(((clock.live ? clock.t : clock.t) - begin) / width);
    const points = (place) => Array.from({ length: Math.max(0, last) }, (_, bin) => [begin + (bin + 0.5) * width, (counts.get(bin)?.[place] ?? 0) / width]);
    drawChart(versions, [{ points: points(0), colour: "--a" }], { xLabel: "seconds", zero: true, range: [begin, end] });
    drawChart(samples, [{ points: points(1), colour: "--c" }], { xLabel: "seconds", zero: true, range: [begin, end] });
    accepted(model, t);
  }

  function accepted(model, t) {
    const { applied, dropped } = model.ages(t), own = applied.map((ages) => [...ages.values()].reduce((a, b) => a + b, 0));
    const total = own.reduce((a, b) => a + b, 0), equal = 1 / Math.max(1, model.workers.length), most = Math.max(equal, ...own.map((n) => n / (total || 1)));
    const key = own.join() + dropped.join();
    if (shares.dataset.key === key) return;
    shares.dataset.key = key;
    put(shares, model.order().map((place) => h("li", {}, h("span", {}, model.workers[place]),
      h("span", { class: "meter" }, h("span", { class: "compute", style: { width: `${100 * own[place] / (total || 1) / most / 1.05}%` } }), h("i", { style: { left: `${100 * equal / most / 1.05}%` } })),
      h("b", {}, `${(100 * own[place] / (total || 1)).toFixed(1)} %`), h("span", { class: "dim" }, `${own[place]}${dropped[place] ? `, ${dropped[place]} dropped` : ""}`))));
    words.textContent = `The mark is the equal share, ${number(100 * equal)} %.`;
  }
  return { element, update };
}

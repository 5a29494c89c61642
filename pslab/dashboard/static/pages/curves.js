// Curves of a run: loss, evaluations and learning rate, staleness, and rates.

import { h, put } from "../dom.js";
import { canvas } from "../draw/canvas.js";
import { drawChart, drawHeat, smooth } from "../draw/chart.js";
import { upTo } from "../model.js";

// By name: the title of an axis, and its value in a row of updates.
const AXES = {
  version: ["versions", (row) => row[1]],
  seconds: ["seconds", (row) => row[0]],
  samples: ["samples", (row) => row[7]],
};
const EVALS = ["--a", "--b", "--c"];
const DASHES = [[], [7, 4], [2, 3]];

export function curves(context) {
  const parts = [losses(context), staleness(), rates()];
  const element = h(
    "section",
    { class: "page", "aria-label": "Curves" },
    parts.map((part) => part.elements),
  );
  const update = (found) => {
    for (const part of parts) part.update(found);
  };
  return { element, update };
}

function card(title, ...children) {
  return h("div", { class: "card" }, h("h2", {}, title), children);
}

/** Radio buttons that choose the axis. */
function choice(chosen, changed) {
  const option = ([value, [text]]) => {
    const input = { type: "radio", name: "over", value, checked: value === chosen, onchange: () => changed(value) };
    return h("label", {}, h("input", input), h("span", {}, text));
  };
  return h("fieldset", { class: "choice" }, h("legend", {}, "over"), Object.entries(AXES).map(option));
}

function losses(context) {
  const chart = canvas("Loss of the updates", "chart tall");
  const scaled = canvas("Factor of the learning rate", "chart");
  const scales = card("Learning rate × ", scaled);
  const measured = h("div", { class: "columns" });
  let axis = "version";
  let names = "";
  const over = choice(axis, (value) => {
    axis = value;
    context.changed();
  });
  const note = h("p", { class: "dim" }, "Faint: each update; strong: a running mean.");
  const bar = h("div", { class: "bar" }, h("h2", {}, "Loss"), over);

  function update({ model, clock }) {
    const [label, key] = AXES[axis];
    const seen = model.updates.slice(0, clock.live ? model.updates.length : upTo(model.updates, clock.t));
    const raw = seen.map((row) => [key(row), row[5] ?? NaN]);
    const newest = model.updates.at(-1);
    const end = newest ? key(newest) : null;
    const faint = { points: raw, colour: "--a", faint: true, width: 1 };
    const strong = { points: smooth(raw, 20), colour: "--a", width: 2.2 };
    drawChart(chart, [faint, strong], { xLabel: label, log: true, end });
    evaluations(model, clock, label, end);
    const factors = seen.map((row) => [key(row), row[6]]);
    scales.hidden = !factors.some(([, factor]) => factor !== 1);
    if (!scales.hidden) drawChart(scaled, [{ points: factors, colour: "--c" }], { xLabel: label, zero: true, end });
  }

  function evaluations(model, clock, label, end) {
    const found = [...new Set(model.evals.flatMap((row) => Object.keys(row[2])))];
    if (names !== found.join()) {
      names = found.join();
      const made = (title) => card(title, canvas(title, "chart"));
      put(
        measured,
        found.map((name) => made(`Evaluation: ${name}`)),
      );
    }
    // The last version is evaluated after the job has stopped.
    const until = clock.live || clock.t >= model.seconds ? Infinity : clock.t;
    const places = { version: (row) => row[1], seconds: (row) => row[0], samples: (row) => samplesAt(model, row[0]) };
    found.forEach((name, place) => {
      const rows = model.evals.filter((row) => name in row[2] && row[0] <= until);
      const points = rows.map((row) => [places[axis](row), row[2][name]]);
      const look = { points, colour: EVALS[place % 3] };
      const dots = { ...look, points: points.length < 60 ? points : [], dots: true };
      const lines = [{ ...look, dash: DASHES[place % 3] }, dots];
      drawChart(measured.children[place].lastChild, lines, { xLabel: label, end, log: name !== "accuracy" });
    });
  }
  return { elements: [h("div", { class: "card" }, bar, chart, note), measured, scales], update };
}

function samplesAt(model, t) {
  const place = upTo(model.updates, t);
  return place ? model.updates[place - 1][7] : 0;
}

function staleness() {
  const map = canvas("Contributions by worker and staleness", "heat");
  const chart = canvas("Staleness of the updates", "chart");
  const meaning = "Staleness of a contribution: number of versions made between reading the weights and being applied.";
  const item = (look, text) => h("li", {}, h("span", { class: `swatch ${look}` }), text);
  const legend = h("ul", { class: "legend" }, item("line-a", "mean"), item("line-b", "max"));
  const byWorker = h("div", { class: "scroll" }, map);
  const elements = [
    card("Contributions by worker and staleness", byWorker, h("p", { class: "dim" }, meaning)),
    card("Staleness", chart, legend),
  ];

  function update({ model, clock }) {
    const t = clock.live ? Infinity : clock.t;
    const { applied, dropped } = model.ages(t);
    const count = model.workers.length;
    map.style.height = `${Math.max(120, 40 + count * (count > 24 ? 16 : 32))}px`;
    const sorted = (rows) => model.order().map((worker) => rows[worker]);
    drawHeat(map, sorted(model.workers), { applied: sorted(applied), dropped: sorted(dropped) });
    const seen = model.updates.slice(0, upTo(model.updates, t));
    const mean = seen.map((row) => [row[0], row[3]]);
    const worst = seen.map((row) => [row[0], row[4]]);
    const lines = [
      { points: worst, colour: "--b", width: 1, faint: true },
      { points: smooth(worst, 10), colour: "--b", dash: [7, 4] },
      { points: smooth(mean, 10), colour: "--a" },
    ];
    const end = clock.live ? null : model.seconds;
    drawChart(chart, lines, { xLabel: "seconds", yLabel: "versions", zero: true, end });
  }
  return { elements, update };
}

function rates() {
  const versions = canvas("Versions per second", "chart");
  const samples = canvas("Samples per second", "chart");
  const both = [card("Versions per second", versions), card("Samples per second", samples)];

  function update({ model, clock }) {
    const seen = model.updates.slice(0, upTo(model.updates, clock.live ? Infinity : clock.t));
    const first = Math.max(seen[0]?.[0] ?? 0, clock.t - 120);
    const range = clock.live ? [first, clock.t] : [0, model.seconds];
    const wanted = Math.max(8, Math.min(60, Math.round(model.updates.length / 5)));
    const width = Math.max((range[1] - range[0]) / wanted, 1e-9);
    const counts = binned(seen, range[0], width);
    const bins = Math.min(wanted, Math.max(0, Math.floor((clock.t - range[0]) / width)));
    const middle = (bin) => range[0] + (bin + 0.5) * width;
    const points = (place) =>
      Array.from({ length: bins }, (_, bin) => [middle(bin), (counts.get(bin)?.[place] ?? 0) / width]);
    drawChart(versions, [{ points: points(0), colour: "--a" }], { xLabel: "seconds", zero: true, range });
    drawChart(samples, [{ points: points(1), colour: "--c" }], { xLabel: "seconds", zero: true, range });
  }
  return { elements: h("div", { class: "columns" }, both), update };
}

/** By the number of a bin: the versions and samples made in it. */
function binned(updates, begin, width) {
  const counts = new Map();
  let former = null;
  for (const row of updates) {
    const bin = Math.floor((row[0] - begin) / width);
    if (bin >= 0 && former) {
      const held = counts.get(bin) ?? [0, 0];
      held[0] += row[1] - former[1];
      held[1] += row[7] - former[7];
      counts.set(bin, held);
    }
    former = row;
  }
  return counts;
}

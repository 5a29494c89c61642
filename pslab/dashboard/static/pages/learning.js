// The loss over versions, seconds or samples; evaluations; the learning rate as the policy scales it.

import { h, put } from "../dom.js";
import { upTo } from "../model.js";
import { canvas } from "../draw/canvas.js";
import { drawChart, smooth } from "../draw/chart.js";

const AXES = { version: ["version", (row) => row[1]], seconds: ["seconds", (row) => row[0]], samples: ["samples", (row) => row[7]] };
const EVALS = ["--a", "--b", "--c"], DASHES = [[], [7, 4], [2, 3]];

export function choice(name, options, chosen, changed) {
  return h("fieldset", { class: "choice" }, h("legend", {}, name), Object.entries(options).map(([value, text]) =>
    h("label", {}, h("input", { type: "radio", name: `choice-${name}`, value, checked: value === chosen, onchange: () => changed(value) }), h("span", {}, text))));
}

export function learning(context) {
  const chart = canvas("Loss of the updates", "chart tall"), scaled = canvas("What the learning rate is multiplied by", "chart");
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

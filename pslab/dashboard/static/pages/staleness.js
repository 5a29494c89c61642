// How old contributions were when they were applied: by worker, and over time.

import { h, say, number } from "../dom.js";
import { upTo } from "../model.js";
import { canvas } from "../draw/canvas.js";
import { drawHeat } from "../draw/heat.js";
import { drawChart, smooth } from "../draw/chart.js";

export function staleness() {
  const map = canvas("Applied contributions by worker and staleness", "heat"), chart = canvas("Staleness of the updates", "chart");
  const words = h("p", { class: "headline" });
  const element = h("section", { class: "page", "aria-label": "Staleness" },
    h("div", { class: "card lead" }, words),
    h("div", { class: "card" }, h("h2", {}, "Contributions by worker and staleness"), h("div", { class: "scroll" }, map),
      h("p", { class: "dim" }, "A contribution's staleness: versions made between reading the weights and being applied.")),
    h("div", { class: "card" }, h("h2", {}, "Over time"), chart, h("ul", { class: "legend" }, h("li", {}, h("span", { class: "swatch line-a" }), "mean"), h("li", {}, h("span", { class: "swatch line-b" }), "most"))));

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

// Versions and samples per second, and whose work counts.

import { h, put, number } from "../dom.js";
import { upTo } from "../model.js";
import { canvas } from "../draw/canvas.js";
import { drawChart } from "../draw/chart.js";

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

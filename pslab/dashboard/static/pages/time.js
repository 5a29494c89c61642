// A lane per worker (compute, pull, push, wait, wasted), and the fate of each contribution.

import { h, put, say, number, seconds } from "../dom.js";
import { upTo, KINDS } from "../model.js";
import { canvas } from "../draw/canvas.js";
import { drawLanes, laneHeight } from "../draw/lanes.js";

export const LEGEND = [["compute", "compute"], ["pull", "pull"], ["push", "push"], ["wait", "waits"], ["wasted", "wasted"], ["applied", "applied"], ["dropped", "dropped"], ["open", "pending"]];

export function legend() {
  return h("ul", { class: "legend", "aria-label": "Legend" }, LEGEND.map(([name, text]) => h("li", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), text)));
}

/** The time in seconds that the median worker needs for about a dozen tickets. */
export function usualSpan(model, from = model.from) {
  const total = Math.max(model.to - from, 1e-6), counts = model.grants.map((rows) => rows.length).sort((a, b) => a - b);
  const median = counts[counts.length >> 1] || 1;
  return Math.min(total, Math.max(total * 14 / median, total / 200));
}

export function fate(model, ticket, t) {
  if (ticket.settled === undefined || ticket.settled > t) return "pending";
  return ticket.applied ? `applied in version ${ticket.version}, staleness ${ticket.staleness}, weight ${number(ticket.weight)}` : `dropped: ${ticket.reason}, staleness ${ticket.staleness}`;
}

export function time(context) {
  const lanes = canvas("A lane for each worker: when it computed, communicated and waited", "lanes");
  const detail = h("p", { class: "detail", role: "status", id: "contribution" });
  const zoomed = h("output", { class: "dim" });
  const table = h("tbody");
  const shares = h("ul", { class: "shares", "aria-label": "Share of all workers' time" });
  const element = h("section", { class: "page", "aria-label": "Time" },
    h("div", { class: "card" },
      h("div", { class: "bar" }, legend(), h("div", { class: "buttons" }, zoomed,
        h("button", { type: "button", "aria-label": "Zoom in (+)", onclick: () => zoom(0.5) }, "+"),
        h("button", { type: "button", "aria-label": "Zoom out (−)", onclick: () => zoom(2) }, "−"))),
      h("div", { class: "scroll" }, lanes), detail),
    h("div", { class: "columns" },
      h("div", { class: "card" }, h("h2", {}, "Where the time went"), shares),
      h("div", { class: "card" }, h("h2", {}, "Latest contributions"), h("div", { class: "scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, ["ticket", "worker", "from", "at", "loss", "fate"].map((title) => h("th", { scope: "col" }, title)))), table)))));
  let hits = [], selected = null, factor = 1, listed = "";

  function span() { return (context.clock.live ? 30 : usualSpan(context.model)) * factor * Math.min(1, Math.max(0.35, lanes.clientWidth / 900)); }
  function zoom(by) {
    const most = context.clock.live ? 4 : Math.max(1, (context.model.to - context.model.from) / usualSpan(context.model));
    factor = Math.min(Math.max(factor * by, 1 / 64), most);
    context.changed();
  }

  lanes.addEventListener("click", (event) => {
    const box = lanes.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const near = hits.map((hit) => [Math.hypot((hit.x - x) * (hit.x < x ? 1.6 : 0.5), (hit.y - y) * 1.5), hit]).sort((a, b) => a[0] - b[0])[0];
    selected = near && near[0] < 60 ? near[1].ticket.ticket : null;
    context.changed();
  });

  function update({ model, clock }) {
    lanes.style.height = `${laneHeight(model.workers.length, model.workers.length > 24 ? 14 : 34)}px`;
    hits = drawLanes(lanes, model, { t: clock.t, span: span(), live: clock.live, selected });
    say(zoomed, seconds(span()));
    const ticket = selected === null ? null : model.tickets.get(selected);
    say(detail, ticket ? tell(model, ticket, clock.t) : "Click a contribution in a lane or in the list to see its fate.");
    latest(model, clock.t);
    const parts = model.shares(clock.t);
    const key = parts.map((part) => Math.round(part * 1000)).join();
    if (shares.dataset.key !== key) {
      shares.dataset.key = key;
      const names = ["compute", "pull", "push", "wait", "wasted", "compute"];
      put(shares, KINDS.map((kind, place) => parts[place] > 0.0005 && h("li", {}, h("span", { class: `swatch ${names[place]}` }), h("span", {}, kind === "wait" ? "waiting" : kind),
        h("span", { class: "meter" }, h("span", { class: names[place], style: { width: `${parts[place] * 100}%` } })), h("b", {}, `${(parts[place] * 100).toFixed(1)} %`))));
    }
  }

  function latest(model, t) {
    const end = upTo(model.commits, t), rows = model.commits.slice(Math.max(0, end - 8), end).reverse();
    const key = rows.map(([, number]) => `${number}${model.tickets.get(number)?.settled <= t}`).join() + selected;
    if (key === listed) return;
    listed = key;
    put(table, rows.map(([at, number]) => {
      const ticket = model.tickets.get(number);
      return ticket && h("tr", { "aria-selected": number === selected ? "true" : "false" },
        h("td", {}, h("button", { type: "button", class: "link", onclick: () => { selected = number; context.changed(); } }, String(number))),
        h("td", {}, model.workers[ticket.worker]), h("td", {}, ticket.base ?? "–"), h("td", {}, seconds(at)), h("td", {}, loss(ticket.loss)), h("td", {}, fate(model, ticket, t)));
    }));
  }

  return { element, update, zoom };
}

function loss(value) { return value === null || value === undefined ? "–" : number(value); }

function tell(model, ticket, t) {
  return `Ticket ${ticket.ticket} of ${model.workers[ticket.worker]}: from version ${ticket.base}, granted at ${seconds(ticket.granted)}, committed at ${seconds(ticket.end)}; ${ticket.samples} samples${ticket.loss !== null ? `, loss ${number(ticket.loss)}` : ""}. It is ${fate(model, ticket, t)}.`;
}

// A lane per worker (compute, pull, push, wait, wasted), the fate of each contribution, and the log in words.

import { h, number, put, say, seconds } from "../dom.js";
import { canvas } from "../draw/canvas.js";
import { drawLanes, laneHeight } from "../draw/lanes.js";
import { KINDS, upTo } from "../model.js";

const LEGEND = [
  ["compute", "compute"],
  ["pull", "pull"],
  ["push", "push"],
  ["wait", "waits"],
  ["wasted", "wasted"],
  ["applied", "applied"],
  ["dropped", "dropped"],
  ["open", "pending"],
];

export function legend() {
  const item = ([name, text]) => h("li", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), text);
  return h("ul", { class: "legend", "aria-label": "Legend" }, LEGEND.map(item));
}

/** The time in seconds that the median worker needs for about a dozen tickets. */
export function usualSpan(model, from = model.begin) {
  const total = Math.max(model.seconds - from, 1e-6);
  const counts = model.grants.map((rows) => rows.length).sort((a, b) => a - b);
  const median = counts[counts.length >> 1] || 1;
  return Math.min(total, Math.max((total * 14) / median, total / 200));
}

function fate(ticket, t) {
  if (ticket.settled === undefined || ticket.settled > t) return "pending";
  if (!ticket.applied) return `dropped: ${ticket.reason}, staleness ${ticket.staleness}`;
  return `applied in version ${ticket.version}, staleness ${ticket.staleness}, weight ${number(ticket.weight)}`;
}

export function time(context) {
  const lanes = canvas("A lane for each worker: when it computed, communicated and waited", "lanes");
  const detail = h("p", { class: "detail", role: "status", id: "contribution" });
  const zoomed = h("output", { class: "dim" });
  const shares = h("ul", { class: "shares", "aria-label": "Share of all workers' time" });
  const log = logCard(context);
  const zooms = [
    h("button", { type: "button", "aria-label": "Zoom in (+)", onclick: () => zoom(0.5) }, "+"),
    h("button", { type: "button", "aria-label": "Zoom out (−)", onclick: () => zoom(2) }, "−"),
  ];
  const bar = h("div", { class: "bar" }, legend(), h("div", { class: "buttons" }, zoomed, zooms));
  const element = h(
    "section",
    { class: "page", "aria-label": "Time" },
    h("div", { class: "card" }, bar, h("div", { class: "scroll" }, lanes), detail),
    h("div", { class: "card" }, h("h2", {}, "Where the time went"), shares),
    log.element,
  );
  let hits = [];
  let selected = null;
  let factor = 1;

  function span() {
    const usual = context.clock.live ? 30 : usualSpan(context.model);
    return usual * factor * Math.min(1, Math.max(0.35, lanes.clientWidth / 900));
  }

  function zoom(by) {
    const { model, clock } = context;
    const most = clock.live ? 4 : Math.max(1, (model.seconds - model.begin) / usualSpan(model));
    factor = Math.min(Math.max(factor * by, 1 / 64), most);
    context.changed();
  }

  lanes.addEventListener("click", (event) => {
    const box = lanes.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const far = (hit) => Math.hypot((hit.x - x) * (hit.x < x ? 1.6 : 0.5), (hit.y - y) * 1.5);
    const [near] = hits.map((hit) => [far(hit), hit]).sort((a, b) => a[0] - b[0]);
    selected = near && near[0] < 60 ? near[1].ticket.ticket : null;
    context.changed();
  });

  function update({ model, clock }) {
    lanes.style.height = `${laneHeight(model.workers.length, model.workers.length > 24 ? 14 : 34)}px`;
    hits = drawLanes(lanes, model, { t: clock.t, span: span(), live: clock.live, selected });
    say(zoomed, seconds(span()));
    const ticket = selected === null ? null : model.tickets.get(selected);
    say(detail, ticket ? tell(model, ticket, clock.t) : "Click a contribution in a lane to see its fate.");
    spent(model.shares(clock.t));
    log.update(model, clock);
  }

  function spent(parts) {
    const key = parts.map((part) => Math.round(part * 1000)).join();
    if (shares.dataset.key === key) return;
    shares.dataset.key = key;
    put(
      shares,
      KINDS.map((kind, place) => parts[place] > 0.0005 && share(kind, parts[place])),
    );
  }
  return { element, update, zoom };
}

function share(kind, part) {
  const look = kind === "at work" ? "compute" : kind;
  const percent = part * 100;
  return h(
    "li",
    {},
    h("span", { class: `swatch ${look}` }),
    h("span", {}, kind === "wait" ? "waiting" : kind),
    h("span", { class: "meter" }, h("span", { class: look, style: { width: `${percent}%` } })),
    h("b", {}, `${percent.toFixed(1)} %`),
  );
}

function tell(model, ticket, t) {
  const loss = ticket.loss === null || ticket.loss === undefined ? "" : `, loss ${number(ticket.loss)}`;
  const times = `granted at ${seconds(ticket.granted)}, committed at ${seconds(ticket.end)}`;
  const from = `Ticket ${ticket.ticket} of ${model.workers[ticket.worker]}: from version ${ticket.base}`;
  return `${from}, ${times}; ${ticket.samples} samples${loss}. It is ${fate(ticket, t)}.`;
}

// The log

const SHOWN = 300;

/** The decision log in words, filtered by worker, kind and text. */
function logCard(context) {
  const list = h("ol", { class: "log", id: "log" });
  const count = h("p", { class: "dim", role: "status" });
  const worker = h("select", { "aria-label": "Worker", onchange: changed });
  const kind = h("select", { "aria-label": "Kind", onchange: changed });
  const text = h("input", { type: "search", placeholder: "contains …", "aria-label": "Text", oninput: changed });
  const filters = h("div", { class: "filters" }, worker, kind, text);
  const element = h("div", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, "Log"), filters), count, list);
  let key = "";
  let options = "";

  function changed() {
    key = "";
    context.changed();
  }

  function choices(model) {
    const kinds = [...new Set(model.log.map((row) => row[2]))].sort();
    const wanted = model.workers.join() + kinds.join();
    if (wanted === options) return;
    options = wanted;
    const former = [worker.value, kind.value];
    const option = (value, name) => h("option", { value }, name);
    const names = model.order().map((place) => option(String(place), model.workers[place]));
    put(worker, option("", "all workers"), names);
    put(
      kind,
      option("", "all kinds"),
      kinds.map((name) => option(name, name)),
    );
    [worker.value, kind.value] = former;
  }

  function wanted(model, [, , name, who, sentence]) {
    const inApply = name === "apply" && sentence.includes(`${model.workers[worker.value]}'s`);
    if (worker.value !== "" && String(who) !== worker.value && !inApply) return false;
    return (!kind.value || name === kind.value) && sentence.toLowerCase().includes(text.value.toLowerCase());
  }

  function update(model, clock) {
    choices(model);
    const end = upTo(model.log, clock.live ? Infinity : clock.t);
    const now = `${end}/${model.log[end - 1]?.[1]}`;
    if (now === key) return;
    key = now;
    const found = model.log.slice(0, end).filter((row) => wanted(model, row));
    const from = model.begin ? ` from ${seconds(model.begin)} on` : "";
    const cut = found.length > SHOWN ? `, only the latest ${SHOWN} are shown` : "";
    say(count, `${found.length} entries${from}${cut}; newest first`);
    const latest = found.slice(-SHOWN).reverse();
    put(
      list,
      latest.map((row) => logRow(model, row)),
    );
  }
  return { element, update };
}

function logRow(model, [t, number, kind, who, sentence]) {
  return h(
    "li",
    { "data-kind": kind },
    h("span", { class: "when" }, `${t.toFixed(2)} s`),
    h("span", { class: "number" }, `#${number}`),
    h("span", { class: "kind" }, kind),
    h("span", {}, who >= 0 && h("b", {}, `${model.workers[who]} `), sentence),
  );
}

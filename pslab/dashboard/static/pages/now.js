// What each worker does, who waits, why and for whom; the job, and what its servers hold.

import { bytes, facts, h, number, put, say, seconds, stacked, svg } from "../dom.js";

const STATES = {
  computing: "computing",
  transferring: "transferring",
  waiting: "waiting",
  lost: "lost",
  left: "left",
  done: "done",
  joined: "joined",
  wasted: "wasted",
  there: "in until the end",
  absent: "not here yet",
};

const compare = new Intl.Collator("en", { numeric: true }).compare;
// From this number of workers on, each row takes one line only.
const MANY = 16;

export function now() {
  const headline = h("p", { class: "headline", id: "holdup" });
  const tally = h("ul", { class: "tally" });
  const working = workersCard();
  const below = jobAndServers();
  const element = h(
    "section",
    { class: "page", "aria-label": "Now" },
    h("div", { class: "card lead" }, headline, tally),
    working.element,
    below.elements,
  );

  function update(context) {
    const { model, clock } = context;
    const workers = clock.live ? liveWorkers(model, clock) : recordedWorkers(model, clock.t);
    lead(workers, model, clock);
    working.update(workers);
    below.update(context);
  }

  function lead(workers, model, clock) {
    const waiting = workers.filter((worker) => worker.state === "waiting").sort((a, b) => b.seconds - a.seconds);
    const ended = over(model, clock.t) && !clock.live ? "The job has ended." : "";
    const note = clock.live ? model.status?.note || model.status?.change : ended;
    say(headline, note || heldUp(waiting[0], workers.length));
    const states = Map.groupBy(workers, (worker) => worker.state);
    // Always in the same order.
    const present = Object.keys(STATES).filter((state) => states.has(state));
    const wanted = present.map((state) => [state, states.get(state).length]);
    const key = JSON.stringify(wanted);
    if (tally.dataset.shown === key) return;
    tally.dataset.shown = key;
    put(
      tally,
      wanted.map(([state, count]) => h("li", { "data-state": state }, h("b", {}, String(count)), ` ${STATES[state]}`)),
    );
  }
  return { element, update };
}

function heldUp(longest, workers) {
  if (longest?.why) return `${longest.name} has waited ${longest.seconds.toFixed(1)} s for ${longest.why}`;
  return workers ? "Nobody is held up." : "No worker has joined yet.";
}

/** A row for each worker, and an arrow from each that waits to those who would release it. */
function workersCard() {
  const list = h("ol", { class: "workers", id: "workers" });
  const arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
  const rows = new Map();

  function row(name) {
    if (rows.has(name)) return rows.get(name);
    const made = {
      state: h("span", { class: "state" }),
      since: h("span", { class: "since" }),
      why: h("p", { class: "why" }),
      facts: h("p", { class: "facts" }),
    };
    const title = h("div", { class: "name" }, h("strong", {}, name), made.state, made.since);
    made.element = h("li", { "data-worker": name }, title, made.why, made.facts);
    rows.set(name, made);
    // Rows are sorted by name.
    const after = [...rows.keys()].filter((other) => compare(other, name) > 0).sort(compare)[0];
    list.insertBefore(made.element, after ? rows.get(after).element : null);
    return made;
  }

  function update(workers) {
    for (const worker of workers) {
      const made = row(worker.name);
      made.element.dataset.state = worker.state;
      say(made.state, STATES[worker.state] ?? worker.state);
      say(made.since, ["absent", "there"].includes(worker.state) ? "" : seconds(Math.max(worker.seconds, 0)));
      explain(made.why, worker);
      say(made.facts, worker.facts);
    }
    for (const [name, made] of rows) {
      if (workers.some((worker) => worker.name === name)) continue;
      made.element.remove();
      rows.delete(name);
    }
    list.classList.toggle("many", workers.length > MANY);
    draw(workers);
  }

  function draw(workers) {
    const box = list.getBoundingClientRect();
    const top = (name) => rows.get(name).element.getBoundingClientRect().top - box.top + 18;
    const lines = workers
      .filter((worker) => worker.state === "waiting")
      .flatMap((worker) =>
        (worker.releasers ?? [])
          .slice(0, 4)
          .filter((name) => rows.has(name) && name !== worker.name)
          .map((name) => [top(worker.name), top(name)]),
      );
    const key = JSON.stringify([Math.round(box.height), lines.map((pair) => pair.map(Math.round))]);
    if (arcs.dataset.key === key) return;
    arcs.dataset.key = key;
    arcs.setAttribute("width", WIDTH);
    arcs.setAttribute("height", Math.max(box.height, 1));
    put(
      arcs,
      lines.map(([from, to], index) => arrow(from, to, index)),
    );
  }
  return { element: h("div", { class: "card who" }, arcs, list), update };
}

/** Show the awaited event in ink, and what the others do about it dimmed. */
function explain(element, worker) {
  const text = worker.why ? `waits for ${worker.why}` : (worker.doing ?? "");
  if (element.textContent === text) return;
  element.title = text;
  const place = worker.why ? text.indexOf(" (") : -1;
  if (place < 0) say(element, text);
  else put(element, text.slice(0, place), h("span", { class: "dim" }, text.slice(place)));
}

// Of the arrows, in pixels.
const WIDTH = 46;

function arrow(from, to, index) {
  const bend = Math.max(6, WIDTH - 12 - Math.min(30, Math.abs(to - from) * 0.12));
  const out = Math.max(4, WIDTH - bend + (index % 3) * 3);
  const curve = `M ${WIDTH - 4} ${from} C ${out - 14} ${from}, ${out - 14} ${to}, ${WIDTH - 9} ${to}`;
  return [
    svg("path", { d: curve, class: "arc" }),
    svg("path", { d: `M ${WIDTH - 2} ${to} l -9 -4.5 v 9 z`, class: "tip" }),
  ];
}

function liveWorkers(model, clock) {
  const status = model.status;
  if (!status) return [];
  const later = Math.max(0, clock.t - status.seconds);
  return status.workers.map((worker) => ({
    name: worker.name,
    state: worker.state,
    seconds: worker.seconds + later,
    why: worker.waiting_for,
    releasers: worker.releasers,
    doing: ["computing", "transferring"].includes(worker.state)
      ? `ticket ${worker.ticket} from version ${worker.base_version}`
      : "",
    facts: factsOf(worker.applied, worker.dropped, worker.mean_staleness, worker.incarnation, worker.computes),
  }));
}

function over(model, t) {
  return t >= model.seconds && model.stops.length > 0;
}

function recordedWorkers(model, t) {
  const { applied, dropped } = model.ages(t);
  const ended = over(model, t);
  return model.order().map((number) => {
    let found = model.worker(number, t);
    // After the end, nobody computes or waits.
    if (ended && !["lost", "left", "done", "absent"].includes(found.state)) found = { state: "there", since: t };
    let count = 0;
    let sum = 0;
    for (const [age, n] of applied[number]) {
      count += n;
      sum += age * n;
    }
    return {
      name: model.workers[number],
      state: found.state,
      seconds: t - found.since,
      why: found.state === "waiting" ? found.event : "",
      doing: doing(found),
      facts: factsOf(count, dropped[number], count ? sum / count : 0, 0),
    };
  });
}

function doing({ ticket, base, doing: what }) {
  if (ticket === undefined) return "";
  return `${what === "compute" ? "" : `${what}, `}ticket ${ticket} from version ${base ?? "–"}`;
}

function factsOf(applied, dropped, staleness, incarnation, computes = "") {
  const parts = [computes, `${applied} applied`, dropped ? `${dropped} dropped` : ""];
  parts.push(`mean staleness ${Number.isFinite(staleness) ? number(staleness) : 0}`);
  parts.push(incarnation ? `incarnation ${incarnation}` : "");
  return parts.filter(Boolean).join(", ");
}

// The job and its servers

const TITLES = ["server", "address", "state", "holds", "memory", "entries executed", "behind"];

function jobAndServers() {
  const job = h("dl", { class: "facts-list", id: "job" });
  const held = h("dl", { class: "facts-list", id: "memory" });
  const servers = stacked("Servers");
  const tables = stacked("Sparse tables", { id: "tables" });
  const total = h("p", { class: "dim", role: "status" });
  const memory = h("div", { class: "card" }, h("h2", {}, "Memory by kind"), held);
  servers.element.append(total);
  const first = h("div", { class: "columns" }, h("div", { class: "card" }, h("h2", {}, "The job"), job), memory);
  let key = "";

  function update({ model, clock, info }) {
    const status = clock.live ? model.status : null;
    const at = status ? null : model.figures(clock.t);
    // Without values that change with each frame, so that the page is redrawn only if something else changes.
    const steady = status && { ...status, seconds: 0, workers: 0 };
    const shown = JSON.stringify([model.job, info.going, steady, at]);
    if (shown === key) return;
    key = shown;
    facts(job, jobRows(model.job, info, status, at));
    const found = status?.servers ?? [];
    const log = Math.max(0, ...found.map((server) => server.executed ?? 0));
    const copies = Boolean(status?.replicas);
    servers.show(
      TITLES,
      found.map((server) => [serverCells(server, log, copies), server.state]),
    );
    const sum = found.reduce((all, server) => all + (server.bytes ?? 0), 0);
    say(total, `Together ${bytes(sum)}: the weights and what the optimizer keeps.`);
    const parts = found.flatMap((server) => memoryRows(server, found.length > 1));
    facts(held, parts);
    memory.hidden = !parts.length;
    const { titles, rows } = status?.tables ?? { titles: [], rows: [] };
    tables.show(
      titles,
      rows.map((cells) => [cells]),
    );
  }
  return { elements: [first, servers.element, tables.element], update };
}

function jobRows(job, info, status, at) {
  const { progress } = status ?? {};
  const going = "running, or killed: it has no summary. This page polls for new entries";
  return [
    ["job", job.name],
    ["policy", config(job.policy)],
    ["optimizer", config(job.optimizer)],
    ["seed", job.seed],
    ["progress", progress && far(progress)],
    ["applied", count(status?.applied ?? at?.applied)],
    ["pending", status && count(status.pending)],
    ["samples", count(status?.samples ?? at?.samples)],
    ["largest staleness", number(status?.max_staleness ?? at?.most)],
    ["workers not listed", status?.unlisted || null],
    ["the run", info.going ? going : null],
  ];
}

function serverCells(server, log, copies) {
  const state = h("span", { class: "state" }, server.state);
  const cells = [String(server.task_index), server.address, state, bytes(server.bytes), memoryOf(server.memory)];
  // Of servers with replicas the one that leads knows what is executed where a part is served, and how far copies are
  // behind.
  if (copies) {
    const lag = ["in sync", "learns"].includes(server.state) ? count(server.lag) : "–";
    return [...cells, count(server.executed || null), lag];
  }
  return [...cells, count(server.executed), count(server.executed === null ? null : log - server.executed)];
}

function count(value) {
  return Number.isFinite(value) ? value.toLocaleString("en") : "–";
}

function far({ epoch, epochs, done, total, unit }) {
  return `${epochs ? `epoch ${epoch} of ${epochs}, ` : ""}${count(done)} of ${count(total)} ${unit}`;
}

function memoryOf(found) {
  return found?.limit ? `${bytes(found.total)} of ${bytes(found.limit)}` : "–";
}

function memoryRows(server, several) {
  const where = several ? `server ${server.task_index}: ` : "";
  return (server.memory?.parts ?? []).map((part) => [`${where}${part.kind}`, bytes(part.bytes)]);
}

function config(found) {
  if (!found) return undefined;
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : value);
  const knobs = Object.entries(found).filter(([key]) => key !== "name");
  if (!knobs.length) return found.name;
  return `${found.name}: ${knobs.map(([key, value]) => `${key} ${text(value)}`).join(", ")}`;
}

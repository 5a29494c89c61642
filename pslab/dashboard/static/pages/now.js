// What each worker does, and who waits, why and for whom.

import { h, put, say, seconds, svg, number } from "../dom.js";

const STATES = { computing: "computing", transferring: "transferring", waiting: "waiting", lost: "lost", left: "left", done: "done", joined: "joined", wasted: "wasted", there: "in until the end", absent: "not here yet" };

const compare = new Intl.Collator("en", { numeric: true }).compare;
// From this number of workers on, each row takes one line only.
const MANY = 16;

export function now() {
  const list = h("ol", { class: "workers", id: "workers" });
  const arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
  const headline = h("p", { class: "headline", id: "holdup" });
  const tally = h("ul", { class: "tally" });
  const element = h("section", { class: "page", "aria-label": "Now" },
    h("div", { class: "card lead" }, headline, tally), h("div", { class: "card who" }, arcs, list));
  const rows = new Map();

  function row(name) {
    if (!rows.has(name)) {
      const made = { state: h("span", { class: "state" }), why: h("p", { class: "why" }), facts: h("p", { class: "facts" }), since: h("span", { class: "since" }) };
      made.element = h("li", { "data-worker": name }, h("div", { class: "name" }, h("strong", {}, name), made.state, made.since), made.why, made.facts);
      rows.set(name, made);
      // Rows are sorted by name.
      const after = [...rows.keys()].filter((other) => compare(other, name) > 0).sort(compare)[0];
      list.insertBefore(made.element, after ? rows.get(after).element : null);
    }
    return rows.get(name);
  }

  function update({ model, clock }) {
    const workers = clock.live ? liveWorkers(model, clock) : recordedWorkers(model, clock.t);
    for (const worker of workers) {
      const made = row(worker.name);
      made.element.dataset.state = worker.state;
      say(made.state, STATES[worker.state] ?? worker.state);
      say(made.since, ["absent", "there"].includes(worker.state) ? "" : seconds(Math.max(worker.seconds, 0)));
      explain(made.why, worker);
      say(made.facts, worker.facts);
    }
    for (const [name, made] of rows) if (!workers.some((worker) => worker.name === name)) { made.element.remove(); rows.delete(name); }
    list.classList.toggle("many", workers.length > MANY);
    lead(workers, model, clock);
    draw(workers);
  }

  /** Show the awaited event in ink, and what the others do about it dimmed. */
  function explain(element, worker) {
    const text = worker.why ? `waits for ${worker.why}` : worker.doing ?? "";
    if (element.textContent === text) return;
    element.title = text;
    const place = worker.why ? text.indexOf(" (") : -1;
    if (place < 0) say(element, text);
    else put(element, text.slice(0, place), h("span", { class: "dim" }, text.slice(place)));
  }

  function lead(workers, model, clock) {
    const waiting = workers.filter((worker) => worker.state === "waiting").sort((a, b) => b.seconds - a.seconds);
    const longest = waiting[0], ended = over(model, clock.t) && !clock.live ? "The job has ended." : "";
    const note = clock.live ? model.status?.note || model.status?.change : ended;
    say(headline, note || (longest && longest.why ? `${longest.name} has waited ${longest.seconds.toFixed(1)} s for ${longest.why}` : workers.length ? "Nobody is held up." : "No worker has joined yet."));
    const states = Map.groupBy(workers, (worker) => worker.state);
    // Always in the same order.
    const wanted = Object.keys(STATES).filter((state) => states.has(state)).map((state) => [state, states.get(state).length]);
    if (tally.dataset.shown !== JSON.stringify(wanted)) {
      tally.dataset.shown = JSON.stringify(wanted);
      put(tally, wanted.map(([state, count]) => h("li", { "data-state": state }, h("b", {}, String(count)), ` ${STATES[state] ?? state}`)));
    }
  }

  /** Draw an arrow from each waiting worker to those who would release it. */
  function draw(workers) {
    const box = list.getBoundingClientRect();
    const place = new Map(workers.map((worker) => [worker.name, rows.get(worker.name).element.getBoundingClientRect()]));
    const lines = [];
    for (const worker of workers) {
      if (worker.state !== "waiting") continue;
      const from = place.get(worker.name), y0 = from.top - box.top + 18;
      for (const name of worker.releasers.slice(0, 4)) {
        const to = place.get(name);
        if (!to || name === worker.name) continue;
        lines.push([y0, to.top - box.top + 18]);
      }
    }
    const key = JSON.stringify(lines.map((pair) => pair.map(Math.round)));
    if (arcs.dataset.key === key) return;
    arcs.dataset.key = key;
    const width = 46;
    arcs.setAttribute("width", width); arcs.setAttribute("height", Math.max(box.height, 1));
    put(arcs, lines.map(([from, to], index) => {
      const bend = Math.max(6, width - 12 - Math.min(30, Math.abs(to - from) * 0.12)), out = Math.max(4, width - bend + (index % 3) * 3);
      return [
        svg("path", { d: `M ${width - 4} ${from} C ${out - 14} ${from}, ${out - 14} ${to}, ${width - 9} ${to}`, class: "arc" }),
        svg("path", { d: `M ${width - 2} ${to} l -9 -4.5 v 9 z`, class: "tip" }),
      ];
    }));
  }

  return { element, update };
}

function liveWorkers(model, clock) {
  const status = model.status;
  if (!status) return [];
  const later = Math.max(0, clock.t - status.seconds);
  return status.workers.map((worker) => ({
    name: worker.name, state: worker.state, seconds: worker.seconds + later, why: worker.waiting_for, releasers: worker.releasers,
    doing: ["computing", "transferring"].includes(worker.state) ? `ticket ${worker.ticket} from version ${worker.base_version}` : "",
    facts: facts(worker.applied, worker.dropped, worker.mean_staleness, worker.incarnation, worker.computes),
  }));
}

function over(model, t) { return t >= model.seconds && model.stops.length > 0; }

function recordedWorkers(model, t) {
  const { applied, dropped } = model.ages(t), ended = over(model, t);
  return model.order().map((number) => {
    const name = model.workers[number];
    let found = model.worker(number, t);
    // After the end, nobody computes or waits.
    if (ended && !["lost", "left", "done", "absent"].includes(found.state)) found = { state: "there", since: t };
    let count = 0, sum = 0;
    for (const [age, n] of applied[number]) { count += n; sum += age * n; }
    return {
      name, state: found.state, seconds: t - found.since, why: found.state === "waiting" ? model.why(found, t) || "its next ticket" : "",
      releasers: (found.releasers ?? []).map((other) => model.workers[other]),
      doing: found.ticket !== undefined ? `${found.doing === "compute" ? "" : `${found.doing}, `}ticket ${found.ticket} from version ${found.base ?? "–"}` : "",
      facts: facts(count, dropped[number], count ? sum / count : 0, 0),
    };
  });
}

function facts(applied, dropped, staleness, incarnation, computes = "") {
  return `${computes ? `${computes}, ` : ""}${applied} applied${dropped ? `, ${dropped} dropped` : ""}, mean staleness ${number(staleness) === "–" ? 0 : number(staleness)}${incarnation ? `, incarnation ${incarnation}` : ""}`;
}

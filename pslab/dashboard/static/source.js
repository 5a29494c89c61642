// Sources of the page's model: a live cluster's event stream, a run folder in parts, a simulation.

import { Model } from "./model.js";

export async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** Follow server-sent events: call `receive(model, message)` after each. The browser reconnects by itself. */
export function follow(receive) {
  const events = new EventSource("/api/events");
  let model = new Model();
  events.addEventListener("whole", (event) => {
    const whole = JSON.parse(event.data);
    model = new Model();
    model.add({ workers: whole.workers, job: whole.job, past: whole.past });
    for (const batch of whole.recent) model.add(batch);
    model.status = whole.status;
    receive(model, { ...whole, anew: true });
  });
  events.addEventListener("frame", (event) => {
    const frame = JSON.parse(event.data);
    model.add(frame);
    model.forget(frame.now - 180);
    receive(model, frame);
  });
  events.addEventListener("gone", (event) => receive(model, { gone: JSON.parse(event.data).reason }));
  events.addEventListener("error", () =>
    receive(model, { gone: "ps-lab dashboard does not answer. Is it still running?", broken: true }),
  );
  return events;
}

/** Run a simulation of {settings}. Throws the server's message if it cannot be simulated. */
export async function play(asked) {
  const info = await ask(`/api/play?play=${encodeURIComponent(JSON.stringify(asked))}`);
  if (info.error) throw new Error(info.error);
  const model = new Model();
  model.add(info);
  return [model, info];
}

// Parts of a log in memory: that of the clock's moment, the one before it, and the newest. Earlier ones come as curves
// and counts.
const HELD = 3;

export class Recording {
  constructor() {
    this.parts = new Map();
    this.info = null; // the newest answer, with what is true of the whole run
    this.shown = -1;
    this.busy = false;
  }

  async fetch(number) {
    if (this.parts.has(number)) return this.parts.get(number);
    const info = await ask(`/api/recording?part=${number}`);
    this.keep(info);
    return info;
  }

  keep(info) {
    this.info = info;
    this.parts.delete(info.part);
    this.parts.set(info.part, info);
    for (const number of this.parts.keys()) if (this.parts.size > HELD) this.parts.delete(number);
  }

  /** The number of the part that contains moment `t`. */
  at(t) {
    const found = this.info.spans.findIndex(([, end]) => t < end);
    return found < 0 ? this.info.spans.length - 1 : found;
  }

  covers(t) {
    return this.at(t) === this.shown;
  }

  /** Load the model of a moment; null for the last one. */
  async open(t = null) {
    this.busy = true;
    try {
      if (t === null) await this.fetch(-1);
      const number = t === null ? this.info.part : this.at(t);
      const held = number > 0 ? [await this.fetch(number - 1), await this.fetch(number)] : [await this.fetch(number)];
      this.shown = number;
      return this.model(held);
    } finally {
      this.busy = false;
    }
  }

  model(held) {
    const model = new Model(),
      [first, last] = [held[0], held.at(-1)],
      { past } = first;
    model.add({
      workers: this.info.workers,
      job: first.job,
      past,
      marks: past.marks,
      grants: past.grants,
      tickets: past.tickets,
    });
    for (const info of held) {
      const { past: _, evals: __, ...rest } = info;
      model.add(rest);
    }
    model.add({ evals: last.evals });
    model.begin = 0;
    model.seconds = this.info.end;
    model.whole = this.info.parts === held.length;
    model.window = [first.begin, last.seconds];
    if (this.info.final) {
      const [version, t, ...rest] = this.info.final;
      model.final = [t, version, ...rest];
    }
    return model;
  }

  /** Reload the newest part if the run has grown; return whether it has. */
  async grown() {
    this.busy = true;
    try {
      const info = await ask(`/api/recording?part=${this.info.parts - 1}&entries=${this.info.entries}`);
      if (info.same) return false;
      const stale = info.part === this.shown || info.part === this.shown - 1;
      this.keep(info);
      if (stale) this.shown = -1;
      return true;
    } finally {
      this.busy = false;
    }
  }
}

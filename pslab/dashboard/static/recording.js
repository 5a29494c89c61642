// A run folder: its log comes in parts. The part of the clock's moment and the one before it are held, no more; what lies
// before them comes as curves and counts. Of a run that goes on the newest part is asked for again.

import { Model } from "./model.js";
import { ask } from "./source.js";

const HELD = 3;

export class Recording {
  constructor() {
    this.parts = new Map();
    this.told = null;   // the newest answer: what is true of the whole run
    this.shown = -1;
    this.busy = false;
  }

  async fetch(number) {
    if (this.parts.has(number)) return this.parts.get(number);
    const told = await ask(`/api/recording?part=${number}`);
    this.keep(told);
    return told;
  }

  keep(told) {
    this.told = told;
    this.parts.delete(told.part);
    this.parts.set(told.part, told);
    for (const number of this.parts.keys()) if (this.parts.size > HELD) this.parts.delete(number);
  }

  /** The number of the part that has moment `t`. */
  at(t) {
    const found = this.told.spans.findIndex(([, end]) => t < end);
    return found < 0 ? this.told.spans.length - 1 : found;
  }

  covers(t) { return this.at(t) === this.shown; }

  /** The model of a moment; null for the last. */
  async open(t = null) {
    this.busy = true;
    try {
      if (t === null) await this.fetch(-1);
      const number = t === null ? this.told.part : this.at(t);
      const held = number > 0 ? [await this.fetch(number - 1), await this.fetch(number)] : [await this.fetch(number)];
      this.shown = number;
      return this.model(held);
    } finally { this.busy = false; }
  }

  model(held) {
    const model = new Model(), [first, last] = [held[0], held.at(-1)], { past } = first;
    model.add({ workers: this.told.workers, job: first.job, past, marks: past.marks, grants: past.grants, tickets: past.tickets });
    for (const told of held) {
      const { past: _, evals: __, waits, ...rest } = told;
      // A wait that goes from one part into the next is in both.
      model.add({ ...rest, waits: told === first ? waits : waits.filter(([, begin]) => begin >= told.begin) });
    }
    model.add({ evals: last.evals });
    model.begin = 0;
    model.seconds = this.told.end;
    model.whole = this.told.parts === held.length;
    model.window = [first.begin, last.seconds];
    if (this.told.final) { const [version, t, ...rest] = this.told.final; model.final = [t, version, ...rest]; }
    return model;
  }

  /** True when the run has grown. What is held of the newest part is the new one then. */
  async grown() {
    this.busy = true;
    try {
      const told = await ask(`/api/recording?part=${this.told.parts - 1}&entries=${this.told.entries}`);
      if (told.same) return false;
      const stale = told.part === this.shown || told.part === this.shown - 1;
      this.keep(told);
      if (stale) this.shown = -1;
      return true;
    } finally { this.busy = false; }
  }
}

// The model of a run: it takes batches of rows (see pslab/dashboard/recording.py) and answers questions about a moment.

export const KINDS = ["compute", "pull", "push", "wait", "wasted", "at work"];
export const WAIT = 3,
  WASTED = 4;
/** The number of rows whose `key` is at most `t`. Rows are sorted by it. */
export function upTo(rows, t, key = 0) {
  let low = 0,
    high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle][key] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Model {
  constructor() {
    this.workers = [];
    this.job = {};
    this.seconds = 0;
    this.begin = 0; // of what is shown in detail
    this.lanes = [];
    this.tickets = new Map();
    this.commits = []; // [t, ticket]
    this.grants = []; // per worker: [t, ticket, version]
    this.fates = []; // [t, ticket]
    this.updates = []; // [t, version, parts, mean, max, loss, lrScale, samples]
    this.evals = []; // [t, version, metrics]
    this.log = []; // [t, number, kind, worker, sentence]
    this.marks = []; // per worker: [t, kind, sentence]
    this.stops = [];
    this.past = { applied: [], dropped: [] };
    this.status = null;
  }

  /** Indices of the workers sorted by name: w2 before w10. */
  order() {
    if (this.ordered?.length !== this.workers.length) {
      const compare = new Intl.Collator("en", { numeric: true }).compare;
      this.ordered = this.workers.map((_, place) => place).sort((a, b) => compare(this.workers[a], this.workers[b]));
    }
    return this.ordered;
  }

  lane(worker) {
    while (this.lanes.length <= worker) {
      this.lanes.push([]);
      this.grants.push([]);
      this.marks.push([]);
    }
    return this.lanes[worker];
  }

  add(batch) {
    for (const name of batch.workers ?? []) if (!this.workers.includes(name)) this.workers.push(name);
    if (this.workers.length) this.lane(this.workers.length - 1);
    if (batch.job?.name) this.job = batch.job;
    this.seconds = Math.max(this.seconds, batch.seconds ?? 0);
    for (const [worker, kind, begin, end, ticket] of batch.stretches ?? [])
      this.lane(worker).push([begin, end, kind, ticket]);
    for (const [ticket, worker, version, t] of batch.grants ?? []) {
      this.lane(worker);
      this.grants[worker].push([t, ticket, version]);
      this.tickets.set(ticket, { ticket, worker, base: version, granted: t });
    }
    for (const [ticket, worker, t, samples, loss] of batch.tickets ?? []) {
      const found = this.tickets.get(ticket) ?? { ticket, worker, base: null, granted: t };
      Object.assign(found, { end: t, samples, loss });
      this.tickets.set(ticket, found);
      this.commits.push([t, ticket]);
    }
    for (const [ticket, applied, t, version, staleness, weight, reason] of batch.fates ?? []) {
      const found = this.tickets.get(ticket);
      if (found) Object.assign(found, { settled: t, applied: Boolean(applied), version, staleness, weight, reason });
      this.fates.push([t, ticket]);
    }
    for (const [version, t, ...rest] of batch.updates ?? []) this.updates.push([t, version, ...rest]);
    for (const row of batch.evals ?? []) this.evals.push(row);
    for (const [number, t, kind, worker, sentence] of batch.log ?? [])
      this.log.push([t, number, kind, worker, sentence]);
    for (const [worker, kind, t, sentence] of batch.marks ?? []) {
      if (worker < 0) this.stops.push([t, kind, sentence]);
      else {
        this.lane(worker);
        this.marks[worker].push([t, kind, sentence]);
      }
    }
    for (const name of ["past", "status"]) if (batch[name]) this[name] = batch[name];
    if (batch.past) {
      this.updates.push(...batch.past.updates.map(([version, t, ...rest]) => [t, version, ...rest]));
      this.evals.push(...batch.past.evals);
    }
  }

  /** Forget details before `t`, so that a live cluster can run for days. */
  forget(t) {
    this.begin = Math.max(this.begin, t);
    for (const lane of this.lanes) drop(lane, t, 1);
    for (const rows of this.grants) drop(rows, t, 0);
    for (const rows of [this.commits, this.log]) drop(rows, t, 0);
    const gone = drop(this.fates, t, 0);
    for (const [, number] of gone) {
      const ticket = this.tickets.get(number);
      if (!ticket) continue;
      if (ticket.applied) count(this.past.applied, ticket.worker, ticket.staleness);
      else count(this.past.dropped, ticket.worker);
      this.tickets.delete(number);
    }
    if (this.updates.length > 4000) {
      const old = upTo(this.updates, t);
      this.updates = this.updates.filter((_, place) => place >= old || place % 2 === 0);
    }
  }

  // A moment

  /** The end of the last work that began by `t`. */
  busy(t) {
    return Math.max(
      this.begin,
      ...this.lanes.map((lane) => {
        const place = upTo(lane, t);
        return place ? Math.min(lane[place - 1][1], t) : this.begin;
      }),
    );
  }

  version(t) {
    const place = upTo(this.updates, t);
    return place ? this.updates[place - 1][1] : 0;
  }

  /** A worker's state at `t`: since when, its ticket, and why it waits. */
  worker(worker, t) {
    const lane = this.lanes[worker] ?? [],
      marks = this.marks[worker] ?? [];
    let away = null,
      joined = false,
      since = 0;
    for (const [at, kind] of marks) {
      if (at > t) break;
      if (kind === 0) {
        joined = true;
        away = null;
        since = at;
      }
      if (kind === 1) away = ["lost", at];
      if (kind === 2) away = null;
      if (kind === 3) away = ["left", at];
      if (kind === 4) away = ["done", at];
    }
    const place = upTo(lane, t);
    const stretch = place ? lane[place - 1] : null;
    const grants = this.grants[worker] ?? [];
    const held = upTo(grants, t) ? grants[upTo(grants, t) - 1] : null;
    if (away && !(away[0] === "lost" && stretch && stretch[1] > t)) return { state: away[0], since: away[1] };
    if (!joined && !stretch) return { state: "absent", since: 0 };
    if (stretch && stretch[1] > t && stretch[2] !== WAIT) {
      const ticket = this.tickets.get(stretch[3]);
      return {
        state: stretch[2] === WASTED ? "wasted" : "computing",
        doing: KINDS[stretch[2]],
        since: ticket ? Math.min(ticket.granted, t) : stretch[0],
        ticket: stretch[3],
        base: ticket ? ticket.base : held?.[2],
      };
    }
    if (held && this.tickets.get(held[1])?.end === undefined && held[0] <= t) {
      return { state: "computing", doing: "compute", since: held[0], ticket: held[1], base: held[2] };
    }
    const begin = stretch ? (stretch[2] === WAIT && stretch[1] > t ? stretch[0] : stretch[1]) : since;
    return { state: "waiting", since: begin, event: "its next ticket" };
  }

  /** Applied contributions by worker and staleness, and dropped ones by worker, up to `t`. */
  ages(t) {
    const applied = this.workers.map(() => new Map()),
      dropped = this.workers.map(() => 0);
    for (const [worker, age, n] of this.past.applied) applied[worker]?.set(age, (applied[worker].get(age) ?? 0) + n);
    for (const [worker, n] of this.past.dropped) if (worker in dropped) dropped[worker] += n;
    const end = upTo(this.fates, t);
    for (let place = 0; place < end; place += 1) {
      const ticket = this.tickets.get(this.fates[place][1]);
      if (!ticket || !applied[ticket.worker]) continue;
      if (ticket.applied)
        applied[ticket.worker].set(ticket.staleness, (applied[ticket.worker].get(ticket.staleness) ?? 0) + 1);
      else dropped[ticket.worker] += 1;
    }
    return { applied, dropped };
  }

  figures(t) {
    const end = upTo(this.updates, t),
      last = end ? this.updates[end - 1] : null;
    const { applied, dropped } = this.ages(t);
    let count = 0,
      sum = 0;
    for (const ages of applied)
      for (const [age, n] of ages) {
        count += n;
        sum += age * n;
      }
    const recent = this.updates
      .slice(Math.max(0, end - 20), end)
      .map((row) => row[5])
      .filter((loss) => loss !== null);
    const most = Math.max(...applied.flatMap((ages) => [...ages.keys()]), 0);
    return {
      version: last ? last[1] : 0,
      most: count ? most : null,
      samples: last ? last[7] : 0,
      loss: recent.length ? recent.reduce((a, b) => a + b, 0) / recent.length : null,
      applied: count,
      dropped: dropped.reduce((a, b) => a + b, 0),
      staleness: count ? sum / count : null,
    };
  }

  /** Evaluated losses of the model: [t, loss]. */
  losses() {
    return this.evals.filter((row) => "loss" in row[2]).map((row) => [row[0], row[2].loss]);
  }

  lossAt(t) {
    const rows = this.losses(),
      place = upTo(rows, t);
    return place ? rows[place - 1][1] : null;
  }

  /** The share of each kind of stretch in all workers' time until `t`. */
  shares(t) {
    const total = KINDS.map(() => 0);
    for (const [kind, seconds] of this.past.kinds ?? []) total[kind] += seconds;
    for (const lane of this.lanes) {
      for (const [begin, end, kind] of lane) if (begin < t) total[kind] += Math.min(end, t) - begin;
    }
    const sum = total.reduce((a, b) => a + b, 0);
    return total.map((value) => (sum ? value / sum : 0));
  }
}

function drop(rows, t, key) {
  let end = 0;
  while (end < rows.length && rows[end][key] < t) end += 1;
  return rows.splice(0, end);
}

function count(rows, ...key) {
  const found = rows.find((row) => key.every((value, place) => row[place] === value));
  if (found) found[key.length] += 1;
  else rows.push([...key, 1]);
}

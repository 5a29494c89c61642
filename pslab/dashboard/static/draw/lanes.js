// A lane for each worker: its work, the fate of its contributions, and the updates.

import { upTo, WAIT, WASTED } from "../model.js";
import { begin, colour, hatched, LANE_COLOURS, plain, ticks } from "./canvas.js";

const TOP = 26,
  BOTTOM = 22;

export function laneHeight(workers, room = 30) {
  return TOP + BOTTOM + workers * room;
}

/**
 * Draw `span` seconds of lanes that end at `t`. `live`: the last stretch of each worker is unfinished.
 * Returns the positions of contributions for the pointer: [{x, y, ticket}].
 */
export function drawLanes(element, model, { t, span, start = null, live = false, selected = null, until = Infinity }) {
  const prepared = begin(element);
  if (!prepared) return [];
  const [context, width, height, size] = prepared;
  const names = model.workers,
    rows = Math.max(names.length, 1);
  const left = Math.min(width * 0.2, 14 + Math.max(20, ...names.map((name) => context.measureText(name).width)));
  const right = width - 10,
    room = (height - TOP - BOTTOM) / rows;
  // If all work ended long before `t`, show the last work instead of empty lanes.
  const last = start !== null || live ? t : model.busy(t),
    end = last < t - span ? last : t;
  const from = start ?? Math.max(end - span, Math.min(model.begin, end)),
    to = from + span;
  const x = (moment) => left + ((right - left) * (moment - from)) / span;
  const place = new Map(model.order().map((worker, row) => [worker, row]));
  const y = (worker) => TOP + room * place.get(worker);
  const bar = Math.max(2, Math.min(room * 0.58, 22));

  frame(context, { left, right, from, to, x, height, size });
  const found = [];
  names.forEach((name, row) => {
    context.fillStyle = colour("--ink");
    context.textAlign = "right";
    if (room >= 9) context.fillText(name, left - 8, y(row) + room / 2);
    stretches(context, model, row, { from, to: Math.min(to, t), x, middle: y(row) + room / 2, bar, left });
    if (live) going(context, model, row, { t, x, middle: y(row) + room / 2, bar, left });
    presence(context, model, row, { from, to: Math.min(to, t), x, middle: y(row) + room / 2, bar });
  });
  updates(context, model, { from, to: Math.min(to, t), x, size, left, height });
  contributions(context, model, { from, to: Math.min(to, t), x, y, room, found, selected, width });
  cursor(context, { t, to, x, height, left });
  if (until < to) {
    context.fillStyle = colour("--b");
    context.fillRect(x(until) - 1, TOP - 6, 2, height - TOP - BOTTOM + 6);
  }
  return found;
}

function frame(context, { left, right, from, to, x, height, size }) {
  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--dim");
  context.lineWidth = 1;
  context.textAlign = "center";
  for (const moment of ticks(from, to, Math.max(2, (right - left) / (size * 9)))) {
    const at = Math.round(x(moment)) + 0.5;
    if (at < left || at > right) continue;
    context.beginPath();
    context.moveTo(at, TOP);
    context.lineTo(at, height - BOTTOM);
    context.stroke();
    context.fillText(`${plain(moment)} s`, Math.min(at, right - size), height - BOTTOM / 2);
  }
}

function stretches(context, model, row, { from, to, x, middle, bar, left }) {
  const lane = model.lanes[row] ?? [];
  // Stretches of one worker do not overlap, so the first visible one ends after `from`.
  for (let place = Math.max(0, upTo(lane, from) - 4); place < lane.length; place += 1) {
    const [begins, ends, kind] = lane[place];
    if (begins >= to) break;
    if (ends <= from) continue;
    const x0 = Math.max(x(Math.max(begins, from)), left),
      x1 = x(Math.min(ends, to));
    box(context, x0, x1 - x0, middle, bar, kind);
  }
}

function box(context, x0, wide, middle, bar, kind, open = false) {
  const thin = kind === WAIT ? bar * 0.55 : bar;
  context.fillStyle =
    kind === WAIT
      ? hatched(context, "--wait", false)
      : kind === WASTED
        ? hatched(context, "--wasted", true)
        : colour(LANE_COLOURS[kind]);
  const gap = wide > 3 && kind !== WAIT ? 0.75 : 0;
  context.beginPath();
  if (wide > 6 && !open) context.roundRect(x0, middle - thin / 2, wide - gap, thin, Math.min(2.5, thin / 3));
  else context.rect(x0, middle - thin / 2, Math.max(wide - gap, 0.7), thin);
  context.fill();
}

/** Draw a live worker's current activity, whose stretch is in the log only once it has ended. */
function going(context, model, row, { t, x, middle, bar, left }) {
  const status = model.status?.workers.find((worker) => worker.name === model.workers[row]);
  if (!status || !["computing", "transferring", "waiting"].includes(status.state)) return;
  const begins = model.status.seconds - status.seconds,
    x0 = Math.max(x(begins), left);
  context.globalAlpha = 0.72;
  box(context, x0, x(t) - x0, middle, bar, status.state === "waiting" ? WAIT : 0, true);
  context.globalAlpha = 1;
}

/** Mark lost, left and done workers, to explain a lane without work. */
function presence(context, model, row, { from, to, x, middle, bar }) {
  const marks = model.marks[row] ?? [];
  marks.forEach(([at, kind], place) => {
    if (at > to) return;
    const next = Math.min(marks.slice(place + 1).find(([, other]) => [0, 2, 3].includes(other))?.[0] ?? to, to);
    if ([1, 3, 4].includes(kind) && next > from && next > at) {
      context.strokeStyle = colour(kind === 4 ? "--dim" : "--wasted");
      context.lineWidth = 1.5;
      context.setLineDash(kind === 4 ? [1, 4] : [6, 4]);
      context.beginPath();
      context.moveTo(x(Math.max(at, from)), middle);
      context.lineTo(x(next), middle);
      context.stroke();
      context.setLineDash([]);
    }
    if (at < from) return;
    if (kind === 1 || kind === 3) cross(context, x(at), middle, bar * 0.45, "--wasted");
    if (kind === 0 && at > 0) {
      context.fillStyle = colour("--ink");
      triangle(context, x(at), middle, bar * 0.4);
    }
  });
}

function updates(context, model, { from, to, x, size, left, height }) {
  const first = upTo(model.updates, from),
    last = upTo(model.updates, to);
  let free = left;
  context.textAlign = "center";
  for (let place = first; place < last; place += 1) {
    const [t, version] = model.updates[place],
      at = x(t);
    context.fillStyle = colour("--ink");
    context.fillRect(at - 0.6, TOP - 7, 1.2, 6);
    const label = String(version),
      wide = context.measureText(label).width;
    if (at - wide / 2 > free) {
      context.fillStyle = colour("--dim");
      context.fillText(label, at, TOP - 8 - size / 2);
      free = at + wide / 2 + 6;
    }
    if (last - first < 60) {
      context.strokeStyle = colour("--line-strong");
      context.setLineDash([2, 3]);
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(at, TOP);
      context.lineTo(at, height - BOTTOM);
      context.stroke();
      context.setLineDash([]);
    }
  }
}

function contributions(context, model, { from, to, x, y, room, found, selected }) {
  const first = upTo(model.commits, from),
    last = upTo(model.commits, to);
  const radius = Math.max(1.6, Math.min(4, room * 0.14)),
    many = last - first > 1500;
  for (let place = first; place < last; place += 1) {
    const ticket = model.tickets.get(model.commits[place][1]);
    if (!ticket) continue;
    const at = x(ticket.end),
      middle = y(ticket.worker) + room / 2;
    found.push({ x: at, y: middle, ticket });
    if (many) continue;
    const settled = ticket.settled !== undefined && ticket.settled <= to;
    if (settled && !ticket.applied) {
      cross(context, at, middle, radius * 1.1, "--wasted");
      continue;
    }
    context.beginPath();
    context.arc(at, middle, radius, 0, 7);
    context.fillStyle = settled ? colour("--applied") : colour("--paper");
    context.fill();
    context.lineWidth = 1.2;
    context.strokeStyle = settled ? colour("--paper") : colour("--ink");
    context.stroke();
  }
  const ticket = selected === null ? null : model.tickets.get(selected);
  if (!ticket || ticket.end === undefined || ticket.end < from || ticket.end > to) return;
  const at = x(ticket.end),
    middle = y(ticket.worker) + room / 2;
  context.strokeStyle = colour("--accent");
  context.lineWidth = 2;
  context.beginPath();
  context.arc(at, middle, radius + 4, 0, 7);
  context.stroke();
  if (!ticket.applied || ticket.settled > to) return;
  context.beginPath();
  context.moveTo(at, middle - radius - 4);
  context.bezierCurveTo(at, TOP + 10, x(ticket.settled), middle, x(ticket.settled), TOP - 2);
  context.stroke();
  triangle(context, x(ticket.settled), TOP - 3, 4, true);
}

function cursor(context, { t, to, x, height, left }) {
  if (t > to || x(t) < left) return;
  context.fillStyle = colour("--accent");
  context.fillRect(x(t) - 1, TOP - 6, 2, height - TOP - BOTTOM + 10);
}

function cross(context, x, y, radius, name) {
  context.strokeStyle = colour("--paper");
  context.lineWidth = 4.2;
  for (let pass = 0; pass < 2; pass += 1) {
    context.beginPath();
    context.moveTo(x - radius, y - radius);
    context.lineTo(x + radius, y + radius);
    context.moveTo(x + radius, y - radius);
    context.lineTo(x - radius, y + radius);
    context.stroke();
    context.strokeStyle = colour(name);
    context.lineWidth = 2;
  }
}

function triangle(context, x, y, radius, up = false) {
  context.fillStyle = up ? colour("--accent") : colour("--ink");
  context.beginPath();
  if (up) {
    context.moveTo(x - radius, y + radius);
    context.lineTo(x + radius, y + radius);
    context.lineTo(x, y - radius);
  } else {
    context.moveTo(x - radius, y - radius);
    context.lineTo(x + radius, y);
    context.lineTo(x - radius, y + radius);
  }
  context.fill();
}

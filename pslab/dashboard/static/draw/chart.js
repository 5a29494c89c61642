// Curves over a common axis, and the heat map of contributions by worker and staleness.

import { begin, colour, plain, ticks } from "./canvas.js";

/**
 * Draw curves: [{points: [[x, y], ...] sorted by x, colour: "--a", dash: [..], label, dots}].
 * at: the moment on the x axis. log: use a logarithmic y axis if all values are positive.
 */
export function drawChart(
  element,
  curves,
  { xLabel = "", yLabel = "", at = null, log = false, zero = false, range = null, end = null },
) {
  const prepared = begin(element);
  if (!prepared) return;
  const [context, width, height, size] = prepared;
  let low = Infinity,
    high = -Infinity,
    first = Infinity,
    last = -Infinity;
  for (const { points } of curves) {
    for (const [x, y] of points) {
      if (!Number.isFinite(y)) continue;
      low = Math.min(low, y);
      high = Math.max(high, y);
      first = Math.min(first, x);
      last = Math.max(last, x);
    }
  }
  if (range) [first, last] = range;
  if (end !== null) last = Math.max(end, first);
  if (!Number.isFinite(low)) {
    empty(context, width, height);
    return;
  }
  const logged = log && low > 0 && high / low > 8;
  if (zero && !logged) low = Math.min(0, low);
  if (zero && high <= 0) high = 1;
  if (low === high) {
    low -= low ? Math.abs(low) * 0.1 : 0.5;
    high += high ? Math.abs(high) * 0.1 : 0.5;
  }
  if (first === last) last = first + 1;
  const map = logged ? Math.log10 : (value) => value;
  const bottomY = map(low),
    topY = map(high),
    pad = (topY - bottomY) * 0.06;
  const marks = logged ? decades(low, high) : ticks(low, high, Math.max(2, height / (size * 3.6)));
  const left = 14 + Math.max(...marks.map((mark) => context.measureText(plain(mark)).width)),
    right = width - 10;
  const top = size + 12,
    bottom = height - size * 2 - 6;
  const px = (x) => left + ((right - left) * (x - first)) / (last - first);
  const py = (y) =>
    bottom - ((bottom - top) * (map(y) - bottomY + (zero ? 0 : pad))) / (topY - bottomY + (zero ? 1 : 2) * pad);

  context.lineWidth = 1;
  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--dim");
  context.textAlign = "right";
  for (const mark of marks) {
    const y = Math.round(py(mark)) + 0.5;
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(right, y);
    context.stroke();
    context.fillText(plain(mark), left - 6, y);
  }
  context.textAlign = "center";
  for (const mark of ticks(first, last, Math.max(2, (right - left) / (size * 8)))) {
    const x = px(mark);
    if (x > right - size) continue;
    context.fillText(plain(mark), x, bottom + size);
  }
  context.textAlign = "left";
  context.fillText(yLabel + (logged ? " (log)" : ""), left, size / 2 + 2);
  context.textAlign = "right";
  context.fillText(xLabel, right, height - size / 2 - 1);

  context.save();
  context.beginPath();
  context.rect(left - 4, 0, right - left + 8, height);
  context.clip();
  for (const curve of curves) line(context, curve, px, py, logged);
  context.restore();
  if (at !== null && at >= first && at <= last) {
    context.fillStyle = colour("--accent");
    context.fillRect(px(at) - 1, top - 4, 2, bottom - top + 4);
  }
}

function line(context, curve, px, py, logged) {
  const name = colour(curve.colour);
  context.strokeStyle = context.fillStyle = name;
  context.lineWidth = curve.width ?? 1.8;
  context.lineJoin = "round";
  const usable = ([, y]) => Number.isFinite(y) && (!logged || y > 0);
  if (curve.faint) context.globalAlpha = 0.3;
  if (!curve.dots) {
    context.setLineDash(curve.dash ?? []);
    context.beginPath();
    let drawn = false,
      column = NaN,
      least = 0,
      most = 0;
    // Reduce thousands of points to one stroke per column of pixels.
    for (const point of curve.points) {
      if (!usable(point)) {
        drawn = false;
        continue;
      }
      const x = px(point[0]),
        y = py(point[1]),
        here = Math.round(x * 2);
      if (here === column) {
        least = Math.min(least, y);
        most = Math.max(most, y);
        context.lineTo(x, y < least + 0.1 ? least : most);
      } else {
        if (drawn) context.lineTo(x, y);
        else context.moveTo(x, y);
        least = most = y;
      }
      column = here;
      drawn = true;
    }
    context.stroke();
    context.setLineDash([]);
  } else {
    for (const point of curve.points.filter(usable)) {
      context.beginPath();
      context.arc(px(point[0]), py(point[1]), 3, 0, 7);
      context.fill();
    }
  }
  context.globalAlpha = 1;
}

function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) {
      const value = factor * 10 ** power;
      if (value >= low * 0.95 && value <= high * 1.05) found.push(value);
    }
  }
  const wide = found.length > 7 ? found.filter((value) => /^1(\.|e|0*$)|^0\.0*1$/.test(String(value))) : found;
  return wide.length > 1 ? wide : found.length ? found : [low, high];
}

function empty(context, width, height) {
  context.fillStyle = colour("--dim");
  context.textAlign = "center";
  context.fillText("nothing yet", width / 2, height / 2);
}

/** A running mean over at most `most` points, or over a tenth of a short curve. */
export function smooth(points, most) {
  const window = Math.max(1, Math.min(most, Math.round(points.length / 10)));
  const found = [];
  let sum = 0;
  const held = [];
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) continue;
    held.push(y);
    sum += y;
    if (held.length > window) sum -= held.shift();
    found.push([x, sum / held.length]);
  }
  return found;
}

const GROUPS = [
  [0, 0],
  [1, 1],
  [2, 2],
  [3, 3],
  [4, 4],
  [5, 5],
  [6, 6],
  [7, 7],
  [8, 9],
  [10, 11],
  [12, 15],
  [16, 23],
  [24, 31],
  [32, 63],
  [64, 127],
  [128, 255],
  [256, Infinity],
];

/** Columns of staleness: single values if they fit, else groups. */
export function columns(applied) {
  const most = Math.max(0, ...applied.flatMap((ages) => [...ages.keys()]));
  if (most < 16) return Array.from({ length: most + 1 }, (_, age) => [age, age]);
  return GROUPS.filter(([low]) => low <= most);
}

export function name([low, high]) {
  return low === high ? String(low) : high === Infinity ? `≥ ${low}` : `${low}–${high}`;
}

export function drawHeat(element, names, { applied, dropped }) {
  const prepared = begin(element);
  if (!prepared) return;
  const [context, width, height, size] = prepared;
  const groups = columns(applied),
    anyDropped = dropped.some((count) => count > 0);
  const left = 14 + Math.max(24, ...names.map((worker) => context.measureText(worker).width)),
    top = size * 2 + 8;
  const count = groups.length + (anyDropped ? 1.3 : 0),
    wide = Math.min((width - left - 8) / count, size * 9),
    high = (height - top - 6) / Math.max(1, names.length);
  const cells = applied.map((ages) =>
    groups.map(([low, end]) => [...ages].reduce((sum, [age, n]) => sum + (age >= low && age <= end ? n : 0), 0)),
  );
  const most = Math.max(1, ...cells.flat());
  context.textAlign = "center";
  context.fillStyle = colour("--dim");
  context.textBaseline = "middle";
  groups.forEach((group, place) => {
    if (wide > size * 1.1 || place % 2 === 0)
      context.fillText(name(group), left + wide * (place + 0.5), top - size * 0.7);
  });
  if (anyDropped) context.fillText("dropped", left + wide * (groups.length + 0.8), top - size * 0.7);
  names.forEach((worker, row) => {
    const y = top + high * row;
    context.fillStyle = colour("--ink");
    context.textAlign = "right";
    if (high >= size * 0.8) context.fillText(worker, left - 8, y + high / 2);
    context.textAlign = "center";
    cells[row].forEach((n, place) => {
      cell(context, { x: left + wide * place, y, wide, high, n, share: n / most, size, base: "--heat" });
    });
    if (anyDropped)
      cell(context, {
        x: left + wide * (groups.length + 0.3),
        y,
        wide,
        high,
        n: dropped[row],
        share: dropped[row] / Math.max(1, ...dropped),
        size,
        base: "--wasted",
      });
  });
}

function cell(context, { x, y, wide, high, n, share, size, base }) {
  const gap = Math.min(2, high * 0.08);
  context.fillStyle = colour("--cell");
  context.beginPath();
  context.roundRect(x + gap, y + gap, wide - 2 * gap, high - 2 * gap, 3);
  context.fill();
  if (!n) return;
  const strength = 0.15 + 0.85 * Math.sqrt(share);
  context.globalAlpha = strength;
  context.fillStyle = colour(base);
  context.fill();
  context.globalAlpha = 1;
  const text = n >= 10000 ? `${Math.round(n / 1000)}k` : String(n);
  if (context.measureText(text).width < wide - 4 && high > size) {
    context.fillStyle = strength > 0.55 ? colour("--on-heat") : colour("--ink");
    context.fillText(text, x + wide / 2, y + high / 2 + 0.5);
  }
}

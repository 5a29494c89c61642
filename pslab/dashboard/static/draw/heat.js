// How old the contributions of each worker were: a row per worker, a column per staleness.

import { begin, colour } from "./canvas.js";

const GROUPS = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 5], [6, 6], [7, 7], [8, 9], [10, 11], [12, 15], [16, 23], [24, 31], [32, 63], [64, 127], [128, 255], [256, Infinity]];

/** Columns as far as there is something in them; single values where they fit. */
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
  const groups = columns(applied), anyDropped = dropped.some((count) => count > 0);
  const left = 14 + Math.max(24, ...names.map((worker) => context.measureText(worker).width)), top = size * 2 + 8;
  const count = groups.length + (anyDropped ? 1.3 : 0), wide = Math.min((width - left - 8) / count, size * 9), high = (height - top - 6) / Math.max(1, names.length);
  const cells = applied.map((ages) => groups.map(([low, end]) => [...ages].reduce((sum, [age, n]) => sum + (age >= low && age <= end ? n : 0), 0)));
  const most = Math.max(1, ...cells.flat());
  context.textAlign = "center"; context.fillStyle = colour("--dim");
  context.textBaseline = "middle";
  groups.forEach((group, place) => { if (wide > size * 1.1 || place % 2 === 0) context.fillText(name(group), left + wide * (place + 0.5), top - size * 0.7); });
  if (anyDropped) context.fillText("dropped", left + wide * (groups.length + 0.8), top - size * 0.7);
  names.forEach((worker, row) => {
    const y = top + high * row;
    context.fillStyle = colour("--ink"); context.textAlign = "right";
    if (high >= size * 0.8) context.fillText(worker, left - 8, y + high / 2);
    context.textAlign = "center";
    cells[row].forEach((n, place) => cell(context, { x: left + wide * place, y, wide, high, n, share: n / most, size, base: "--heat" }));
    if (anyDropped) cell(context, { x: left + wide * (groups.length + 0.3), y, wide, high, n: dropped[row], share: dropped[row] / Math.max(1, ...dropped), size, base: "--wasted" });
  });
}

function cell(context, { x, y, wide, high, n, share, size, base }) {
  const gap = Math.min(2, high * 0.08);
  context.fillStyle = colour("--cell");
  context.beginPath(); context.roundRect(x + gap, y + gap, wide - 2 * gap, high - 2 * gap, 3); context.fill();
  if (!n) return;
  const strength = 0.15 + 0.85 * Math.sqrt(share);
  context.globalAlpha = strength; context.fillStyle = colour(base); context.fill(); context.globalAlpha = 1;
  const text = n >= 10000 ? `${Math.round(n / 1000)}k` : String(n);
  if (context.measureText(text).width < wide - 4 && high > size) {
    context.fillStyle = strength > 0.55 ? colour("--on-heat") : colour("--ink");
    context.fillText(text, x + wide / 2, y + high / 2 + 0.5);
  }
}

// Canvases in the resolution of the screen, and the colours and scales of all drawings.

import { h } from "../dom.js";

export const LANE_COLOURS = ["--compute", "--pull", "--push", "--wait", "--wasted", "--compute"];

let palette = null;
/** A colour of the style sheet, so that drawings follow the theme. */
export function colour(name) {
  palette ??= new Map();
  if (!palette.has(name)) palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return palette.get(name);
}
export function forgetColours() {
  palette = null;
}

export function canvas(label, classes = "") {
  const element = h("canvas", { class: classes, role: "img", "aria-label": label, tabindex: "-1" });
  return element;
}

/** Fit the backing store to the box. Returns [context, width, height, font size] in CSS pixels; null if hidden. */
export function begin(element) {
  const box = element.getBoundingClientRect(),
    ratio = window.devicePixelRatio || 1;
  if (!box.width || !box.height) return null;
  const width = Math.round(box.width * ratio),
    height = Math.round(box.height * ratio);
  if (element.width !== width || element.height !== height) {
    element.width = width;
    element.height = height;
  }
  const context = element.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  const size = parseFloat(getComputedStyle(document.documentElement).fontSize) * 0.75;
  context.font = `${size}px ${colour("--font")}`;
  context.textBaseline = "middle";
  return [context, box.width, box.height, size];
}

/** About `wanted` round numbers from low to high. */
export function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, wanted),
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step)
    found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

export function plain(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(0).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

/** A pattern that is visible without colours: waiting is hatched, wasted work is crossed. */
const patterns = new Map();
export function hatched(context, name, crossed) {
  const key = `${colour(name)}/${crossed}/${window.devicePixelRatio}`;
  if (!patterns.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const draw = tile.getContext("2d");
    draw.strokeStyle = colour(name);
    draw.lineWidth = crossed ? 1.6 : 1.5;
    draw.globalAlpha = 0.28;
    draw.fillStyle = colour(name);
    draw.fillRect(0, 0, 8, 8);
    draw.globalAlpha = 1;
    draw.beginPath();
    for (const shift of [-8, 0, 8]) {
      draw.moveTo(shift - 1, 9);
      draw.lineTo(shift + 9, -1);
    }
    if (crossed)
      for (const shift of [-8, 0, 8]) {
        draw.moveTo(shift - 1, -1);
        draw.lineTo(shift + 9, 9);
      }
    draw.stroke();
    patterns.set(key, context.createPattern(tile, "repeat"));
  }
  return patterns.get(key);
}

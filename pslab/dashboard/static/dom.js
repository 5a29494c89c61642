// Elements are built without markup in strings, so that no text of a server can become HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "value" || key === "checked" || key === "selected") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function put(parent, ...children) {
  parent.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
}

/** Fill a list of facts with the rows [term, value] that have a value. */
export function facts(list, rows) {
  const known = rows.filter(([, value]) => value !== undefined && value !== null);
  put(
    list,
    known.map(([term, value]) => [h("dt", {}, term), h("dd", {}, String(value))]),
  );
}

/** A card with a table, hidden while it has no rows; on small screens each row is a list with its titles. */
export function stacked(title, properties) {
  const head = h("tr");
  const body = h("tbody");
  const table = h("table", { class: "stacked" }, h("thead", {}, head), body);
  const scroll = h("div", { class: "scroll" }, table);
  const element = h("div", { class: "card", hidden: true, ...properties }, h("h2", {}, title), scroll);

  /** `rows`: [cells, state of the row]. */
  function show(titles, rows) {
    element.hidden = !rows.length;
    put(
      head,
      titles.map((each) => h("th", { scope: "col" }, each)),
    );
    const made = (cell, place) => h("td", { "data-title": titles[place] }, cell);
    put(
      body,
      rows.map(([cells, state]) => h("tr", { "data-state": state }, cells.map(made))),
    );
  }
  return { element, show };
}

const ICONS = {
  start: "M4 3h2v10H4z M13 3v10L6.5 8z",
  end: "M10 3h2v10h-2z M3 3v10l6.5-5z",
  back: "M10.5 2.5 5 8l5.5 5.5z",
  forward: "M5.5 2.5 11 8l-5.5 5.5z",
  play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4z M9 3h3v10H9z",
  moon: "M6.2 1.6A6.6 6.6 0 1 0 14.4 9.8 5.4 5.4 0 0 1 6.2 1.6z",
  sun: [
    "M8 4.6a3.4 3.4 0 1 0 0 6.8 3.4 3.4 0 0 0 0-6.8z M7.4.6h1.2v2.4H7.4z M7.4 13h1.2v2.4H7.4z M.6 7.4H3v1.2H.6z",
    "M13 7.4h2.4v1.2H13z M2.3 3.2l.9-.9 1.7 1.7-.9.9z M11.1 12l.9-.9 1.7 1.7-.9.9z M2.3 12.8 4 11.1l.9.9-1.7 1.7z",
    "M11.1 4l1.7-1.7.9.9L12 4.9z",
  ].join(" "),
};

/** An icon drawn as SVG, because fonts differ in the signs that they have. */
export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", class: "sign", "aria-hidden": "true", "data-icon": name },
    svg("path", { d: ICONS[name], fill: "currentColor" }),
  );
}

export function sign(element, name) {
  if (element.firstElementChild?.dataset.icon !== name) put(element, icon(name));
}

/** Set the text if it differs, so that screen readers do not repeat it. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 3600)
    return `${Math.floor(value / 3600)} h ${String(Math.floor((value % 3600) / 60)).padStart(2, "0")} min`;
  if (value >= 600) return `${Math.floor(value / 60)} min ${String(Math.floor(value % 60)).padStart(2, "0")} s`;
  if (value >= 100) return `${value.toFixed(0)} s`;
  return value >= 0.1 || value === 0 ? `${value.toFixed(1)} s` : `${number(value * 1000, 2)} ms`;
}

/** A duration in at most two units. */
export function duration(value) {
  const whole = Math.round(value);
  for (const [size, unit, lower, below] of [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ]) {
    if (whole >= size) return `${Math.floor(whole / size)} ${unit} ${Math.floor((whole % size) / lower)} ${below}`;
  }
  return `${whole} s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  let size = value,
    unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size : size.toFixed(size < 10 ? 2 : 1)} ${units[unit]}`;
}

// Controls for an experiment. Knobs and their ranges come from the server.

import { h, number, say } from "../dom.js";

/** A labelled slider. `scale` "log": logarithmic, with 0 at its left end if `zero` is set. */
export function slider({ id, label, value, least, most, step, scale, unit = "", meaning, zero = false, changed }) {
  const logged = scale === "log",
    places = 200;
  const to = (v) =>
    logged
      ? v <= 0 && zero
        ? 0
        : Math.round((places * Math.log(Math.max(v, least) / least)) / Math.log(most / least)) + (zero ? 1 : 0)
      : v;
  const from = (p) => {
    if (!logged) return Number(p);
    const place = Number(p) - (zero ? 1 : 0);
    return place < 0 ? 0 : Number((least * (most / least) ** (place / places)).toPrecision(2));
  };
  const output = h("output", { for: id });
  const show = (v) => say(output, `${number(v, 4)}${unit}`);
  const input = h("input", {
    type: "range",
    id,
    min: logged ? 0 : least,
    max: logged ? places + (zero ? 1 : 0) : most,
    step: logged ? 1 : (step ?? 1),
    oninput: () => show(from(input.value)),
    onchange: () => changed(from(input.value)),
  });
  input.value = to(value);
  input.setAttribute("aria-valuetext", `${value}${unit}`);
  show(value);
  return h(
    "div",
    { class: "control" },
    h("label", { for: id }, label),
    output,
    input,
    meaning && h("p", { class: "meaning" }, meaning),
  );
}

export function select({ id, label, value, options, meaning, changed }) {
  const element = h(
    "select",
    { id, onchange: () => changed(element.value) },
    options.map(([name, text]) => h("option", { value: name, selected: name === value }, text ?? name)),
  );
  return h(
    "div",
    { class: "control" },
    h("label", { for: id }, label),
    h("span"),
    element,
    meaning && h("p", { class: "meaning" }, meaning),
  );
}

export function flag({ id, label, value, meaning, changed }) {
  const input = h("input", { type: "checkbox", id, checked: value, onchange: () => changed(input.checked) });
  return h(
    "div",
    { class: "control" },
    h("label", { for: id }, label),
    input,
    meaning && h("p", { class: "meaning" }, meaning),
  );
}

/** Controls for the knobs of a policy, by type and bounds. */
export function knobs(policy, { prefix, get, set, workers }) {
  return policy.knobs.map((knob) => {
    const key = `policy.${knob.name}`,
      id = `${prefix}-${knob.name}`,
      value = get(key) ?? usual(knob, workers),
      changed = (found) => set(key, found);
    const meaning = knob.range ? `${knob.meaning} (${knob.range})` : knob.meaning;
    if (knob.type === "flag") return flag({ id, label: knob.name, value: Boolean(value), meaning, changed });
    if (knob.choices)
      return select({ id, label: knob.name, value, options: knob.choices.map((name) => [name]), meaning, changed });
    if (knob.type === "integer") {
      const least = bound(knob.at_least, workers) ?? 0,
        most = bound(knob.at_most, workers) ?? Math.max(16, 2 * value);
      // A range over several orders of magnitude needs a logarithmic slider.
      const wide = most / Math.max(least, 1) > 1000,
        range = wide ? { least: Math.max(least, 1), scale: "log", zero: least === 0 } : { least, step: 1 };
      return slider({
        id,
        label: knob.name,
        value: Math.min(Math.max(value, least), most),
        most,
        ...range,
        meaning,
        changed: (found) => changed(Math.round(found)),
      });
    }
    if (knob.type !== "number")
      return h(
        "div",
        { class: "control" },
        h("label", {}, knob.name),
        h("span", {}, String(value)),
        h("p", { class: "meaning" }, meaning),
      );
    const low = bound(knob.at_least ?? knob.above, workers) ?? 0,
      high = bound(knob.at_most ?? knob.below, workers) ?? Math.max(1, 4 * value);
    const step = (high - low) / 100,
      open = knob.above !== undefined ? step : 0;
    return slider({
      id,
      label: knob.name,
      value,
      least: low + open,
      most: high - (knob.below !== undefined ? step : 0),
      step,
      meaning,
      changed,
    });
  });
}

/** The default, or a value within the range if there is none. */
export function usual(knob, workers) {
  if (knob.default !== undefined && knob.default !== null) return knob.default;
  if (knob.type === "flag") return false;
  if (knob.choices) return knob.choices[0];
  const least = bound(knob.at_least ?? knob.above, workers) ?? 0,
    most = bound(knob.at_most ?? knob.below, workers);
  if (knob.type === "integer")
    return most === undefined ? Math.max(least, Math.min(3, least + 2)) : Math.round((least + most) / 2);
  return most === undefined ? least + 0.1 : (least + most) / 2;
}

/** A bound as a number. It may be a formula of the number of workers: "workers - 1", "(workers - 1) / 2". */
export function bound(value, workers) {
  if (value === undefined || value === null || typeof value === "number") return value ?? undefined;
  const found = /^\(?\s*(?:(\d+) )?workers\s*(?:([+-])\s*(\d+))?\s*\)?\s*(?:\/\s*(\d+))?$/.exec(value);
  if (!found) return undefined;
  const [, factor, sign, constant, divisor] = found;
  return Math.floor(
    (Number(factor ?? 1) * workers + (sign === "-" ? -1 : 1) * Number(constant ?? 0)) / Number(divisor ?? 1),
  );
}

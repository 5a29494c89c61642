// The state of the playground as a link, and names for its runs.
// Link: #/play?policy.name=ssp&policy.slack=3&b.policy.name=async

export const START = {
  "run.name": "playground",
  "cluster.workers": 6,
  "policy.name": "sync",
  "optimizer.name": "momentum",
  "optimizer.learning_rate": 0.1,
  "optimizer.momentum": 0,
  "simulation.problem": "quadratic",
  "simulation.options.dimensions": 20,
  "simulation.options.condition": 20,
  "simulation.options.noise": 0.15,
  "simulation.options.batches_per_epoch": 1000,
  "simulation.compute": "gamma(8, 0.0625)",
  "simulation.factors.5": 4,
  "simulation.interrupt": true,
  "simulation.seconds": 24,
  "run.seed": 1,
};
export const OTHER = { "policy.name": "async" };

/** Read a link: {settings, other: differences of the second run or null, lesson}. */
export function read(query, lessons) {
  const state = { settings: {}, other: null, lesson: "" };
  const lesson = query.get("lesson");
  if (lesson && lessons[lesson]) {
    state.lesson = lesson;
    state.settings = { ...lessons[lesson].settings };
    state.other = { ...lessons[lesson].other };
  }
  let own = false;
  for (const [key, text] of query) {
    if (key === "lesson") continue;
    const value = parse(text);
    if (key === "two") state.other = value === 0 ? null : (state.other ?? {});
    else if (key.startsWith("b.")) state.other = { ...state.other, [key.slice(2)]: value };
    else {
      state.settings[key] = value;
      own = true;
    }
  }
  if (!own && !state.lesson) {
    state.settings = { ...START };
    if (!query.has("two")) state.other ??= { ...OTHER };
  }
  return state;
}

export function write({ settings, other, lesson }, lessons) {
  const query = new URLSearchParams();
  if (lessons[lesson] && !changed({ settings, other }, lessons[lesson]).length) return `#/play?lesson=${lesson}`;
  for (const [key, value] of Object.entries(settings)) query.set(key, text(value));
  if (other) {
    query.set("two", "1");
    for (const [key, value] of Object.entries(other)) query.set(`b.${key}`, text(value));
  }
  return `#/play?${query}`;
}

/** What is no longer as in a lesson: of both runs, and of the second one alone, in words. */
function changed({ settings, other }, lesson) {
  if (!other) return [...differences(lesson.settings, settings), "one run only"];
  return [
    ...differences(lesson.settings, settings),
    ...differences(lesson.other, other).map((text) => `below ${text}`),
  ];
}

function differences(before, after) {
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return keys
    .filter((key) => JSON.stringify(before[key]) !== JSON.stringify(after[key]))
    .map((key) => word(key, after[key] ?? USUAL[key]));
}

/** What the visitor is told to look at. A lesson's sentence is about its own experiment, and goes with that. */
export function headline({ settings, other, lesson }, lessons) {
  const found = lessons[lesson],
    differ = found ? changed({ settings, other }, found) : [];
  if (!found) return "Move a slider to simulate again. The simulator runs the servers' own code.";
  return differ.length
    ? `Changed from the lesson "${found.title}": ${differ.join("; ")}. Choose the lesson again to undo it.`
    : found.look;
}

/**
 * Settings for another number of workers: the last worker's pace goes to the new last one, and workers that are no more
 * have no settings.
 */
export function withWorkers(settings, last, count) {
  const found = { ...settings },
    former = `simulation.factors.${last}`,
    slow = found[former];
  for (const key of Object.keys(found)) {
    const number = /^(?:simulation\.factors|workers)\.(\d+)/.exec(key)?.[1];
    if (number !== undefined && (Number(number) >= count || key === former)) delete found[key];
  }
  if (slow !== undefined && slow !== 1) found[`simulation.factors.${count - 1}`] = slow;
  if (found["faults.crashes"])
    found["faults.crashes"] = found["faults.crashes"].filter((crash) => crash.worker < count);
  return found;
}

function text(value) {
  return typeof value === "string" && !/^[-\d[{"]|^(true|false|null)$/.test(value) ? value : JSON.stringify(value);
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const WORDS = {
  "cluster.workers": (n) => `${n} worker${n === 1 ? "" : "s"}`,
  "optimizer.learning_rate": (rate) => `learning rate ${rate}`,
  "links.latency": (latency) => `latency ${latency} s`,
  "faults.crashes": (crashes) => `${crashes.length} crash${crashes.length === 1 ? "" : "es"}`,
};
// Defaults of keys that are not set.
const USUAL = { "optimizer.momentum": 0, "links.latency": 0, "faults.crashes": [] };
// Keys about the length of a run, which its name omits.
const LENGTH = ["run.versions", "simulation.seconds"];

/** Names of two runs, by their policies and differences; null for no second run. */
export function names(first, second) {
  const differ = second
    ? [...new Set([...Object.keys(first), ...Object.keys(second)])].filter(
        (key) => JSON.stringify(first[key]) !== JSON.stringify(second[key]),
      )
    : [];
  const same = second && !differ.includes("policy.name");
  const kept = differ.filter((key) => !key.startsWith("policy.") && !LENGTH.includes(key));
  const name = (settings) => {
    const knobs = Object.keys(settings).filter(
      (key) => key.startsWith("policy.") && key !== "policy.name" && (!same || differ.includes(key)),
    );
    return [
      settings["policy.name"] ?? "sync",
      ...knobs.map((key) => `${key.slice(7)} ${settings[key]}`),
      ...kept.map((key) => word(key, settings[key] ?? USUAL[key])),
    ].join(", ");
  };
  return [name(first), second ? name(second) : null];
}

export function word(key, value) {
  const slow = /^simulation\.factors\.(\d+)$/.exec(key);
  if (slow)
    return value === undefined || value === 1
      ? `w${slow[1]} as fast as the others`
      : `w${slow[1]} ${value} times as slow`;
  const last = key.split(".").at(-1).replaceAll("_", " ");
  return value === undefined ? `usual ${last}` : (WORDS[key]?.(value) ?? `${last} ${value}`);
}

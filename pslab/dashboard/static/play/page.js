// The playground: an experiment with sliders, run by the simulator beside a second one with the same seeds.

import { h, number, put, say, seconds } from "../dom.js";
import { canvas } from "../draw/canvas.js";
import { drawChart, smooth } from "../draw/chart.js";
import { drawLanes, laneHeight } from "../draw/lanes.js";
import { upTo } from "../model.js";
import { legend, usualSpan } from "../pages/time.js";
import { ask, play } from "../source.js";
import { bound, knobs, select, slider, usual } from "./controls.js";
import { headline, names, OTHER, read, START, withWorkers, word, write } from "./state.js";

const TIMES = {
  constant: (m) => `constant(${m})`,
  gamma: (m) => `gamma(8, ${r(m / 8)})`,
  exponential: (m) => `exponential(${m})`,
  pareto: (m) => `pareto(2.5, ${r(m * 0.6)})`,
};
const TIME_WORDS = {
  constant: "constant",
  gamma: "varying a little",
  exponential: "varying a lot (exponential)",
  pareto: "sometimes very long (Pareto)",
};
const MEANS = {
  constant: (p) => p[0],
  gamma: (p) => p[0] * p[1],
  exponential: (p) => p[0],
  pareto: (p) => (p[1] * p[0]) / (p[0] - 1),
};

function r(value) {
  return Number(value.toPrecision(6));
}

/** The settings of the second run: those of the first with its own differences. Another policy has its own knobs. */
export function resolve(settings, other) {
  const base = { ...settings };
  if (other["policy.name"] !== undefined && other["policy.name"] !== settings["policy.name"]) {
    for (const key of Object.keys(base)) if (key.startsWith("policy.")) delete base[key];
  }
  return { ...base, ...other };
}

export function playground(context) {
  const panel = h("div", { class: "panel", id: "controls" }),
    look = h("p", { class: "headline" });
  const stage = h("div", { class: "stage" });
  const problem = h("p", { class: "error", role: "alert", id: "play-error", hidden: true });
  const sides = [side("a"), side("b")];
  const chart = canvas("Loss of both runs over time", "chart");
  const versus = h(
    "div",
    { class: "card" },
    h(
      "div",
      { class: "bar" },
      h("h2", {}, "Loss"),
      h(
        "ul",
        { class: "legend" },
        h("li", {}, h("span", { class: "swatch line-a" }), h("span", { class: "name-a" })),
        h("li", {}, h("span", { class: "swatch line-b" }), h("span", { class: "name-b" })),
      ),
    ),
    chart,
  );
  const tools = h(
    "div",
    { class: "tools" },
    h("button", { type: "button", class: "primary", id: "second", onclick: second }, "Second run"),
    h("button", { type: "button", id: "copy-link", onclick: copyLink }, "Copy link"),
    h("button", { type: "button", id: "as-file", onclick: asFile }, "As an experiment file"),
    h(
      "button",
      {
        type: "button",
        onclick: () => {
          go(read(new URLSearchParams(), {}));
        },
      },
      "Start over",
    ),
  );
  const element = h("section", { class: "playground", "aria-label": "Playground" }, panel, stage);
  put(stage, h("div", { class: "card" }, look, tools, problem), sides[0].element, sides[1].element, versus);

  let choices = null,
    state = null,
    runs = [null, null],
    asked = 0,
    timer = null,
    factor = 1,
    closed = false;

  ask("/api/choices")
    .then((found) => {
      choices = found;
      navigated();
    })
    .catch((error) => {
      problem.hidden = false;
      say(problem, error.message);
    });

  function navigated() {
    if (!choices) return;
    const query = new URLSearchParams(location.hash.split("?")[1] ?? "");
    state = read(query, choices.lessons);
    build();
    request(0);
  }

  /** Change the state, and with it the link, the controls and the runs. */
  function go(next, { rebuild = true } = {}) {
    state = next;
    history.replaceState(null, "", write(state, choices.lessons));
    if (rebuild) build();
    say(look, headline(state, choices.lessons));
    request(180);
  }

  function set(key, value) {
    go(
      { ...state, lesson: state.lesson, settings: { ...state.settings, [key]: value } },
      { rebuild: ["cluster.workers", "simulation.problem", "optimizer.name"].includes(key) },
    );
  }

  // Playing

  function request(wait) {
    clearTimeout(timer);
    asked += 1;
    const mine = asked;
    timer = setTimeout(async () => {
      stage.classList.add("busy");
      const first = { settings: state.settings };
      const other = state.other ? { settings: resolve(state.settings, state.other) } : null;
      const found = await Promise.allSettled([play(first), other ? play(other) : Promise.resolve(null)]);
      if (mine !== asked || closed) return;
      const named = names(first.settings, other?.settings);
      stage.classList.remove("busy");
      const wrong = found.filter((each) => each.status === "rejected").map((each) => each.reason.message);
      problem.hidden = !wrong.length;
      say(problem, [...new Set(wrong)].join(" — "));
      // A refused run leaves the previous one in place, under its name.
      runs = found.map((each, place) =>
        each.status === "rejected"
          ? runs[place] && [...runs[place].slice(0, 3), true]
          : each.value && [...each.value, named[place], false],
      );
      const shown = runs.filter(Boolean);
      if (!shown.length) return;
      const ends = shown.map(([model]) => model.seconds),
        end = Math.max(...ends);
      const moments = [...new Set(shown.flatMap(([model]) => model.log.map(([t]) => t)))].sort((a, b) => a - b);
      const { clock } = context,
        known = clock.slider && clock.owner === element;
      // First a moment at which all runs still go on; later the visitor's moment, or the end.
      const opened = (Math.min(...ends) * 2) / 3;
      clock.owner = element;
      clock.record(0, end, () => moments, { at: !known ? opened : clock.t >= clock.end - 1e-9 ? end : clock.t });
      context.changed();
    }, wait);
  }

  function second() {
    go({
      ...state,
      other: state.other
        ? null
        : { ...OTHER, ...(state.settings["policy.name"] === "async" ? { "policy.name": "sync" } : {}) },
    });
  }

  async function copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      context.notice("The link is copied. It contains the whole experiment.");
    } catch {
      context.notice("Copy the address of this page. It contains the whole experiment.");
    }
    setTimeout(() => context.notice(""), 2500);
  }

  function asFile() {
    const texts = runs.map((run) => (run ? run[1].experiment : null));
    const dialog = document.getElementById("help");
    put(
      dialog,
      h("h2", {}, "As an experiment file"),
      h("p", { class: "dim" }, "Save it as play.toml, then: ps-lab run play.toml --engine simulated"),
      texts.map(
        (text, place) =>
          text && [
            h("h3", {}, place ? "the second run" : "the first run"),
            h("pre", { class: "toml", tabindex: "0" }, text),
          ],
      ),
      h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")),
    );
    dialog.showModal();
  }

  // Controls

  function last() {
    return (state.settings["cluster.workers"] ?? 1) - 1;
  }

  function build() {
    const s = state.settings,
      workers = s["cluster.workers"] ?? 1;
    const open = new Set([...panel.querySelectorAll("details[open]")].map((each) => each.dataset.key));
    const focused = document.activeElement?.id;
    const section = (key, title, ...children) =>
      h(
        "details",
        { "data-key": key, open: open.has(key) },
        h("summary", {}, title),
        h("div", { class: "panel" }, children),
      );
    const first = card(
      "a",
      state.other ? "First run" : "Policy",
      s,
      (key, value) => set(key, value),
      (name) => go({ ...state, settings: withPolicy(s, name) }),
    );
    const rest = h(
      "div",
      { class: "card" },
      h("h2", {}, "Experiment"),
      select({
        id: "lesson",
        label: "Lesson",
        value: state.lesson,
        options: [["", "your own"], ...Object.entries(choices.lessons).map(([key, lesson]) => [key, lesson.title])],
        changed: (name) =>
          go(name ? read(new URLSearchParams({ lesson: name }), choices.lessons) : { ...state, lesson: "" }),
      }),
      slider({ id: "workers", label: "workers", value: workers, least: 1, most: 32, changed: changeWorkers }),
      times(s),
      slider({
        id: "straggler",
        label: `w${last()} is slower by`,
        value: s[`simulation.factors.${last()}`] ?? 1,
        least: 1,
        most: 20,
        step: 0.5,
        unit: " ×",
        changed: (value) => set(`simulation.factors.${last()}`, value),
      }),
      section("learning", "Learning", learning(s)),
      section("links", "Links", links(s)),
      section("crashes", "Crashes", crashes(s)),
      section(
        "run",
        "Length and seed",
        slider({
          id: "seed",
          label: "seed",
          value: s["run.seed"] ?? 0,
          least: 0,
          most: 30,
          changed: (value) => set("run.seed", value),
        }),
        s["run.versions"]
          ? slider({
              id: "versions",
              label: "versions",
              value: s["run.versions"],
              least: 10,
              most: 1000,
              step: 10,
              changed: (value) => set("run.versions", value),
            })
          : slider({
              id: "length",
              label: "virtual seconds",
              value: s["simulation.seconds"] ?? 60,
              least: 2,
              most: 200,
              changed: (value) => set("simulation.seconds", value),
            }),
      ),
    );
    put(panel, first, state.other ? otherCard() : null, rest);
    say(look, headline(state, choices.lessons));
    say(tools.querySelector("#second"), state.other ? "One run only" : "Second run");
    if (focused) document.getElementById(focused)?.focus();
  }

  function withPolicy(settings, name) {
    const found = Object.fromEntries(Object.entries(settings).filter(([key]) => !key.startsWith("policy.")));
    found["policy.name"] = name;
    const policy = choices.policies.find((each) => each.name === name),
      workers = settings["cluster.workers"] ?? 1;
    for (const knob of policy?.knobs ?? [])
      if (knob.default === undefined) found[`policy.${knob.name}`] = usual(knob, workers);
    return found;
  }

  function card(prefix, title, settings, change, choose) {
    const policy = choices.policies.find((each) => each.name === settings["policy.name"]) ?? choices.policies[0];
    return h(
      "div",
      { class: `card side ${prefix}` },
      h("h2", {}, title),
      select({
        id: `${prefix}-policy`,
        label: "policy",
        value: policy.name,
        options: choices.policies.map((each) => [each.name]),
        meaning: policy.rule,
        changed: choose,
      }),
      knobs(policy, { prefix, get: (key) => settings[key], set: change, workers: settings["cluster.workers"] ?? 1 }),
    );
  }

  function otherCard() {
    const settings = resolve(state.settings, state.other);
    const differences = Object.entries(state.other)
      .filter(([key]) => !key.startsWith("policy."))
      .map(([key, value]) => word(key, value));
    const made = card(
      "b",
      "Second run, the same seeds",
      settings,
      (key, value) =>
        go(
          {
            ...state,
            other: { ...state.other, "policy.name": settings["policy.name"], ...knobsOf(settings), [key]: value },
          },
          { rebuild: false },
        ),
      (name) =>
        go({
          ...state,
          other: {
            ...Object.fromEntries(Object.entries(state.other).filter(([key]) => !key.startsWith("policy."))),
            ...policyOf(withPolicy(settings, name)),
          },
        }),
    );
    if (differences.length) made.append(h("p", { class: "meaning" }, `Other differences: ${differences.join(", ")}`));
    return made;
  }

  function policyOf(settings) {
    return Object.fromEntries(Object.entries(settings).filter(([key]) => key.startsWith("policy.")));
  }
  function knobsOf(settings) {
    return policyOf(settings);
  }

  function changeWorkers(count) {
    const settings = { ...withWorkers(state.settings, last(), count), "cluster.workers": count };
    const policy = choices.policies.find((each) => each.name === settings["policy.name"]);
    for (const knob of policy?.knobs ?? []) {
      const key = `policy.${knob.name}`,
        most = bound(knob.at_most, count);
      if (typeof settings[key] === "number" && most !== undefined && settings[key] > most) settings[key] = most;
    }
    const other = state.other && withWorkers(state.other, last(), count);
    go({ ...state, settings, other });
  }

  /** The text of the step times, and the name of their distribution if there is a slider for it. */
  function stepTimes(s) {
    const text = String(s["simulation.compute"] ?? "constant(0.001)"),
      found = /^(\w+)\(([^)]*)\)$/.exec(text);
    return [text, found && found[1] in TIMES ? found[1] : "", found?.[2].split(",").map(Number)];
  }

  function meanStep(s) {
    const [, name, numbers] = stepTimes(s);
    return name ? MEANS[name](numbers) : 1;
  }

  function times(s) {
    const [text, name] = stepTimes(s),
      mean = meanStep(s);
    const options = [...Object.entries(TIME_WORDS), ...(name ? [] : [["", text]])];
    return [
      select({
        id: "times",
        label: "step times",
        value: name,
        options,
        changed: (value) => value && go({ ...state, settings: { ...s, "simulation.compute": TIMES[value](r(mean)) } }),
      }),
      name &&
        slider({
          id: "mean",
          label: "mean step",
          value: mean,
          least: 0.01,
          most: 10,
          scale: "log",
          unit: " s",
          changed: (value) => set("simulation.compute", TIMES[name](value)),
        }),
    ];
  }

  function problemOf(s) {
    return ["auto", undefined].includes(s["simulation.problem"]) ? "none" : s["simulation.problem"];
  }

  function rate(s) {
    return typeof s["optimizer.learning_rate"] === "number" ? s["optimizer.learning_rate"] : 0.01;
  }

  function learning(s) {
    const problem = problemOf(s);
    return [
      select({
        id: "problem",
        label: "problem",
        value: problem,
        options: choices.problems.map((name) => [
          name,
          {
            none: "none: timing only",
            quadratic: "quadratic",
            logistic: "logistic regression, digits",
            mlp: "small network, digits",
          }[name],
        ]),
        changed: (name) =>
          go({
            ...state,
            settings: {
              ...Object.fromEntries(
                Object.entries(s).filter(
                  ([key]) => !key.startsWith("simulation.options.") && key !== "simulation.evaluate",
                ),
              ),
              "simulation.problem": name,
              ...(name === "quadratic"
                ? Object.fromEntries(Object.entries(START).filter(([key]) => key.startsWith("simulation.options.")))
                : {}),
            },
          }),
      }),
      problem !== "none" &&
        slider({
          id: "rate",
          label: "learning rate",
          value: rate(s),
          least: 0.001,
          most: 2,
          scale: "log",
          changed: (value) => set("optimizer.learning_rate", value),
        }),
      problem !== "none" &&
        slider({
          id: "momentum",
          label: "momentum",
          value: s["optimizer.momentum"] ?? 0,
          least: 0,
          most: 0.99,
          step: 0.01,
          changed: (value) =>
            go(
              { ...state, settings: { ...s, "optimizer.name": "momentum", "optimizer.momentum": value } },
              { rebuild: false },
            ),
        }),
      problem === "quadratic" &&
        slider({
          id: "noise",
          label: "noise of a gradient",
          value: s["simulation.options.noise"] ?? 0,
          least: 0,
          most: 2,
          step: 0.05,
          changed: (value) => set("simulation.options.noise", value),
        }),
    ];
  }

  function links(s) {
    return [
      slider({
        id: "latency",
        label: "latency, one way",
        value: s["links.latency"] ?? 0,
        least: 0.001,
        most: 2,
        scale: "log",
        zero: true,
        unit: " s",
        changed: (value) => set("links.latency", value),
      }),
      slider({
        id: "payload",
        label: "model",
        value: (s["simulation.payload_bytes"] ?? 0) / 1e6,
        least: 0.1,
        most: 1000,
        scale: "log",
        zero: true,
        unit: " MB",
        meaning: "without a problem only, because a problem has its own size",
        changed: (value) => set("simulation.payload_bytes", Math.round(value * 1e6)),
      }),
      slider({
        id: "bandwidth",
        label: "bandwidth of a server (0: no limit)",
        value: (s["links.bandwidth"] ?? 0) / 1e6,
        least: 0.0001,
        most: 10000,
        scale: "log",
        zero: true,
        unit: " MB/s",
        changed: (value) => set("links.bandwidth", value * 1e6),
      }),
      slider({
        id: "loss",
        label: "messages lost",
        value: 100 * (s["faults.loss"] ?? 0),
        least: 0,
        most: 50,
        unit: " %",
        changed: (value) => set("faults.loss", value / 100),
      }),
    ];
  }

  function crashes(s) {
    const found = s["faults.crashes"] ?? [],
      change = (crashes) => go({ ...state, settings: { ...s, "faults.crashes": crashes } });
    const worker = h(
      "select",
      { "aria-label": "Worker" },
      Array.from({ length: s["cluster.workers"] ?? 1 }, (_, place) => h("option", { value: place }, `w${place}`)),
    );
    const restart = h("input", {
      type: "number",
      min: 0,
      max: 1000,
      step: 1,
      value: 5,
      "aria-label": "Seconds until the restart; 0: never",
    });
    return [
      h(
        "ul",
        { class: "crashes" },
        found.map((crash, place) =>
          h(
            "li",
            {},
            `w${crash.worker} at ${number(crash.at)} s, `,
            crash.restart ? `back after ${number(crash.restart)} s` : "for good",
            h(
              "button",
              {
                type: "button",
                class: "link",
                "aria-label": `Remove crash ${place + 1}`,
                onclick: () => change(found.filter((_, other) => other !== place)),
              },
              "remove",
            ),
          ),
        ),
      ),
      h("p", { class: "meaning" }, "Crashes at the slider's moment and restarts after this many seconds (0: never)."),
      h(
        "div",
        { class: "tools" },
        worker,
        restart,
        h(
          "button",
          {
            type: "button",
            id: "crash",
            onclick: () =>
              change([
                ...found,
                {
                  worker: Number(worker.value),
                  at: r(Math.round(context.clock.t * 100) / 100),
                  restart: Number(restart.value),
                },
              ]),
          },
          "Crash it",
        ),
      ),
    ];
  }

  // The stage

  function side(prefix) {
    const lanes = canvas("Lanes of the workers", "lanes"),
      title = h("h2"),
      words = h("p");
    return {
      element: h(
        "div",
        { class: `card side ${prefix}` },
        h("header", {}, title, words),
        h("div", { class: "scroll" }, lanes),
        prefix === "a" ? legend() : null,
      ),
      lanes,
      title,
      words,
    };
  }

  function update({ clock }) {
    const shown = runs.map((run, place) => (run && (place === 0 || state.other) ? run[0] : null));
    const span = (shown[0] ? Math.max(usualSpan(shown[0]), (clock.end - clock.begin) / 40) : 1) * factor;
    const start = Math.max(0, Math.min(clock.t - span * 0.75, clock.end - span));
    sides.forEach((made, place) => {
      const model = shown[place];
      made.element.hidden = !model;
      if (!model) return;
      const [, info, name, refused] = runs[place];
      const over = clock.t >= model.seconds - 1e-9;
      const reason = info.limited || (info.ended.success ? "" : info.ended.reason);
      made.element.classList.toggle("refused", refused);
      made.lanes.style.height = `${laneHeight(model.workers.length, model.workers.length > 16 ? 13 : 22)}px`;
      drawLanes(made.lanes, model, { t: clock.t, span, start });
      const found = model.figures(clock.t),
        measured = model.lossAt(clock.t);
      say(made.title, name);
      put(
        made.words,
        "version ",
        h("b", {}, number(found.version, 6)),
        " · loss ",
        h("b", {}, number(measured ?? found.loss)),
        " · staleness mean ",
        h("b", {}, number(found.staleness)),
        ", max ",
        h("b", {}, number(found.most)),
        " · dropped ",
        h("b", {}, number(found.dropped, 6)),
        over ? ` · ended at ${seconds(model.seconds)}${reason ? `: ${reason}` : ""}` : "",
      );
    });
    plot(shown.filter(Boolean), clock);
    shown.forEach((model, place) => {
      if (model) say(versus.querySelector(place ? ".name-b" : ".name-a"), runs[place][2]);
    });
    versus.querySelectorAll(".legend li")[1].hidden = !shown[1];
  }

  /** Plot each run, faint after the moment: the loss of the model if it is measured, else that of the updates. */
  function plot(models, clock) {
    // The evaluation at the end alone makes no curve.
    const measured = models.every((model) => model.losses().length > 1);
    const rows = models.map((model) =>
      measured ? model.losses() : model.updates.map((row) => [row[0], row[5] ?? NaN]),
    );
    const learns = rows.some((points) => points.some(([, y]) => Number.isFinite(y)));
    say(versus.querySelector("h2"), !learns ? "Versions" : measured ? "Loss of the model" : "Loss of the updates");
    const curves = models.flatMap((model, place) => {
      const colour = place ? "--b" : "--a",
        dash = place ? [7, 4] : [];
      const points = learns ? rows[place] : [[0, 0], ...model.updates.map((row) => [row[0], row[1]])];
      const drawn = measured || !learns ? points : smooth(points, 12),
        until = upTo(drawn, clock.t);
      return [
        ...(measured || !learns
          ? []
          : [{ points: points.slice(0, upTo(points, clock.t)), colour, faint: true, width: 1 }]),
        { points: drawn.slice(0, until), colour, dash, width: 2.2 },
        { points: drawn.slice(Math.max(0, until - 1)), colour, dash, faint: true, width: 2.2 },
      ];
    });
    drawChart(chart, curves, {
      xLabel: "virtual seconds",
      yLabel: learns ? "loss" : "versions",
      log: learns,
      zero: !learns,
      range: [0, clock.end],
      at: clock.t,
    });
  }

  return {
    element,
    update,
    navigated,
    zoom: (by) => {
      factor = Math.min(Math.max(factor * by, 1 / 32), 8);
      context.changed();
    },
    hasClock: () => runs.some(Boolean),
    close: () => {
      closed = true;
      asked += 1;
      clearTimeout(timer);
      if (context.clock.owner === element) {
        context.clock.owner = null;
        context.clock.footer.hidden = true;
        context.resume();
      }
    },
  };
}

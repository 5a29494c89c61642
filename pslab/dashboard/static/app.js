// The frame around all pages: source, navigation, header, clock, theme and keyboard.

import { Clock } from "./clock.js";
import { h, number, put, say, seconds, sign } from "./dom.js";
import { forgetColours } from "./draw/canvas.js";
import { Model } from "./model.js";
import { curves } from "./pages/curves.js";
import { now } from "./pages/now.js";
import { time } from "./pages/time.js";
import { playground } from "./play/page.js";
import { ask, follow, modelOf } from "./source.js";

const PAGES = { now, time, curves, play: playground };
const TITLES = { now: "Now", time: "Time", curves: "Curves", play: "Playground" };
const $ = (id) => document.getElementById(id);

const context = {
  about: { kind: "playground", title: "" },
  model: new Model(),
  clock: new Clock($("clock")),
  info: {},
  changed: () => {
    dirty = true;
  },
  notice,
};
let shown = { name: "", page: null },
  dirty = true,
  drawn = 0;

// Theme: the system's preference, unless the user has chosen one.

function theme(chosen) {
  if (chosen) {
    document.documentElement.dataset.theme = chosen;
    localStorage.setItem("theme", chosen);
  }
  const dark = isDark();
  sign($("theme"), dark ? "sun" : "moon");
  $("theme").title = dark ? "Light colours (d)" : "Dark colours (d)";
  forgetColours();
  dirty = true;
}
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
function switchTheme() {
  theme(isDark() ? "light" : "dark");
}

// Pages

function available() {
  return context.about.kind === "playground" ? ["play"] : Object.keys(PAGES);
}

function navigation() {
  document.body.classList.toggle("alone", available().length === 1);
  put(
    $("nav"),
    available().map((name, place) =>
      h(
        "a",
        { href: `#/${name}`, "data-page": name, title: `${TITLES[name]} (${place + 1})` },
        h("span", { class: `icon icon-${name}`, "aria-hidden": "true" }),
        h("span", {}, TITLES[name]),
      ),
    ),
  );
}

function open() {
  const [path] = location.hash.replace(/^#\/?/, "").split("?");
  const name = available().includes(path) ? path : available()[0];
  if (shown.name !== name) {
    shown.page?.close?.();
    shown = { name, page: PAGES[name](context) };
    put($("main"), shown.page.element);
    document.title = `${TITLES[name]} · ${context.about.title || "paramserver"}`;
    document.body.dataset.page = name;
    for (const link of $("nav").children) {
      if (link.dataset.page === name) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "nearest" });
      } else link.removeAttribute("aria-current");
    }
    window.scrollTo(0, 0);
  } else shown.page.navigated?.();
  context.clock.footer.hidden =
    context.clock.live || !context.clock.slider || (name === "play" && !shown.page.hasClock?.());
  dirty = true;
}

function figures() {
  const { model, clock, about } = context;
  if (about.kind === "playground" || shown.name === "play") {
    $("figures").hidden = true;
    return;
  }
  $("figures").hidden = false;
  const status = clock.live ? model.status : null,
    moment = model.figures(clock.t);
  const rows = status
    ? status.headline.filter(([term]) => !context.info.gone || term !== "left, about")
    : [
        ["policy", model.job.policy?.name ?? "–"],
        ["version", number(moment.version, 6)],
        ["loss", number(moment.loss)],
        ["staleness", number(moment.staleness)],
        ["dropped", number(moment.dropped, 6)],
      ];
  const phase = status
    ? context.info.gone
      ? "last heard of at"
      : status.phase
    : context.info.ended && clock.t >= model.seconds
      ? "ended at"
      : "at";
  rows.splice(5, 0, [phase, seconds(clock.t)]);
  const list = $("figures");
  if (list.children.length !== rows.length)
    put(
      list,
      rows.map(() => h("div", {}, h("dt"), h("dd"))),
    );
  rows.forEach(([term, value], place) => {
    say(list.children[place].children[0], term);
    say(list.children[place].children[1], value);
  });
}

function frame(stamp) {
  const moved = context.clock.tick();
  // A live page is redrawn 12 times a second, a recording that plays at every frame.
  const due = dirty || (moved && (!context.clock.live || stamp - drawn > 80));
  if (due && !document.hidden) {
    dirty = false;
    drawn = stamp;
    figures();
    shown.page?.update(context);
  }
  requestAnimationFrame(frame);
}

function notice(text) {
  const element = $("notice");
  element.hidden = !text;
  say(element, text ?? "");
}

/** Show on every page how the job ended. `end`: as made in pslab/dashboard/runs.py. */
function showEnd(end) {
  const element = $("ended"),
    key = JSON.stringify(end ?? null);
  element.hidden = !end;
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  if (!end) return;
  element.dataset.success = String(end.success);
  const measured = Object.entries(end.metrics)
    .map(([name, value]) => `${name} ${number(value, 4)}`)
    .join(", ");
  put(
    element,
    h("strong", {}, end.success ? "Done" : "Failed"),
    ` at version ${number(end.version, 6)}: ${end.reason}.`,
    measured && ` Final evaluation: ${measured}.`,
    end.folder && [" Run folder: ", h("code", {}, end.folder)],
  );
}

/** Process a message about a live cluster. */
function receive(model, info) {
  const { clock } = context;
  context.model = model;
  context.info = { ...context.info, ...info, gone: info.gone ?? "" };
  const { ended: end, gone, skipped } = context.info;
  exposed(end || gone ? "" : model.status?.exposed);
  copies(end || gone ? null : model.status);
  showEnd(end);
  if (!clock.owner) context.resume();
  notice(
    end
      ? ""
      : gone
        ? info.broken
          ? gone
          : `No answer: ${gone}. The page shows the last known state and asks again every second.`
        : skipped
          ? `${skipped} log entries are not shown, because there were too many`
          : "",
  );
  dirty = true;
}

/** Restore the clock of the page's own source after another page has used the clock. */
context.resume = () => {
  const { clock, model, info, about } = context;
  if (about.kind === "live") {
    if (info.ended) {
      clock.rest(model.seconds);
      return;
    }
    if (info.now !== undefined) clock.follow(info.now);
    if (info.gone) clock.hold();
  } else if (model.seconds) context.show(model, info);
};

/** Warn on every page while the servers are not protected. */
function exposed(text) {
  const element = $("exposed");
  element.hidden = !text;
  say(element, text ?? "");
}

/** Show on every page what the servers of a job with replicas do, and what one more loss would mean. */
function copies(status) {
  const element = $("copies");
  element.hidden = !status?.replicas;
  if (element.hidden) return;
  const behind = ({ lag }) => (lag ? `, ${lag.toLocaleString("en")} ${lag === 1 ? "item" : "items"} behind` : "");
  say(
    element,
    [
      ...status.servers.map((server) => `server ${server.task_index} ${server.state}${behind(server)}`),
      status.replicas,
    ].join(" · "),
  );
  element.dataset.whole = String(!status.servers.some(({ state }) => state === "lost" || state === "learns"));
}

// Keyboard

const KEYS = [
  ["1 … 4", "open a page"],
  ["space", "play or pause"],
  ["← →", "one step back or forward"],
  ["Home End", "first or last moment"],
  ["+ −", "zoom the lanes in or out"],
  ["d", "light or dark colours"],
  ["?", "show this list"],
];

function help() {
  const dialog = $("help");
  put(
    dialog,
    h("h2", { id: "help-title" }, "Keyboard shortcuts"),
    h(
      "dl",
      { class: "keys" },
      KEYS.map(([key, does]) => [
        h(
          "dt",
          {},
          key.split(" ").map((one) => h("kbd", {}, one)),
        ),
        h("dd", {}, does),
      ]),
    ),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")),
  );
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  const inside = event.target.closest("input, select, button");
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const typing = inside?.matches("input:not([type=range]):not([type=checkbox]), select");
  if (typing) return;
  const names = available(),
    place = Number(event.key) - 1;
  if (Number.isInteger(place) && names[place]) {
    location.hash = `#/${names[place]}`;
    return;
  }
  if (event.key === "?") help();
  else if (event.key === "d") switchTheme();
  else if (event.key === "+" || event.key === "=") shown.page.zoom?.(0.5);
  else if (event.key === "-") shown.page.zoom?.(2);
  else if (inside?.matches("button, input, select") && inside.id !== "moment") return;
  else if (event.key === " ") {
    event.preventDefault();
    context.clock.toggle();
  } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    event.preventDefault();
    context.clock.step(event.key === "ArrowLeft" ? -1 : 1);
  } else if (event.key === "Home" || event.key === "End") {
    if (!context.clock.live) {
      event.preventDefault();
      context.clock.go(event.key === "Home" ? context.clock.begin : context.clock.end);
    }
  }
});

// Recordings

function moments(model) {
  let found = null;
  return () => {
    found ??= [...new Set([model.begin, ...model.log.map(([t]) => t), model.seconds])];
    return found;
  };
}

/** Show a recording, with a slider from its begin to its end. */
context.show = (model, info, options) => {
  context.model = model;
  context.info = info;
  showEnd(info.ended);
  context.clock.record(model.begin, model.seconds, moments(model), options);
  context.clock.footer.hidden = false;
  dirty = true;
};

// A run folder, and what it gains while the run goes on.

const POLL = 2000,
  RETRY = 10_000; // milliseconds

async function record() {
  const found = await ask("/api/recording");
  context.show(modelOf(found), found);
  if (found.going) setTimeout(poll, POLL);
}

async function poll() {
  const { clock } = context,
    begun = performance.now();
  let pause = POLL;
  try {
    const found = document.hidden ? { same: true } : await ask(`/api/recording?entries=${context.info.entries}`);
    if (!found.same) {
      context.model = modelOf(found);
      context.info = found;
      showEnd(found.ended);
      clock.begin = clock.owner ? clock.begin : context.model.begin;
      if (!clock.owner) clock.extend(context.model.seconds, moments(context.model));
      dirty = true;
    }
    // Poll a long log less often, because reading it takes long.
    pause = Math.max(POLL, 10 * (performance.now() - begun));
  } catch (error) {
    notice(error.message);
    pause = RETRY;
  }
  if (context.info.going) setTimeout(poll, pause);
}

async function start() {
  theme(localStorage.getItem("theme"));
  $("theme").addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
  context.clock.addEventListener("change", () => {
    dirty = true;
  });
  new ResizeObserver(() => {
    dirty = true;
  }).observe(document.body);
  window.addEventListener("hashchange", open);
  context.about = await ask("/api/about");
  say($("title"), context.about.title || "Playground");
  $("title").title = context.about.title;
  navigation();
  if (context.about.kind === "live") {
    follow(receive);
  } else if (context.about.kind === "run") await record();
  open();
  requestAnimationFrame(frame);
}

start().catch((error) => {
  notice(error.message);
  navigation();
  open();
  requestAnimationFrame(frame);
});

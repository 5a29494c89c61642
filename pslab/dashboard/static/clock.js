// The moment that all pages show: the clock of a live cluster, or a slider with play, pause, step and speed.

import { h, icon, put, say, seconds, sign } from "./dom.js";

export class Clock extends EventTarget {
  constructor(footer) {
    super();
    this.footer = footer;
    this.live = false;
    this.t = 0;
    this.begin = 0;
    this.end = 0;
    this.speed = 1;
    this.playing = false;
    this.base = 1; // seconds of the recording per second at speed 1
    this.steps = () => []; // moments at which something happened, in order
    this.last = null;
    this.offset = null;
    this.over = false; // a live cluster has ended, and its last moment is shown
  }

  /** Follow a live cluster whose clock shows `now`. */
  follow(now) {
    this.live = true;
    this.over = false;
    this.footer.hidden = true;
    this.offset = now - performance.now() / 1000;
    this.t = this.end = now;
  }

  /** Stop the clock of a live cluster that does not answer. */
  hold() {
    this.offset = null;
  }

  /** Show the end of a live cluster at `t`. */
  rest(t) {
    this.live = false;
    this.over = true;
    this.footer.hidden = true;
    this.t = this.end = t;
  }

  /** Show a recording from `begin` to `end`. */
  record(begin, end, steps, { at = end } = {}) {
    this.live = this.over = false;
    this.begin = begin;
    this.end = Math.max(end, begin);
    this.steps = steps;
    this.base = Math.max((end - begin) / 40, 1e-6);
    this.t = Math.min(Math.max(at, begin), this.end);
    this.build();
    this.show();
  }

  /** Continue with the same recording after it has grown. */
  extend(end, steps) {
    if (this.t >= this.end && !this.playing) this.t = Math.max(end, this.t);
    this.end = Math.max(end, this.begin);
    this.steps = steps;
    this.show();
  }

  build() {
    this.footer.hidden = false;
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: 1000,
      step: 1,
      id: "moment",
      "aria-label": "Moment",
      oninput: () => this.go(this.begin + ((this.end - this.begin) * this.slider.value) / 1000),
    });
    this.button = h("button", { type: "button", class: "round", id: "play-pause", onclick: () => this.toggle() });
    this.label = h("output", { for: "moment", id: "moment-text" });
    const speeds = [0.1, 0.25, 0.5, 1, 2, 4, 10];
    this.choice = h(
      "select",
      {
        "aria-label": "Speed",
        id: "speed",
        onchange: () => {
          this.speed = Number(this.choice.value);
        },
      },
      speeds.map((speed) => h("option", { value: speed, selected: speed === this.speed }, `× ${speed}`)),
    );
    put(
      this.footer,
      h(
        "div",
        { class: "buttons" },
        h(
          "button",
          { type: "button", class: "round", "aria-label": "To the start (Home)", onclick: () => this.go(this.begin) },
          icon("start"),
        ),
        h(
          "button",
          {
            type: "button",
            class: "round",
            id: "back",
            "aria-label": "One step back (left arrow)",
            onclick: () => this.step(-1),
          },
          icon("back"),
        ),
        this.button,
        h(
          "button",
          {
            type: "button",
            class: "round",
            id: "forward",
            "aria-label": "One step forward (right arrow)",
            onclick: () => this.step(1),
          },
          icon("forward"),
        ),
        h(
          "button",
          { type: "button", class: "round", "aria-label": "To the end (End)", onclick: () => this.go(this.end) },
          icon("end"),
        ),
      ),
      this.slider,
      this.label,
      this.choice,
    );
  }

  show() {
    if (!this.slider) return;
    const span = this.end - this.begin;
    this.slider.value = span ? Math.round((1000 * (this.t - this.begin)) / span) : 1000;
    this.slider.setAttribute("aria-valuetext", seconds(this.t));
    say(this.label, `${seconds(this.t)} of ${seconds(this.end)}`);
    sign(this.button, this.playing ? "pause" : "play");
    this.button.setAttribute("aria-label", this.playing ? "Pause (space)" : "Play (space)");
  }

  go(t) {
    if (this.over) return;
    this.t = Math.min(Math.max(t, this.begin), this.end);
    this.show();
    this.dispatchEvent(new Event("change"));
  }

  toggle() {
    if (this.live || this.over) return;
    this.playing = !this.playing;
    if (this.playing && this.t >= this.end) this.t = this.begin;
    this.last = null;
    this.show();
    this.dispatchEvent(new Event("change"));
  }

  /** Go to the next or previous moment at which something happened. */
  step(direction) {
    if (this.live || this.over) return;
    this.playing = false;
    const moments = this.steps(),
      slack = 1e-9;
    const found =
      direction > 0
        ? (moments.find((t) => t > this.t + slack) ?? this.end)
        : (moments.findLast((t) => t < this.t - slack) ?? this.begin);
    this.go(found);
  }

  /** Advance the clock once per frame; return whether the moment has changed. */
  tick() {
    if (this.live) {
      if (this.offset === null) return false;
      const now = this.offset + performance.now() / 1000;
      this.t = Math.max(this.t, now);
      return true;
    }
    if (!this.playing) return false;
    const now = performance.now() / 1000,
      passed = this.last === null ? 0 : now - this.last;
    this.last = now;
    this.t = Math.min(this.t + passed * this.speed * this.base, this.end);
    if (this.t >= this.end) this.playing = false;
    this.show();
    return true;
  }
}

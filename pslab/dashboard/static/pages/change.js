// A form that changes the policy, where the page may.

import { h, put, say } from "../dom.js";

export function changePolicy() {
  const field = (label, id, more) => h("input", { type: "text", "aria-label": label, id, ...more });
  const name = h("select", { "aria-label": "policy", id: "change-to" });
  const effect = h("p", { class: "dim", role: "status", id: "change-effect" });
  const knobs = field("knobs", "change-knobs", { placeholder: "max_staleness=2 aggregate=1", maxlength: "1000" });
  const factor = { type: "number", min: "0", step: "any", placeholder: "rate × 1" };
  const rate = field("factor of the learning rate", "change-rate", factor);
  const why = field("reason", "change-why", { placeholder: "why", maxlength: "500" });
  const button = h("button", { type: "button", id: "change-policy", onclick: send }, "Change");
  const form = h("div", { class: "tools" }, name, knobs, rate, why, button);
  const element = h("div", { class: "card", hidden: true }, h("h2", {}, "Change the policy"), form, effect);

  async function send() {
    button.disabled = true;
    const words = knobs.value.trim().split(/\s+/).filter(Boolean);
    const asked = {
      to: name.value,
      set: words.map((each) => `policy.${each}`),
      why: why.value,
      rate: Number(rate.value),
    };
    try {
      const headers = { "Content-Type": "application/json" };
      const answer = await fetch("/api/policy", { method: "POST", headers, body: JSON.stringify(asked) });
      say(effect, answer.ok ? (await answer.json()).effect : await answer.text());
    } catch (error) {
      say(effect, error.message);
    }
    button.disabled = false;
  }

  function offer(policies) {
    if (!policies || !element.hidden) return;
    const options = policies.map((each) => h("option", { value: each }, each));
    put(name, h("option", { value: "" }, "the present policy"), options);
    element.hidden = false;
  }
  return { element, offer };
}

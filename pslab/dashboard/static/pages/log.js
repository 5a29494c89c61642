// The decision log in words, and the output of the processes.

import { h, put, say, seconds } from "../dom.js";
import { upTo } from "../model.js";

const SHOWN = 300;

export function log(context) {
  const list = h("ol", { class: "log", id: "log" }), count = h("p", { class: "dim", role: "status" });
  const worker = h("select", { "aria-label": "Worker", onchange: changed }), kind = h("select", { "aria-label": "Kind", onchange: changed });
  const text = h("input", { type: "search", placeholder: "contains …", "aria-label": "Text", oninput: changed });
  const printed = context.about.printed ?? [], output = h("pre", { class: "printed", tabindex: "0", hidden: true });
  const which = h("select", { "aria-label": "Process", onchange: show }, h("option", { value: "" }, "choose a process"), printed.map((name) => h("option", { value: name }, name)));
  const element = h("section", { class: "page", "aria-label": "Log" },
    h("div", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, "Decision log"), h("div", { class: "filters" }, worker, kind, text)), count, list),
    printed.length > 0 && h("div", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, "Output of the processes"), which), output));
  let key = "", options = "";

  function changed() { key = ""; context.changed(); }

  async function show() {
    output.hidden = !which.value;
    if (!which.value) return;
    const answer = await fetch(`/api/printed?name=${encodeURIComponent(which.value)}`);
    say(output, await answer.text());
    output.scrollTop = output.scrollHeight;
  }

  function update({ model, clock }) {
    const kinds = [...new Set(model.log.map((row) => row[2]))].sort(), wanted = model.workers.join() + kinds.join();
    if (wanted !== options) {
      options = wanted;
      const [a, b] = [worker.value, kind.value];
      put(worker, h("option", { value: "" }, "all workers"), model.order().map((place) => h("option", { value: String(place) }, model.workers[place])));
      put(kind, h("option", { value: "" }, "all kinds"), kinds.map((name) => h("option", { value: name }, name)));
      worker.value = a; kind.value = b;
    }
    const end = upTo(model.log, clock.live ? Infinity : clock.t), now = `${end}/${model.log[end - 1]?.[1]}`;
    if (now === key) return;
    key = now;
    const lower = text.value.toLowerCase(), found = [];
    let more = 0;
    for (let place = end - 1; place >= 0; place -= 1) {
      const row = model.log[place];
      if (worker.value !== "" && String(row[3]) !== worker.value && !(row[2] === "apply" && row[4].includes(`${model.workers[worker.value]}'s`))) continue;
      if (kind.value && row[2] !== kind.value) continue;
      if (lower && !row[4].toLowerCase().includes(lower)) continue;
      if (found.length < SHOWN) found.push(row); else more += 1;
    }
    say(count, `${found.length + more} entries${model.whole ? "" : ` from ${seconds(model.from)} on (move the slider for others)`}${more ? `, only the latest ${SHOWN} are shown` : ""}; newest first`);
    put(list, found.map(([t, number, name, who, sentence]) => h("li", { "data-kind": name }, h("span", { class: "when" }, `${t.toFixed(2)} s`), h("span", { class: "number" }, `#${number}`), h("span", { class: "kind" }, name),
      h("span", {}, who >= 0 && h("b", {}, `${model.workers[who]} `), sentence))));
  }
  return { element, update };
}

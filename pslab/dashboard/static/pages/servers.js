// The servers: what each holds, and how far it has executed the log.

import { h, put, bytes } from "../dom.js";

export function servers() {
  const body = h("tbody"), job = h("dl", { class: "facts-list" });
  const head = h("tr", {}, ["server", "address", "state", "holds", "entries executed", "behind"].map((title) => h("th", { scope: "col" }, title)));
  const table = h("div", { class: "card" }, h("h2", {}, "Servers"), h("div", { class: "scroll" }, h("table", {}, h("thead", {}, head), body)));
  const element = h("section", { class: "page", "aria-label": "Servers" }, h("div", { class: "card" }, h("h2", {}, "The job"), job), table);
  let key = "";

  function update({ model, clock, told, about }) {
    const found = clock.live ? (model.status?.servers ?? []).map((server) => ({ index: server.task_index, ...server })) : model.servers ?? [];
    const log = Math.max(0, ...found.map((server) => server.executed ?? 0));
    const now = JSON.stringify([found, model.job, told.limited, told.unexplained]);
    if (now === key) return;
    key = now;
    put(body, found.map((server) => h("tr", { "data-state": server.state }, h("td", {}, String(server.index)), h("td", {}, server.address),
      h("td", {}, h("span", { class: "state" }, server.state)), h("td", {}, bytes(server.bytes)), h("td", {}, server.executed === null || server.executed === undefined ? "–" : server.executed.toLocaleString("en")),
      h("td", {}, server.executed === null || server.executed === undefined ? "–" : String(log - server.executed)))));
    table.hidden = !found.length;
    const rows = [["what", { live: "a live cluster", run: "a run folder", simulated: "a simulated experiment" }[about.kind]], ["job", model.job.name],
      ["policy", config(model.job.policy)], ["optimizer", config(model.job.optimizer)], ["servers", model.job.servers], ["workers at the start", model.job.workers], ["seed", model.job.seed],
      ["explanations", told.unexplained ? `none: ${told.unexplained}` : null], ["the run", told.going ? "goes on, or was killed: it has no summary" : null]];
    put(job, rows.filter(([, value]) => value !== undefined && value !== null).map(([term, value]) => [h("dt", {}, term), h("dd", {}, String(value))]));
  }
  return { element, update };
}

function config(found) {
  if (!found) return undefined;
  const knobs = Object.entries(found).filter(([key]) => key !== "name").map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return knobs.length ? `${found.name}: ${knobs.join(", ")}` : found.name;
}

// The job, its contributions, and its servers: what each holds, and how far it has executed the log.

import { h, put, say, bytes, number } from "../dom.js";

export function servers() {
  const body = h("tbody"), job = h("dl", { class: "facts-list" }), fates = h("dl", { class: "facts-list", id: "fates" });
  const titles = ["server", "address", "state", "holds", "memory", "entries executed", "behind"], total = h("p", { class: "dim", role: "status" });
  const largest = h("dl", { class: "facts-list", id: "memory" }), held = h("div", { class: "card" }, h("h2", {}, "Memory by holder"), largest);
  const head = h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)));
  const row = (state, cells) => h("tr", { "data-state": state }, cells.map((cell, place) => h("td", { "data-title": titles[place] }, cell)));
  const count = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en");
  const table = h("div", { class: "card" }, h("h2", {}, "Servers"), h("div", { class: "scroll" }, h("table", { class: "stacked" }, h("thead", {}, head), body)), total);
  const rowsHead = h("tr"), rowsBody = h("tbody"), hot = h("p", { class: "dim", role: "status", id: "hot-rows" });
  const sparse = h("div", { class: "card", id: "tables", hidden: true }, h("h2", {}, "Sparse tables"), h("div", { class: "scroll" }, h("table", { class: "stacked" }, h("thead", {}, rowsHead), rowsBody)), hot);
  const changing = change();
  const element = h("section", { class: "page", "aria-label": "Servers" },
    h("div", { class: "columns" }, h("div", { class: "card" }, h("h2", {}, "The job"), job), h("div", { class: "card" }, h("h2", {}, "Contributions"), fates)), changing.element, table, sparse, held);
  let key = "";

  function update({ model, clock, info, about }) {
    const found = clock.live ? (model.status?.servers ?? []).map((server) => ({ index: server.task_index, ...server })) : model.servers ?? [];
    changing.offer(about.policies);
    const copies = Boolean(clock.live && model.status?.replicas);
    const log = Math.max(0, ...found.map((server) => server.executed ?? 0));
    const status = clock.live ? model.status : null, at = status ? null : model.figures(clock.t);
    // Without values that change with each frame, so that the page is redrawn only if something else changes.
    const now = JSON.stringify([found, model.job, info.limited, info.unexplained, info.going, info.entries, status && { ...status, seconds: 0, workers: 0 }, at]);
    if (now === key) return;
    key = now;
    put(body, found.map((server) => row(server.state, [String(server.index), server.address, h("span", { class: "state" }, server.state), bytes(server.bytes), memory(server.memory),
      // Of servers with replicas the one that leads knows what is executed where a part is served, and how far copies are behind.
      ...(copies ? [count(server.executed || null), ["in sync", "learns"].includes(server.state) ? count(server.lag) : "–"]
        : [count(server.executed), server.executed === null || server.executed === undefined ? "–" : String(log - server.executed)])])));
    say(total, `Together ${bytes(found.reduce((sum, server) => sum + (server.bytes ?? 0), 0))}: the weights and what the optimizer keeps.`);
    table.hidden = !found.length;
    const parts = found.flatMap((server) => memoryParts(server, found.length > 1));
    put(largest, parts.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
    held.hidden = !parts.length;
    const tables = status?.tables ?? { titles: [], rows: [], hot: [] };
    put(rowsHead, tables.titles.map((title) => h("th", { scope: "col" }, title)));
    put(rowsBody, tables.rows.map((cells) => h("tr", {}, cells.map((cell, place) => h("td", { "data-title": tables.titles[place] }, cell)))));
    say(hot, tables.hot.join("; "));
    sparse.hidden = !tables.rows.length;
    const figures = status ? [["committed", count(status.committed)], ["applied", count(status.applied)], ["dropped", count(status.dropped)], ["pending", count(status.pending)],
      ["samples", count(status.samples)], ["staleness", `mean ${number(status.mean_staleness)}, at most ${status.max_staleness}`], ["loss", number(status.loss)]]
      : [["applied", count(at.applied)], ["dropped", count(at.dropped)], ["samples", count(at.samples)], ["mean staleness", number(at.staleness)], ["loss", number(at.loss)]];
    put(fates, figures.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
    const rows = [["what", { live: "a live cluster", run: "a run folder", simulated: "a simulated experiment" }[about.kind]], ["job", model.job.name],
      ["policy", config(model.job.policy)], ["optimizer", config(model.job.optimizer)], ["servers", model.job.servers], ["workers at the start", model.job.workers], ["seed", model.job.seed],
      ["phase", status?.phase], ["change of the policy", status?.change || null], ["note", status?.note || null], ["progress", far(status?.progress)], ["workers not listed", status?.unlisted || null], ["log entries", info.entries?.toLocaleString("en")], ["explanations", info.unexplained ? `none: ${info.unexplained}` : null], ["the run", info.going ? "running, or killed: it has no summary. This page polls for new entries" : null]];
    put(job, rows.filter(([, value]) => value !== undefined && value !== null).map(([term, value]) => [h("dt", {}, term), h("dd", {}, String(value))]));
  }
  return { element, update };
}

/** A form that changes the policy, where the page may. */
function change() {
  const name = h("select", { "aria-label": "policy", id: "change-to" }), effect = h("p", { class: "dim", role: "status", id: "change-effect" });
  const knobs = h("input", { "aria-label": "knobs", id: "change-knobs", placeholder: "max_staleness=2 aggregate=1", maxlength: "1000" });
  const rate = h("input", { "aria-label": "factor of the learning rate", id: "change-rate", type: "number", min: "0", step: "any", placeholder: "rate × 1" });
  const why = h("input", { "aria-label": "reason", id: "change-why", placeholder: "why", maxlength: "500" });
  const button = h("button", { type: "button", id: "change-policy", onclick: send }, "Change");
  const element = h("div", { class: "card", hidden: true }, h("h2", {}, "Change the policy"), h("p", {}, name, " ", knobs, " ", rate, " ", why, " ", button), effect);

  async function send() {
    button.disabled = true;
    const set = knobs.value.trim().split(/\s+/).filter(Boolean).map((each) => `policy.${each}`);
    try {
      const answer = await fetch("/api/policy", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ to: name.value, set, why: why.value, rate: Number(rate.value) }) });
      say(effect, answer.ok ? (await answer.json()).effect : await answer.text());
    } catch (error) { say(effect, error.message); }
    button.disabled = false;
  }

  function offer(policies) {
    if (!policies || !element.hidden) return;
    put(name, [h("option", { value: "" }, "the present policy"), policies.map((each) => h("option", { value: each }, each))]);
    element.hidden = false;
  }
  return { element, offer };
}

function far(progress) {
  if (!progress) return null;
  return `${progress.epochs ? `epoch ${progress.epoch} of ${progress.epochs}, ` : ""}${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")} ${progress.unit}`;
}

function memory(found) {
  return found?.limit ? `${bytes(found.total)} of ${bytes(found.limit)}` : "–";
}

// Holder "" is the model, "*" are peers that are not members.
function memoryParts(server, several) {
  const of = (member) => member === "" ? "" : member === "*" ? "strangers’ " : `${member}’s `;
  const where = several ? `server ${server.index}: ` : "";
  const parts = (server.memory?.parts ?? []).map((part) => [`${where}${of(part.member)}${part.kind}`, bytes(part.bytes)]);
  return server.memory?.rest ? [...parts, [`${where}others`, bytes(server.memory.rest)]] : parts;
}

function config(found) {
  if (!found) return undefined;
  const knobs = Object.entries(found).filter(([key]) => key !== "name").map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return knobs.length ? `${found.name}: ${knobs.join(", ")}` : found.name;
}

// Sources of the page's model: a live cluster's event stream, a run folder, a simulation.

import { Model } from "./model.js";

export async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** The model of a log: its newest entries in detail, and curves and counts of what was before. */
export function modelOf({ workers, job, past, recent }) {
  const model = new Model();
  model.add({ workers, job, past, tickets: past.tickets, marks: past.marks });
  for (const batch of recent) model.add(batch);
  model.begin = past.seconds;
  return model;
}

/** Follow server-sent events: call `receive(model, message)` after each. The browser reconnects by itself. */
export function follow(receive) {
  const events = new EventSource("/api/events");
  let model = new Model();
  events.addEventListener("whole", (event) => {
    const whole = JSON.parse(event.data);
    model = modelOf(whole);
    model.status = whole.status;
    receive(model, { ...whole, anew: true });
  });
  events.addEventListener("frame", (event) => {
    const frame = JSON.parse(event.data);
    model.add(frame);
    model.forget(frame.now - 180);
    receive(model, frame);
  });
  events.addEventListener("gone", (event) => receive(model, { gone: JSON.parse(event.data).reason }));
  events.addEventListener("error", () =>
    receive(model, { gone: "ps-lab dashboard does not answer. Is it still running?", broken: true }),
  );
  return events;
}

/** Run a simulation of {settings}. Throws the server's message if it cannot be simulated. */
export async function play(asked) {
  const info = await ask(`/api/play?play=${encodeURIComponent(JSON.stringify(asked))}`);
  if (info.error) throw new Error(info.error);
  const model = new Model();
  model.add(info);
  return [model, info];
}

// Where the page's model comes from: a live cluster's stream, a run folder, a simulation.

import { Model } from "./model.js";

export async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** Server-sent events: `told(model, message)` after each. The browser connects again by itself. */
export function follow(told) {
  const events = new EventSource("/api/events");
  let model = new Model();
  events.addEventListener("whole", (event) => {
    const whole = JSON.parse(event.data);
    model = new Model();
    model.add({ workers: whole.workers, job: whole.job, past: whole.past });
    for (const batch of whole.recent) model.add(batch);
    model.status = whole.status;
    told(model, { ...whole, anew: true });
  });
  events.addEventListener("frame", (event) => {
    const frame = JSON.parse(event.data);
    model.add(frame);
    model.forget(frame.now - 180);
    told(model, frame);
  });
  events.addEventListener("gone", (event) => told(model, { gone: JSON.parse(event.data).reason }));
  events.addEventListener("error", () => told(model, { gone: "ps-lab dashboard does not answer; is it still running?", broken: true }));
  return events;
}

/** A simulation: `asked` is {settings, at, changes}. Throws where it cannot be played, with the server's sentence. */
export async function play(asked) {
  const told = await ask(`/api/play?play=${encodeURIComponent(JSON.stringify(asked))}`);
  if (told.error) throw new Error(told.error);
  const model = new Model();
  model.add(told);
  return [model, told];
}

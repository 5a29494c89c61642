// What the runs of a play are called: by the policy, and by what differs between them.

const WORDS = {
  "cluster.workers": (n) => `${n} worker${n === 1 ? "" : "s"}`,
  "optimizer.learning_rate": (rate) => `learning rate ${rate}`,
  "links.latency": (latency) => `latency ${latency} s`,
  "faults.crashes": (crashes) => `${crashes.length} crash${crashes.length === 1 ? "" : "es"}`,
};
// What holds where a key is not set.
const USUAL = { "optimizer.momentum": 0, "links.latency": 0, "faults.crashes": [] };
// A run is as long as it is; its name need not say it.
const LENGTH = ["run.versions", "simulation.seconds"];

/** [name of the first, name of the second or null]. `at`: from when on the second is changed, or null. */
export function names(first, second, at) {
  const differ = second ? [...new Set([...Object.keys(first), ...Object.keys(second)])].filter((key) => JSON.stringify(first[key]) !== JSON.stringify(second[key])) : [];
  const same = second && !differ.includes("policy.name");
  const kept = differ.filter((key) => !key.startsWith("policy.") && !LENGTH.includes(key));
  const name = (settings) => {
    const knobs = Object.keys(settings).filter((key) => key.startsWith("policy.") && key !== "policy.name" && (!same || differ.includes(key)));
    return [settings["policy.name"] ?? "sync", ...knobs.map((key) => `${key.slice(7)} ${settings[key]}`), ...kept.map((key) => word(key, settings[key] ?? USUAL[key]))].join(", ");
  };
  return [name(first), second ? `${name(second)}${at === null ? "" : `, from ${at} s on`}` : null];
}

function word(key, value) {
  const slow = /^simulation\.factors\.(\d+)$/.exec(key);
  if (slow) return value === undefined || value === 1 ? `w${slow[1]} as fast as the others` : `w${slow[1]} ${value} times as slow`;
  const last = key.split(".").at(-1).replaceAll("_", " ");
  return value === undefined ? `usual ${last}` : WORDS[key]?.(value) ?? `${last} ${value}`;
}

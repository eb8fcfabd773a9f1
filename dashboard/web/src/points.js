// The curves' data: fetched once, then extended by events. Columns by name, in ascending time.

import { at } from "./address.js";
import { on } from "./live.js";

const MAX_POINTS = 1000;
/** Number of points fetched first: five kilobytes, about one point for every seven pixels. */
const FIRST_POINTS = 180;
/** A peer above this loss diverged or lies; drawing the value would flatten all honest curves. */
const MAX_PLAUSIBLE_LOSS = 100;

const watchers = new Set();
let data = null;
let isLoading = false;

function read({ names, columns }) {
  const byName = Object.fromEntries(names.map((name, index) => [name, columns[index]]));
  for (const name of ["validation_loss", "train_loss"]) {
    byName[name] = (byName[name] ?? []).map((loss) =>
      loss === null || Math.abs(loss) > MAX_PLAUSIBLE_LOSS ? null : loss,
    );
  }
  return byName;
}

function append(more) {
  const times = data.columns.time;
  more.time.forEach((time, index) => {
    const last = times.length - 1;
    if (last >= 0 && time < times[last]) return;
    const place = last >= 0 && time === times[last] ? last : last + 1;
    for (const name of Object.keys(data.columns)) data.columns[name][place] = more[name]?.[index] ?? null;
  });
  // Twice as many as needed: remove every second point, but keep the newest.
  if (times.length > 2 * MAX_POINTS) {
    for (const name of Object.keys(data.columns)) {
      data.columns[name] = data.columns[name].filter((_, index) => (times.length - 1 - index) % 2 === 0);
    }
  }
}

async function load() {
  if (isLoading) return;
  isLoading = true;
  try {
    const response = await fetch(at(`/api/v1/points?x=time&digits=4&max=${FIRST_POINTS}`));
    if (!response.ok) return;
    const answer = await response.json();
    data = { columns: read(answer), marks: answer.marks };
    for (const watcher of watchers) watcher(data);
  } catch {
    // Without a network, the tables of the server stay, and the next event tries again.
  } finally {
    isLoading = false;
  }
}

/** Call `watcher` with {columns, marks} now if they are loaded, and whenever they change. */
export function watchPoints(watcher) {
  watchers.add(watcher);
  if (data) watcher(data);
  return () => watchers.delete(watcher);
}

/** (xs, ...columns) along `axis`, strictly ascending; of points at the same place, only the newest is kept. */
export function along(columns, axis, names) {
  const kept = [];
  columns[axis].forEach((x, index) => {
    if (x === null) return;
    const last = kept.length ? columns[axis][kept[kept.length - 1]] : -Infinity;
    if (x > last) kept.push(index);
    else if (x === last) kept[kept.length - 1] = index;
  });
  return [axis, ...names].map((name) => kept.map((index) => columns[name][index]));
}

export function startPoints() {
  on("points", (event) => {
    if (!data || event.reset) return load();
    append(read(event));
    data = { ...data };
    for (const watcher of watchers) watcher(data);
  });
  // The marks include the newest note and sample.
  on("section:notes", load);
  on("section:writes", load);
  load();
}

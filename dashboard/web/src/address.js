// What the address says: tab, search, sorting, axis. A link to it shows the same, and so does the way back.

const { dataset } = document.body;
const listeners = new Set();

/** An address of this run's page: a server of several runs has each of them in a place of its own. */
const base = dataset.base ?? "";
export const at = (path) => (path.startsWith(`${base}/`) ? path : `${base}${path}`);

/** The value of `name`, or `usual` where the address says nothing. */
export const told = (name, usual = "") => new URLSearchParams(location.search).get(name) ?? usual;

/** Call `listener` when the address has changed, by a link, a choice or the way back: true for the last. */
export function onAddress(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/**
 * Put `changes` into the address; null takes a name out of it.
 *
 * @param {{isStep?: boolean}} how - a step is one that the way back undoes; what is typed is none.
 */
export function tellAddress(changes, { isStep = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(`${location.pathname}${text && `?${text}`}`, isStep);
}

/** Go to `address`, which is one of this page. */
export function go(address, isStep = true) {
  const before = `${location.pathname}${location.search}${location.hash}`;
  if (address === before) return;
  if (isStep) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  for (const listener of listeners) listener(false);
}

window.addEventListener("popstate", () => listeners.forEach((listener) => listener(true)));

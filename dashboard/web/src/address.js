// The page's state in its address: tab, search, sorting, axis. Links and the browser's back button restore it.

const { dataset } = document.body;
const listeners = new Set();

/** The address of a path of this run's page; a server of several runs has a different base path for each run. */
const base = dataset.base ?? "";
export const at = (path) => (path.startsWith(`${base}/`) ? path : `${base}${path}`);

/** The value of `name` in the address, or `usual` without one. */
export const told = (name, usual = "") => new URLSearchParams(location.search).get(name) ?? usual;

/** Call `listener` when the address has changed by a link, a choice or the back button (argument: true). */
export function onAddress(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/**
 * Apply `changes` to the address; null removes a name.
 *
 * @param {{isStep?: boolean}} how - whether the back button undoes this change; typing is not a step.
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

/** Go to `address`, an address of this page. */
export function go(address, isStep = true) {
  const before = `${location.pathname}${location.search}${location.hash}`;
  if (address === before) return;
  if (isStep) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  for (const listener of listeners) listener(false);
}

window.addEventListener("popstate", () => listeners.forEach((listener) => listener(true)));

// Shows one tab of the page, which the address selects. Without scripts, each tab is a separate page.

import { go, onAddress, told } from "./address.js";
import { watchTab } from "./live.js";

const OVERVIEW = "overview";
let shown = "";
let place = "";
/** The scroll position of each tab when it was left, which the back button restores. */
const depths = new Map();

const tabAt = (key) => document.querySelector(`[data-tab="${CSS.escape(key)}"]`);

function show(isBack = false) {
  const depth = window.scrollY;
  const hash = decodeURIComponent(location.hash.slice(1));
  const target = hash ? document.getElementById(hash) : null;
  // Older links refer to a tab, or an element in it, only by the hash.
  const key = target?.closest("[data-tab]")?.dataset.tab ?? told("tab", OVERVIEW);
  const tab = tabAt(key) ?? tabAt(OVERVIEW);
  for (const each of document.querySelectorAll("[data-tab]")) each.hidden = each !== tab;
  for (const link of document.querySelectorAll("nav a[href*='?tab=']")) {
    const isHere = !link.hash && new URL(link.href).searchParams.get("tab") === tab.dataset.tab;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  watchTab(tab.dataset.tab);
  const isOther = shown !== "" && shown !== tab.dataset.tab;
  if (isOther) depths.set(shown, depth);
  shown = tab.dataset.tab;
  if (target && target !== tab && hash !== place) target.scrollIntoView();
  else if (isOther) window.scrollTo(0, (isBack && depths.get(shown)) || 0);
  place = hash;
}

/** A link to a tab of this page switches the tab without loading the page. */
function follow(event) {
  if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const link = event.target.closest?.("a[href]");
  if (!link || link.origin !== location.origin || link.pathname !== location.pathname || link.target) return;
  const asked = new URL(link.href).searchParams;
  if (!asked.has("tab")) return;
  event.preventDefault();
  place = "";
  // The choices of a chart persist when the tab changes.
  for (const name of ["along", "log", "you"]) if (told(name) && !asked.has(name)) asked.set(name, told(name));
  go(`${location.pathname}?${asked}${link.hash}`);
  show();
}

export function startTabs() {
  if (!tabAt(OVERVIEW)) return;
  document.addEventListener("click", follow);
  window.addEventListener("hashchange", () => show());
  onAddress(show);
  show();
}

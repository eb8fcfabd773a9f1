// One part of the page at a time; the address says which. Without scripts the parts follow one another.

import { watchTab } from "./live.js";

const OVERVIEW = "overview";

function tabOf(id) {
  return (id && document.getElementById(id)?.closest(".tab")) || document.getElementById(OVERVIEW);
}

function show() {
  const id = decodeURIComponent(location.hash.slice(1));
  const shown = tabOf(id);
  if (!shown) return;
  for (const tab of document.querySelectorAll(".tab")) tab.hidden = tab !== shown;
  for (const link of document.querySelectorAll("nav a[href^='#']")) {
    if (link.getAttribute("href") === `#${shown.id}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  watchTab(shown.id.replace("-tab", ""));
  const place = id && document.getElementById(id);
  if (place === shown) window.scrollTo(0, 0);
  else if (place) place.scrollIntoView();
}

export function startTabs() {
  window.addEventListener("hashchange", show);
  show();
}

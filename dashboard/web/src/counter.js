// The tokens count up to what commits confirmed, by the last known speed, and never beyond it: a bar beside them says
// the same.

import { on } from "./live.js";

const TICK_MILLISECONDS = 100;
/** In this time it makes up what commits confirmed beyond it. */
const CATCH_UP_SECONDS = 8;
const MAX_STEP_SECONDS = 1;

let shown = 0;
let confirmed = 0;
let speed = 0;

/** What is shown `seconds` after `shown`. Pure. */
export function counted({ shown, confirmed, speed }, seconds) {
  const rate = Math.max(speed, (confirmed - shown) / CATCH_UP_SECONDS);
  return Math.min(confirmed, shown + rate * seconds);
}

const text = (tokens) => Math.floor(tokens).toLocaleString();

function show(root) {
  for (const place of root.querySelectorAll(".counter")) place.textContent = text(shown);
}

function read(root) {
  const place = root.querySelector(".counter");
  if (!place) return;
  const before = confirmed;
  confirmed = Number(place.dataset.tokens);
  speed = Number(place.dataset.speed);
  // The first figure, another line of history, or a page that nobody looked at for long.
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches || speed === 0;
  const isFar = shown > confirmed || confirmed - shown > 60 * speed;
  if (before === 0 || isStill || isFar) shown = confirmed;
  show(root);
}

export function startCounter() {
  on("improve", read);
  let last = performance.now();
  setInterval(() => {
    const now = performance.now();
    const seconds = Math.min((now - last) / 1000, MAX_STEP_SECONDS);
    last = now;
    if (document.hidden || !speed || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    shown = counted({ shown, confirmed, speed }, seconds);
    show(document);
  }, TICK_MILLISECONDS);
}

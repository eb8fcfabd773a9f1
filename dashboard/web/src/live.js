// The stream of server-sent events, which updates sections that the server rendered, and ages.

import { at } from "./address.js";
import { ageText, clockText, countryName } from "./format.js";

const body = document.body;
const listeners = new Map();
/** The server sends something every 15 s at the latest. */
const SILENT_SECONDS = 45;
/** Seconds between two attempts to reach an absent server; doubles each time. */
const FIRST_WAIT_SECONDS = 1;
const LONGEST_WAIT_SECONDS = 30;

let snapshotId = body.dataset.snapshot ?? "";
let clockLead = Number(body.dataset.now) - Date.now() / 1000;
let source = null;
let tab = "";
/** The snapshot of each tab's content; only the visible tab is updated. */
const seen = new Map();
/** Tabs whose sections are loaded; the page came with one of them. */
const whole = new Set([document.querySelector("[data-tab]:not([hidden])")?.dataset.tab]);
let isLost = false;
let heardAt = Date.now();
let triedAt = Date.now();
let waitSeconds = FIRST_WAIT_SECONDS;
let nextTry = null;
/** For a page without a stream: {renew, milliseconds}. */
let asking = null;

const banner = document.createElement("p");
banner.id = "connection";
banner.setAttribute("role", "status");
banner.hidden = true;
body.prepend(banner);

/** Unix seconds by the server's clock. */
const serverNow = () => Date.now() / 1000 + clockLead;

/** Call `listener` with the data of every event called `name`; `section:KEY` for one section's replacement. */
export function on(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

function tell(name, data) {
  for (const listener of listeners.get(name) ?? []) listener(data);
}

function showAges() {
  const now = serverNow();
  for (const span of document.querySelectorAll(".age")) {
    const text = ageText(now - Number(span.dataset.at));
    if (span.textContent !== text) span.textContent = text;
  }
  const words = isLost ? `Connection lost: no data from the server since ${clockText(heardAt)}. The page tries again automatically.` : "";
  if (banner.textContent !== words) banner.textContent = words;
  banner.hidden = !isLost;
  body.classList.toggle("lost", isLost);
}

/** Apply the additions of scripts to new HTML from the server. */
export function improve(root) {
  for (const span of root.querySelectorAll("[data-country]")) span.textContent = countryName(span.dataset.country);
  tell("improve", root);
  showAges();
}

export function replaceSection(key, html) {
  const section = document.getElementById(key);
  if (!section) return;
  const selection = document.getSelection();
  // The reader is copying from this section; its next change comes in a moment.
  if (selection && !selection.isCollapsed && selection.containsNode(section, true)) return;
  const open = [...section.querySelectorAll("details[open]")].map((details) => details.id);
  const active = section.contains(document.activeElement) ? document.activeElement : null;
  const focused = active && { id: active.closest("details")?.id, sort: active.closest("[data-sort]")?.dataset.sort };
  const href = active?.getAttribute("href");
  section.innerHTML = html;
  // The same row may be in the ranking and in the search results.
  const again = (id) => section.querySelector(`[id="${CSS.escape(id)}"]`);
  for (const id of open) again(id)?.setAttribute("open", "");
  improve(section);
  if (!focused) return;
  const next = focused.id
    ? again(focused.id)?.querySelector("summary")
    : focused.sort
      ? section.querySelector(`[data-sort="${focused.sort}"] button`)
      : href && [...section.querySelectorAll("a")].find((link) => link.getAttribute("href") === href);
  next?.focus({ preventScroll: true });
}

function heard() {
  heardAt = Date.now();
  isLost = false;
  waitSeconds = FIRST_WAIT_SECONDS;
}

/** Follow only the sections of the tab `key`. */
export function watchTab(key) {
  if (key === tab) return;
  seen.set(tab, snapshotId);
  snapshotId = seen.get(key) ?? (whole.has(key) ? body.dataset.snapshot : snapshotId);
  tab = key;
  if (!source) return;
  disconnect();
  connect();
}

/** Show that the server is absent, and try again after growing pauses. */
function lost() {
  isLost = true;
  // All viewers lost the server at the same time; random pauses spread their return.
  nextTry = setTimeout(connect, 1000 * waitSeconds * (0.5 + Math.random() / 2));
  waitSeconds = Math.min(2 * waitSeconds, LONGEST_WAIT_SECONDS);
  showAges();
}

async function ask() {
  const isAnswered = await asking.renew();
  clearTimeout(nextTry);
  if (document.hidden) return;
  if (!isAnswered) return lost();
  heard();
  showAges();
  nextTry = setTimeout(connect, asking.milliseconds);
}

function connect() {
  if (source || document.hidden) return;
  if (asking) return void ask();
  if (!body.dataset.stream) return;
  if (!isLost) heardAt = Date.now();
  triedAt = Date.now();
  const query = new URLSearchParams({ after: snapshotId, ...(tab && { tab }), ...(!whole.has(tab) && tab && { whole: 1 }) });
  source = new EventSource(`${at(body.dataset.stream)}?${query}`);
  source.addEventListener("section", (event) => {
    const { section, html } = JSON.parse(event.data);
    if (event.lastEventId) snapshotId = event.lastEventId;
    whole.add(tab);
    heard();
    replaceSection(section, html);
    tell(`section:${section}`, html);
  });
  source.addEventListener("points", (event) => {
    if (event.lastEventId) snapshotId = event.lastEventId;
    heard();
    tell("points", JSON.parse(event.data));
  });
  source.addEventListener("tick", (event) => {
    clockLead = Number(event.data) - Date.now() / 1000;
    heard();
    showAges();
  });
  // The browser itself would reconnect every second, but never after an HTTP error.
  source.addEventListener("error", () => {
    disconnect();
    lost();
  });
}

function disconnect() {
  clearTimeout(nextTry);
  source?.close();
  source = null;
}

/** Connect at once, because the page is visible again or the network is back. */
function connectAtOnce() {
  if (isLost) disconnect();
  waitSeconds = FIRST_WAIT_SECONDS;
  connect();
}

/** `withoutStream`: updates of a page without a stream; `renew` returns whether the server answered. */
export function startLive(withoutStream = null) {
  asking = withoutStream;
  // Browsers allow six connections to one server, so hidden tabs must not hold one.
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connectAtOnce()));
  window.addEventListener("pagehide", disconnect);
  // Only for a page restored from the browser's memory; a new page connects below.
  window.addEventListener("pageshow", (event) => event.persisted && connectAtOnce());
  window.addEventListener("online", connectAtOnce);
  setInterval(() => {
    if (source && Date.now() - Math.max(heardAt, triedAt) > SILENT_SECONDS * 1000) {
      // A proxy may keep a dead stream open forever.
      isLost = true;
      disconnect();
      connect();
    }
    showAges();
  }, 1000);
  if (asking) nextTry = setTimeout(connect, asking.milliseconds);
  else connect();
}

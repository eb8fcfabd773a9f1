// Makes the page live. Without this script, the page is complete and reloads every few seconds.

import { at } from "./address.js";
import { startCharts } from "./charts.js";
import { startJoin } from "./join.js";
import { improve, on, replaceSection, startLive } from "./live.js";
import { startPeople } from "./people.js";
import { startPoints } from "./points.js";
import { startSamples } from "./samples.js";
import { startTabs } from "./tabs.js";

const REFRESH_MILLISECONDS = 3000;
const INDEX_MILLISECONDS = 10_000;
const ANSWER_MILLISECONDS = 15_000;
const COPIED_MILLISECONDS = 2000;

function addCopying(root) {
  for (const box of root.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      // Only pages over HTTPS or from this machine may write to the clipboard.
      const isDone = await navigator.clipboard?.writeText(box.querySelector("code").textContent).then(
        () => true,
        () => false,
      );
      button.textContent = isDone ? "Copied" : "Select and copy by hand";
      setTimeout(() => (button.textContent = "Copy"), COPIED_MILLISECONDS);
    });
    if (navigator.clipboard) box.append(button);
  }
}

/** Fetch the page again and replace the parts that differ; return whether the server answered. */
async function renew() {
  try {
    const signal = AbortSignal.timeout(ANSWER_MILLISECONDS);
    const response = await fetch(location.href, { headers: { Accept: "text/html" }, signal });
    if (!response.ok) return false;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const section of page.querySelectorAll("[data-live]")) {
      if (!document.getElementById(section.id)) continue;
      replaceSection(section.id, section.innerHTML);
    }
    return true;
  } catch {
    return false;
  }
}

/** Renew a contributor's page when the ranking has changed. */
function followOwnPage() {
  let waiting = null;
  on("section:contributors", () => {
    waiting ??= setTimeout(() => {
      waiting = null;
      renew();
    }, REFRESH_MILLISECONDS);
  });
}

async function startOwnCurve(id) {
  const response = await fetch(at(`/api/v1/contributors/${encodeURIComponent(id)}`)).catch(() => null);
  if (!response?.ok) return;
  const { curve } = await response.json();
  const columns = { time: [], tokens_witnessed: [], tokens_reported: [] };
  for (const point of curve) {
    columns.time.push(point.at);
    columns.tokens_witnessed.push(point.tokens_witnessed);
    columns.tokens_reported.push(point.tokens_reported);
  }
  startCharts((watcher) => {
    watcher({ columns, marks: [] });
    return () => {};
  });
}

startPeople();
on("improve", addCopying);
startSamples();
startJoin();
improve(document);
if (document.body.dataset.page === "contributor") {
  followOwnPage();
  startOwnCurve(document.body.dataset.id);
} else if (document.body.dataset.page !== "index") {
  startTabs();
  startCharts();
  startPoints();
}
startLive(document.body.dataset.page === "index" ? { renew, milliseconds: INDEX_MILLISECONDS } : null);

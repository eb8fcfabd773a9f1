// Search and sort among all contributors. While neither is used the server's own table stays, live.

import { html, render } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { countryName, countText, daysText, plural, secondsText, shareText, wholeText } from "./format.js";
import { on, showAges } from "./live.js";

/** As many as the server shows. */
const PAGE = 25;
const MAX_ROWS = 500;
const TYPING_MILLISECONDS = 200;
const REFRESH_MILLISECONDS = 3000;
const MAX_SEARCH_LENGTH = 80;

let chooseSort = () => {};
let showMore = () => {};

function Tools({ found, table }) {
  const [search, setSearch] = useState("");
  const [sort, setSort] = useState("tokens");
  const [limit, setLimit] = useState(PAGE);
  const [answer, setAnswer] = useState(null);
  const [problem, setProblem] = useState("");
  const asked = useRef(0);
  const isAsking = search !== "" || sort !== "tokens" || limit > PAGE;
  showMore = () => setLimit(MAX_ROWS);
  chooseSort = (key) => {
    setSort(key);
    setLimit(PAGE);
  };

  const ask = async () => {
    const number = (asked.current += 1);
    try {
      const query = new URLSearchParams({ sort, search, limit: String(limit) });
      const response = await fetch(`/api/v1/contributors?${query}`);
      const content = await response.json();
      if (number !== asked.current) return;
      setProblem(response.ok ? "" : (content.detail ?? content.title));
      if (response.ok) setAnswer(content);
    } catch {
      if (number === asked.current) setProblem("no answer at the moment; the list is the last that was heard");
    }
  };

  useEffect(() => {
    if (!isAsking) {
      asked.current += 1;
      setAnswer(null);
      setProblem("");
      return undefined;
    }
    const waiting = setTimeout(ask, TYPING_MILLISECONDS);
    return () => clearTimeout(waiting);
  }, [search, sort, limit]);

  const latest = useRef(ask);
  latest.current = isAsking ? ask : () => {};
  useEffect(() => {
    let waiting = null;
    on("section:contributors", () => {
      waiting ??= setTimeout(() => {
        waiting = null;
        latest.current();
      }, REFRESH_MILLISECONDS);
    });
  }, []);

  const isFound = isAsking && answer !== null;
  useEffect(() => {
    table.hidden = isFound;
    found.hidden = !isFound;
    render(isFound ? html`<${Found} answer=${answer} sort=${sort} onMore=${showMore} />` : null, found);
    showAges();
  }, [answer, isFound, sort]);

  const said = problem || (isFound ? `${countText(answer.num_found)} of ${plural(answer.num_contributors, "contributor")}` : "");
  return html`<div class="tools">
    <input
      class="search"
      type="search"
      placeholder="Find a name, key or device"
      aria-label="Find contributors by name, key or device"
      maxlength=${MAX_SEARCH_LENGTH}
      value=${search}
      onInput=${(event) => {
        setSearch(event.currentTarget.value.trim());
        setLimit(PAGE);
      }}
    />
    ${isAsking &&
    html`<button
      type="button"
      onClick=${() => {
        setSearch("");
        setSort("tokens");
        setLimit(PAGE);
      }}
    >
      back to the ranking
    </button>`}
    <span class="quiet" role="status">${said}</span>
  </div>`;
}

function Head({ label, name, sort, isNumber = true }) {
  const direction = name === "name" ? "ascending" : "descending";
  return html`<th scope="col" class=${isNumber ? "number" : ""} aria-sort=${name === sort ? direction : undefined}>
    <button type="button" onClick=${() => chooseSort(name)}>${label}</button>
  </th>`;
}

function Found({ answer, sort, onMore }) {
  if (!answer.contributors.length) return html`<p class="empty">Nobody is called that. A part of a name is enough.</p>`;
  return html`<table class="stack people">
      <thead>
        <tr>
          <th scope="col" class="rank"><abbr title="Rank">#</abbr></th>
          <${Head} label="Contributor" name="name" sort=${sort} isNumber=${false} />
          <${Head} label="Tokens" name="tokens" sort=${sort} />
          <th scope="col" class="number">Share</th>
          <${Head} label="Rounds" name="rounds" sort=${sort} />
          <th scope="col" class="number">Uptime</th>
          <${Head} label="Streak" name="streak" sort=${sort} />
          <${Head} label="Last round" name="last" sort=${sort} />
        </tr>
      </thead>
      <tbody>
        ${answer.contributors.map((row) => html`<${Row} key=${row.contributor_id} row=${row} />`)}
      </tbody>
    </table>
    ${answer.next_offset !== null &&
    answer.contributors.length < MAX_ROWS &&
    html`<div class="tools"><button type="button" onClick=${onMore}>show more</button></div>`}`;
}

function Row({ row }) {
  const uptime = row.machines.reduce((sum, machine) => sum + machine.uptime_seconds, 0);
  const isMore = row.tokens_reported > row.tokens_witnessed * 1.005 + 0.5;
  return html`<tr class=${row.is_here ? "here" : "left"}>
    <td class="rank" data-label="Rank">${row.rank || "–"}</td>
    <th scope="row" class="who">
      <span class=${`lamp ${row.is_here ? "on" : "off"}`}></span>
      <span class="unseen">${row.is_here ? "here now" : "not here"}</span>${" "}
      <a class="person" href=${`/c/${encodeURIComponent(row.contributor_id)}`}>
        ${row.name ? html`<bdi class="name">${row.name}</bdi>` : html`<span class="name quiet">anonymous</span>`}
        ${" "}<code title=${row.contributor_id}>${row.contributor_id.slice(-8)}</code>
      </a>
      ${row.country && html`<span class="country">${countryName(row.country)}</span>`}
      <${Machines} machines=${row.machines} />
    </th>
    <td data-label="Tokens" class="number">
      ${wholeText(row.tokens_witnessed)}${isMore && html`<span class="quiet">${wholeText(row.tokens_reported)} reported</span>`}
    </td>
    <td data-label="Share" class="number">
      ${shareText(row.share)}
      <svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
        <rect class="track" width="100" height="4" />
        <rect width=${100 * Math.min(1, row.share)} height="4" />
      </svg>
    </td>
    <td data-label="Rounds" class="number">
      ${countText(row.rounds)}${row.rounds_missed > 0 && html`<span class="quiet">${countText(row.rounds_missed)} missed</span>`}
    </td>
    <td data-label="Uptime" class="number">${uptime >= 1 ? secondsText(uptime) : "–"}</td>
    <td data-label="Streak" class="number">${daysText(row.streak_days)}</td>
    <td data-label="Last" class="number"><span class="age" data-at=${row.last_at}></span></td>
  </tr>`;
}

function Machines({ machines }) {
  const device = (machine) => machine.device || "device unknown";
  if (machines.length < 2) {
    return machines.map((machine) => html`<span class="quiet"><bdi>${device(machine)}</bdi></span>`);
  }
  return html`<details>
    <summary>${plural(machines.length, "machine")}</summary>
    <ul>
      ${machines.map(
        (machine) => html`<li key=${machine.peer_id}>
          <bdi>${device(machine)}</bdi> <code title=${machine.peer_id}>${machine.peer_id.slice(-8)}</code> ·
          ${` ${machine.condition} · ${wholeText(machine.tokens_witnessed)} tokens · ${plural(machine.rounds, "round")}`}
        </li>`,
      )}
    </ul>
  </details>`;
}

/** Make the heads of the server's table into buttons, and the line about further rows too. */
function improveHeads(root) {
  for (const head of root.querySelectorAll("th[data-sort]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => chooseSort(head.dataset.sort));
    head.replaceChildren(button);
  }
  for (const line of root.querySelectorAll(".more")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button";
    button.textContent = "show more";
    button.addEventListener("click", () => showMore());
    line.append(" ", button);
  }
}

export function startPeople() {
  const tools = document.getElementById("people-tools");
  const found = document.getElementById("people-found");
  const table = document.getElementById("contributors");
  if (!tools || !found || !table) return;
  on("improve", improveHeads);
  render(html`<${Tools} found=${found} table=${table} />`, tools);
}

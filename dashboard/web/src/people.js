// Search and sorting of all contributors. If neither is used, the server's own live table stays.

import { html, render } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { at, onAddress, tellAddress, told } from "./address.js";
import { on, replaceSection } from "./live.js";

/** Number of rows that the server shows. */
const PAGE = 25;
const MAX_ROWS = 75;
const TYPING_MILLISECONDS = 200;
const REFRESH_MILLISECONDS = 3000;
const MAX_SEARCH_LENGTH = 80;

const USUAL = "tokens";
const limitTold = () => Math.min(MAX_ROWS, Math.max(PAGE, Number(told("limit")) || PAGE));
const offsetTold = () => Math.max(0, Number(told("offset")) || 0);

function Tools({ found, table }) {
  const [search, setSearch] = useState(told("search"));
  const [sort, setSort] = useState(told("sort", USUAL));
  const [limit, setLimit] = useState(limitTold());
  const [offset, setOffset] = useState(offsetTold());
  const [answer, setAnswer] = useState(found.hidden ? null : found.innerHTML);
  const [problem, setProblem] = useState("");
  const [said, setSaid] = useState("");
  const asked = useRef(0);
  const isAsking = search !== "" || sort !== USUAL || limit > PAGE || offset > 0;
  useEffect(
    () =>
      onAddress(() => {
        setSearch(told("search"));
        setSort(told("sort", USUAL));
        setLimit(limitTold());
        setOffset(offsetTold());
      }),
    [],
  );

  const ask = async () => {
    const number = (asked.current += 1);
    try {
      const query = new URLSearchParams({ sort, search, limit: String(limit), offset: String(offset) });
      const response = await fetch(at(`/people?${query}`));
      const content = await response.text();
      if (number !== asked.current) return;
      setProblem(response.ok ? "" : content);
      if (response.ok) setAnswer(content);
    } catch {
      if (number === asked.current) setProblem("no answer at the moment; the list may be out of date");
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
  }, [search, sort, limit, offset]);

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

  useEffect(() => {
    found.hidden = answer === null;
    table.hidden = answer !== null;
    replaceSection(found.id, answer ?? "");
    setSaid(found.querySelector("[data-found]")?.dataset.found ?? "");
  }, [answer]);

  return html`<div class="tools">
    <input
      class="search"
      type="search"
      placeholder="Find a name, key or device"
      aria-label="Find contributors by name, key or device"
      maxlength=${MAX_SEARCH_LENGTH}
      value=${search}
      onInput=${(event) => tellAddress({ search: event.currentTarget.value.trim(), limit: null, offset: null })}
    />
    ${own() &&
    search !== own() &&
    html`<button type="button" onClick=${() => tellAddress({ search: own(), limit: null, offset: null }, { isStep: true })}>
      find me
    </button>`}
    ${isAsking &&
    html`<button
      type="button"
      onClick=${() => tellAddress({ search: null, sort: null, limit: null, offset: null }, { isStep: true })}
    >
      back to the ranking
    </button>`}
    <span class="quiet" role="status">${problem || said}</span>
  </div>`;
}

/** Turn the headings of the server's table into buttons. */
function improveHeads(root) {
  for (const head of root.querySelectorAll("th[data-sort]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    const sort = head.dataset.sort === USUAL ? null : head.dataset.sort;
    button.addEventListener("click", () => tellAddress({ sort, limit: null, offset: null }, { isStep: true }));
    head.replaceChildren(button);
  }
}

/** The visitor's own key, only from the address: a link may contain it, and it is not stored. */
const own = () => (/^[1-9A-Za-z]{40,64}$/.test(told("you")) ? told("you") : "");

/** Mark the visitor's own row. */
function markOwn(root) {
  const row = own() && root.querySelector(`tr code[title="${own()}"]`)?.closest("tr");
  if (!row || row.classList.contains("you")) return;
  row.classList.add("you");
  const mark = document.createElement("span");
  mark.className = "own";
  mark.textContent = "you";
  row.querySelector("a.person")?.after(" ", mark);
}

export function startPeople() {
  const tools = document.getElementById("people-tools");
  const found = document.getElementById("people-found");
  const table = document.getElementById("contributors");
  if (!tools || !found || !table) return;
  on("improve", improveHeads);
  on("improve", markOwn);
  render(html`<${Tools} found=${found} table=${table} />`, tools);
}

// Marks for arrivals, departures, revisions, notes and samples of the model: one small button for each place.

import { html } from "htm/preact";
import { go } from "./address.js";

const NEAR_PIXELS = 26;
const MAX_NAMES = 4;
const WORDS = { join: "joined", leave: "left", revision: "new revision of the run" };
export const MARK_LEGEND = { note: "note of the organiser", join: "a person joined", leave: "a person left", revision: "new revision", sample: "text by the model: open to read" };
const ORDER = ["note", "sample", "revision", "leave", "join"];

/** The events in words: ["Ada joined", "note: raised H to 40"]. */
function sentences(marks) {
  const lines = marks.filter((mark) => mark.kind === "note").map((mark) => `note: ${mark.text}`);
  if (marks.some((mark) => mark.kind === "revision")) lines.push(WORDS.revision);
  for (const kind of ["join", "leave"]) {
    const names = [...new Set(marks.filter((mark) => mark.kind === kind).map((mark) => mark.who || "someone"))];
    const more = names.length - MAX_NAMES;
    const told = names.slice(0, MAX_NAMES).join(", ") + (more > 0 ? ` and ${more} more` : "");
    if (names.length) lines.push(`${told} ${WORDS[kind]}`);
  }
  if (marks.some((mark) => mark.kind === "sample")) lines.push("text by the model: open to read");
  return lines;
}

/** The visible marks, combined if they are close together: [{left, kind, lines, at}], from the left. */
export function groups(plot, marks) {
  const width = plot.bbox.width / devicePixelRatio;
  const placed = marks
    .map((mark) => ({ ...mark, left: plot.valToPos(mark.x, "x") }))
    .filter(({ left }) => left >= 0 && left <= width)
    .sort((one, other) => one.left - other.left);
  const found = [];
  for (const mark of placed) {
    const last = found.at(-1);
    if (last && mark.left - last.left < NEAR_PIXELS) last.marks.push(mark);
    else found.push({ left: mark.left, marks: [mark] });
  }
  return found.map(({ left, marks: near }) => ({
    left,
    kind: ORDER.find((kind) => near.some((mark) => mark.kind === kind)) ?? near[0].kind,
    lines: sentences(near),
    at: near[0].at,
    sampleAt: near.find((mark) => mark.kind === "sample")?.at,
  }));
}

/** Go to the model's texts at the time `at`. */
function read(at) {
  const query = new URLSearchParams(location.search);
  query.set("tab", "model");
  query.set("sample", at);
  go(`${location.pathname}?${query}#samples`);
}

/** Tab focuses one mark; the arrow keys move to the others. */
export function Marks({ found, offset, text, onTell }) {
  const step = (event) => {
    const to = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    event.currentTarget[to]?.focus();
  };
  return html`<div class="marks" role="group" aria-label="Events">
    ${found.map(({ left, kind, lines, at, sampleAt }, place) => {
      const say = () => onTell({ left: left + offset, lines: [text(at), ...lines] });
      return html`<button
        type="button"
        key=${`${at}${kind}`}
        class=${`mark-at ${kind}`}
        tabindex=${place ? -1 : 0}
        style=${{ left: `${left + offset}px` }}
        aria-label=${`${text(at)}: ${lines.join("; ")}`}
        onMouseEnter=${say}
        onFocus=${say}
        onMouseLeave=${() => onTell(null)}
        onBlur=${() => onTell(null)}
        onKeyDown=${step}
        onClick=${() => sampleAt && read(sampleAt)}
      ></button>`;
    })}
  </div>`;
}

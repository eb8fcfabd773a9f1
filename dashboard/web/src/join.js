// The system that the join card shows first: the reader's own, or the reader's choice.

import { on } from "./live.js";

const OWN = /Mac/i.test(navigator.platform) ? "system-mac" : /Win/i.test(navigator.platform) ? "system-windows" : "";
let chosen = OWN;

export function startJoin() {
  document.addEventListener("change", (event) => {
    if (event.target.name === "system") chosen = event.target.id;
  });
  // The element differs after its section was replaced.
  on("improve", (root) => {
    const place = chosen && root.querySelector(`#${chosen}`);
    if (place) place.checked = true;
  });
}

// Which system the box for joining shows first: the reader's own, or what the reader chose.

import { on } from "./live.js";

const OWN = /Mac/i.test(navigator.platform) ? "system-mac" : /Win/i.test(navigator.platform) ? "system-windows" : "";
let chosen = OWN;

export function startJoin() {
  document.addEventListener("change", (event) => {
    if (event.target.name === "system") chosen = event.target.id;
  });
  // It is another element when its section was replaced.
  on("improve", (root) => {
    const place = chosen && root.querySelector(`#${chosen}`);
    if (place) place.checked = true;
  });
}

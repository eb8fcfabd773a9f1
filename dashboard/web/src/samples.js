// A slider through all texts of the model; without scripts, the page lists a few of them.

import { at, onAddress, told } from "./address.js";
import { html, render } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { countText, lossText } from "./format.js";
import { on } from "./live.js";

const sampleTold = () => Number(told("sample")) || null;

/** Time of the sample that the reader chose; null: the newest; undefined: the sample in the address. */
let chosenAt;

const day = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" };

function words(sample) {
  const loss = sample.validation_loss === null ? "" : `, validation loss ${lossText(sample.validation_loss)}`;
  const when = new Date(sample.at * 1000).toLocaleString(undefined, day);
  return `${when}: after ${countText(sample.committed_tokens)} tokens, version ${countText(sample.version)}${loss}`;
}

function Through({ samples }) {
  const last = samples.length - 1;
  const wantedAt = chosenAt === undefined ? sampleTold() : chosenAt;
  const found = wantedAt === null ? -1 : samples.findIndex((sample) => sample.at >= wantedAt);
  const [place, setPlace] = useState(found < 0 ? last : found);
  const sample = samples[place];
  // A mark on the curve leads to a sample.
  useEffect(
    () =>
      onAddress(() => {
        const asked = samples.findIndex((each) => each.at >= sampleTold());
        if (sampleTold() === null || asked < 0) return;
        chosenAt = undefined;
        setPlace(asked);
      }),
    [samples],
  );
  const choose = (event) => {
    const next = Number(event.currentTarget.value);
    chosenAt = next === last ? null : samples[next].at;
    setPlace(next);
  };
  return html`<div class="through-time">
      <label for="through-time">First</label>
      <input
        id="through-time"
        type="range"
        min="0"
        max=${last}
        value=${place}
        aria-label="Through time"
        aria-valuetext=${words(sample)}
        onInput=${choose}
      />
      <span>Newest</span>
      <output for="through-time" class="quiet">${words(sample)}</output>
    </div>
    <div class="writings">${sample.texts.map(
      ({ prompt, text }) => html`<pre class="writing" tabindex="0" role="group" aria-label="A text by the model"><code
          >${prompt?.trim() ? html`<b>${prompt}</b>` : html`<span class="quiet">(begun by the model) </span>${prompt}`}${text}</code
        ></pre>`,
    )}</div>`;
}

async function improveSamples(root) {
  const list = root.querySelector(".sample-list");
  if (!list || list.children.length < 2) return;
  const response = await fetch(at("/api/v1/samples")).catch(() => null);
  if (!response?.ok) return;
  const { samples } = await response.json();
  if (samples.length < 2 || !list.isConnected) return;
  const place = document.createElement("div");
  render(html`<${Through} samples=${samples} />`, place);
  list.replaceWith(place);
}

export function startSamples() {
  on("improve", improveSamples);
}

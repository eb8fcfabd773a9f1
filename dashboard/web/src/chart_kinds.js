// The charts: their curves, axes and text forms of values.

import { bitRateText, countText, lossText } from "./format.js";

function momentText(at) {
  return new Date(at * 1000).toLocaleString(undefined, {
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  });
}

const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

/** A tick of the time axis when ticks are `seconds` apart; at midnight the date. */
function tickTime(at, seconds) {
  const moment = new Date(at * 1000);
  if (seconds >= 86_400 || (seconds >= 3600 && moment.getHours() === 0)) {
    return moment.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  }
  return moment.toLocaleTimeString(undefined, seconds < 60 ? { ...clock, second: "2-digit" } : clock);
}

/** All ticks of the time axis; with seconds if two ticks would have the same text. */
export function tickTimes(ticks, seconds) {
  const texts = ticks.map((tick) => tickTime(tick, seconds));
  return new Set(texts).size < texts.length ? ticks.map((tick) => tickTime(tick, 1)) : texts;
}

export const AXES = {
  tokens: { label: "tokens", title: "text learned so far (tokens)", text: (value) => `${countText(value)} tokens` },
  rounds: { label: "rounds", title: "exchanges so far", text: (value) => `${countText(value)} exchanges` },
  time: { label: "time", title: "your local time", text: momentText },
};

const known = (text) => (value) => (value === null ? "–" : text(value));
const withUnit = (unit) => known((value) => `${lossText(value)}${unit && ` ${unit}`}`);
const lossUnit = document.body.dataset.lossUnit ?? "";

export const CHARTS = {
  losses: {
    series: [
      ["validation_loss", "validation loss", "first", "measured"],
      ["train_loss", "training loss", "second"],
    ],
    axes: ["tokens", "time", "rounds"],
    hasLog: true,
    smoothed: 1,
    title: lossUnit ? `loss (${lossUnit})` : "loss",
    text: withUnit(lossUnit),
    tick: (value) => String(Number(value.toPrecision(4))),
  },
  swarm: {
    series: [
      ["num_trainers", "training", "first"],
      ["num_peers", "all machines", "second"],
    ],
    axes: ["time"],
    isStepped: true,
    fromZero: true,
    title: "machines",
    text: known(countText),
    tick: (value) => (Number.isInteger(value) ? countText(value) : ""),
  },
  lines: {
    hasNoMarks: true,
    series: [["upload_bits_per_second", "over all lines, average of a minute", "first"]],
    axes: ["time"],
    fromZero: true,
    title: "sent, bits a second",
    text: known(bitRateText),
    tick: (value) => (value ? bitRateText(value) : "0"),
  },
  work: {
    series: [
      ["tokens_witnessed", "confirmed by others", "first"],
      ["tokens_reported", "self-reported", "second"],
    ],
    axes: ["time"],
    fromZero: true,
    title: "tokens",
    text: known((value) => `${countText(value)} tokens`),
    tick: countText,
  },
};

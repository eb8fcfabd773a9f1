// uPlot in the place of the tables of values: axes to choose from, values under the pointer, the same as a table.

import { html, render } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { onAddress, tellAddress, told } from "./address.js";
import { bitRateText, countText, lossText, wholeText } from "./format.js";
import { along, watchPoints } from "./points.js";

const MAX_TABLE_ROWS = 12;
const NEAR_PIXELS = 6;
const MARK_WORDS = { join: "joined", leave: "left", revision: "new revision of the run" };
const MARK_COLORS = { join: "--good", leave: "--warn", revision: "--third" };

const AXES = {
  tokens: { label: "tokens", title: "tokens committed", text: countText },
  rounds: { label: "rounds", title: "rounds committed", text: countText },
  time: { label: "time", title: "your local time", text: momentText },
};

const peers = (value) => (value === null ? "–" : countText(value));
const rate = (value) => (value === null ? "–" : bitRateText(value));
const tokens = (value) => (value === null ? "–" : wholeText(value));

export const CHARTS = {
  losses: {
    series: [
      ["held_out_loss", "held-out loss", "first", "measured"],
      ["train_loss", "training loss", "second"],
    ],
    axes: ["tokens", "time", "rounds"],
    hasLog: true,
    text: lossText,
    tick: (value) => String(Number(value.toPrecision(4))),
  },
  swarm: {
    series: [
      ["num_trainers", "training", "first"],
      ["num_peers", "all peers", "second"],
    ],
    axes: ["time"],
    isStepped: true,
    fromZero: true,
    text: peers,
    tick: (value) => (Number.isInteger(value) ? countText(value) : ""),
  },
  lines: {
    hasNoMarks: true,
    series: [
      ["upload_bits_per_second", "over all lines, average of a minute", "first"],
    ],
    axes: ["time"],
    fromZero: true,
    text: rate,
    tick: (value) => (value ? bitRateText(value) : "0"),
  },
  work: {
    series: [
      ["tokens_witnessed", "witnessed", "first"],
      ["tokens_reported", "reported", "second"],
    ],
    axes: ["time"],
    fromZero: true,
    text: tokens,
    tick: countText,
  },
};

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

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const seriesColor = { first: "--accent", second: "--second" };

/** Joins and leaves as thin lines from the bottom, on uPlot's canvas. */
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const mark of marks) {
    const x = plot.valToPos(mark.x, "x", true);
    if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
    ctx.strokeStyle = color(MARK_COLORS[mark.kind] ?? "--quiet");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + bbox.height);
    ctx.lineTo(x, bbox.top + bbox.height - 14 * devicePixelRatio);
    ctx.stroke();
  }
  ctx.restore();
}

function options(chart, axis, isLog, marks, size, onCursor) {
  const ink = () => color("--quiet");
  const rule = () => color("--rule");
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const shared = { stroke: ink, font, ticks: { show: false }, grid: { stroke: rule, width: 1 } };
  return {
    ...size,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false }, points: { size: 8 } },
    scales: {
      x: axis === "time" ? { time: true } : { time: false, distr: isLog ? 3 : 1 },
      y: { range: (_, low, high) => range(chart, low, high) },
    },
    axes: [
      {
        ...shared,
        size: 34,
        space: axis === "time" ? 84 : 60,
        grid: { show: false },
        values:
          axis === "time"
            ? (_, ticks, __, ___, seconds) => ticks.map((tick) => tickTime(tick, seconds))
            : (_, ticks) => ticks.map((tick) => (tick === null ? "" : countText(tick))),
      },
      {
        ...shared,
        size: (_, labels) => 16 + 7 * Math.max(3, ...(labels ?? []).map((label) => label.length)),
        values: (_, ticks) => ticks.map(chart.tick),
      },
    ],
    series: [
      {},
      ...chart.series.map(([, label, key, isMeasured]) => ({
        label,
        stroke: () => color(seriesColor[key]),
        width: isMeasured ? 0 : key === "first" ? 2.25 : 1.5,
        spanGaps: true,
        points: isMeasured
          ? { show: true, size: 7, width: 0, fill: () => color(seriesColor[key]) }
          : { show: false },
        paths: chart.isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      })),
    ],
    hooks: { draw: [(plot) => drawMarks(plot, marks)], setCursor: [onCursor] },
  };
}

function range(chart, low, high) {
  if (low === null || high === null) return [0, 1];
  const bottom = chart.fromZero ? 0 : low;
  const room = (high - bottom || 1) * 0.08;
  return [chart.fromZero ? 0 : bottom - room, high + room];
}

/** What is measured now and then is drawn where it was measured: where it differs from the value before. */
function drawn(chart, columns) {
  return columns.map((column, place) => {
    if (place === 0 || !chart.series[place - 1][3]) return column;
    let before = null;
    return column.map((value) => {
      if (value === null || value === before) return null;
      before = value;
      return value;
    });
  });
}

function Chart({ kind, watch }) {
  const chart = CHARTS[kind];
  const [data, setData] = useState(null);
  const [, setAddress] = useState("");
  useEffect(() => onAddress(() => setAddress(location.search)), []);
  const axis = chart.axes.find((key) => key === told("along")) ?? chart.axes[0];
  const isLog = Boolean(chart.hasLog && told("log"));
  const setAxis = (key) => tellAddress({ along: key === chart.axes[0] ? null : key });
  const setLog = (is) => tellAddress({ log: is ? "1" : null });
  const [isTable, setTable] = useState(false);
  const [readout, setReadout] = useState("");
  const place = useRef(null);
  const plot = useRef(null);
  const shown = useRef({ columns: [[]], marks: [] });

  useEffect(() => watch(setData), []);
  const names = chart.series.map(([name]) => name);
  let columns = data ? along(data.columns, axis, names) : [[]];
  const usesLog = isLog && chart.hasLog && axis !== "time";
  if (usesLog) {
    const from = columns[0].findIndex((x) => x > 0);
    columns = columns.map((column) => column.slice(from < 0 ? column.length : from));
  }
  const marks = (data?.marks ?? []).map((mark) => ({ ...mark, x: axis === "time" ? mark.at : mark.committed_tokens }));
  shown.current = { columns, marks: axis === "rounds" || chart.hasNoMarks ? [] : marks };

  const sayCursor = (one) => {
    const { idx } = one.cursor;
    const { columns: now, marks: near } = shown.current;
    if (idx === null || idx === undefined || now[0][idx] === undefined) return setReadout("");
    const values = chart.series.map(([, label], index) => `${label} ${chart.text(now[index + 1][idx] ?? null)}`);
    const mark = near.find((each) => Math.abs(one.valToPos(each.x, "x") - one.cursor.left) < NEAR_PIXELS);
    const who = mark?.peer_id ? `${mark.peer_id.slice(-8)} ` : "";
    const words = mark ? ` · ${who}${MARK_WORDS[mark.kind] ?? mark.kind}` : "";
    setReadout(`${AXES[axis].text(now[0][idx])}: ${values.join(", ")}${words}`);
  };

  useEffect(() => {
    if (isTable || !place.current) return undefined;
    const element = place.current;
    const size = () => ({ width: element.clientWidth, height: element.clientHeight });
    const live = { get marks() { return shown.current.marks; } };
    const one = new uPlot(options(chart, axis, usesLog, [], size(), sayCursor), drawn(chart, shown.current.columns), element);
    one.hooks.draw = [(canvas) => drawMarks(canvas, live.marks)];
    plot.current = one;
    const resized = new ResizeObserver(() => one.setSize(size()));
    resized.observe(element);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => one.redraw(false);
    theme.addEventListener("change", redraw);
    one.redraw(false);
    return () => {
      theme.removeEventListener("change", redraw);
      resized.disconnect();
      one.destroy();
      plot.current = null;
    };
  }, [axis, usesLog, isTable]);

  useEffect(() => {
    plot.current?.setData(drawn(chart, columns));
  }, [data]);

  const kinds = [...new Set(shown.current.marks.map((mark) => mark.kind))];
  return html`
    <div class="tools">
      ${chart.axes.length > 1 &&
      html`<div class="choice" role="group" aria-label="Along">
        ${chart.axes.map(
          (key) => html`<button type="button" aria-pressed=${key === axis} onClick=${() => setAxis(key)}>
            ${AXES[key].label}
          </button>`,
        )}
      </div>`}
      ${chart.hasLog &&
      axis !== "time" &&
      html`<div class="choice">
        <button type="button" aria-pressed=${isLog} onClick=${() => setLog(!isLog)}>logarithmic</button>
      </div>`}
      <div class="choice">
        <button type="button" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>show as table</button>
      </div>
    </div>
    ${isTable
      ? html`<${Table} chart=${chart} axis=${axis} columns=${columns} />`
      : html`<div class="canvas" role="img" aria-label=${sentence(chart, axis, columns)} ref=${place}></div>`}
    <p class="legend">
      ${chart.series.map(
        ([, label, key, isMeasured]) => html`<span class=${`key ${key} ${isMeasured ?? ""}`}>${label}</span>`,
      )}
      ${kinds.map((each) => html`<span class=${`key mark ${each}`}>${MARK_LEGEND[each] ?? each}</span>`)}
      <span class="readout">${readout || AXES[axis].title}</span>
    </p>
  `;
}

const MARK_LEGEND = { join: "a peer joined", leave: "a peer left", revision: "new revision" };

function sentence(chart, axis, columns) {
  const last = columns[0].length - 1;
  if (last < 0) return "Nothing to draw yet.";
  const at = (index) =>
    chart.series.map(([, label], place) => `${label} ${chart.text(columns[place + 1][index] ?? null)}`).join(", ");
  const { text } = AXES[axis];
  return `From ${text(columns[0][0])} (${at(0)}) to ${text(columns[0][last])} (${at(last)}).`;
}

function Table({ chart, axis, columns }) {
  const number = columns[0].length;
  const step = Math.max(1, Math.ceil(number / MAX_TABLE_ROWS));
  const rows = [];
  for (let index = number - 1; index >= 0; index -= step) rows.push(index);
  return html`<table class="plain">
    <thead>
      <tr>
        <th scope="col">${AXES[axis].title}</th>
        ${chart.series.map(([, label]) => html`<th scope="col" class="number">${label}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${rows.map(
        (index) => html`<tr key=${columns[0][index]}>
          <th scope="row">${AXES[axis].text(columns[0][index])}</th>
          ${chart.series.map((_, place) => html`<td class="number">${chart.text(columns[place + 1][index] ?? null)}</td>`)}
        </tr>`,
      )}
    </tbody>
  </table>`;
}

function hasCurve(chart, data) {
  const times = data.columns.time;
  return times.length > 1 && chart.series.some(([name]) => data.columns[name]?.some((value) => value !== null));
}

/** Put a chart in the place of each table of the server as soon as there is something to draw. */
export function startCharts(watch = watchPoints) {
  for (const element of document.querySelectorAll("[data-chart]")) {
    const kind = element.dataset.chart;
    if (!CHARTS[kind] || (kind === "work") !== (watch !== watchPoints)) continue;
    const stop = watch((data) => {
      if (element.dataset.drawn || !hasCurve(CHARTS[kind], data)) return;
      element.dataset.drawn = "yes";
      element.textContent = "";
      render(html`<${Chart} kind=${kind} watch=${watch} />`, element);
      queueMicrotask(() => stop());
    });
  }
}

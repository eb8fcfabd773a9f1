// uPlot charts above the tables of values, with a choice of axes, and values at the pointer.

import { html, render } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { onAddress, tellAddress, told } from "./address.js";
import { AXES, CHARTS } from "./chart_kinds.js";
import { groups, MARK_LEGEND, Marks } from "./chart_marks.js";
import { drawn, options, span } from "./chart_plot.js";
import { along, watchPoints } from "./points.js";

const NO_MARKS = { found: [], offset: 0 };

function useAddress() {
  const [, setAddress] = useState("");
  useEffect(() => onAddress(() => setAddress(location.search)), []);
}

/** Columns along the chosen axis, without values that a logarithmic axis cannot show. */
function chosen(chart, data, axis, isLog) {
  const columns = data ? along(data.columns, axis, chart.series.map(([name]) => name)) : [[]];
  const from = isLog ? columns[0].findIndex((x) => x > 0) : 0;
  return from === 0 ? columns : columns.map((column) => column.slice(from < 0 ? column.length : from));
}

function Chart({ kind, watch }) {
  const chart = CHARTS[kind];
  const [data, setData] = useState(null);
  const [tip, setTip] = useState(null);
  const [isZoomed, setZoomed] = useState(false);
  const [near, setNear] = useState(NO_MARKS);
  const place = useRef(null);
  const plot = useRef(null);
  const shown = useRef(null);
  useAddress();
  useEffect(() => watch(setData), []);

  const axis = chart.axes.find((key) => key === told("along")) ?? chart.axes[0];
  const isLog = Boolean(chart.hasLog && told("log") && axis !== "time");
  const isSmooth = chart.smoothed !== undefined && Boolean(told("smooth"));
  const columns = chosen(chart, data, axis, isLog);
  const hasMarks = axis !== "rounds" && !chart.hasNoMarks;
  const marks = hasMarks
    ? (data?.marks ?? []).filter((mark) => chart.hasLog || mark.kind !== "sample").map((mark) => ({ ...mark, x: axis === "time" ? mark.at : mark.committed_tokens }))
    : [];
  shown.current = { columns, marks };

  const sayCursor = (one) => {
    const { idx, left } = one.cursor;
    const now = shown.current.columns;
    if (idx === null || idx === undefined || left < 0 || now[0][idx] === undefined) return setTip(null);
    // For occasionally measured values, the last measurement.
    const value = (index) => now[index + 1].slice(0, idx + 1).findLast((each) => each !== null) ?? null;
    const values = chart.series.map(([, label, , isMeasured], index) => {
      return `${label} ${chart.text(isMeasured ? value(index) : (now[index + 1][idx] ?? null))}`;
    });
    return setTip({ left: left + one.bbox.left / devicePixelRatio, lines: [AXES[axis].text(now[0][idx]), ...values] });
  };
  const seeScale = (one) => {
    const xs = shown.current.columns[0];
    const { min, max } = one.scales.x;
    setZoomed(xs.length > 1 && (min > xs[0] || max < xs[xs.length - 1]));
  };
  const placeMarks = (one) =>
    setNear({ found: groups(one, shown.current.marks), offset: one.bbox.left / devicePixelRatio });

  useEffect(() => {
    if (!place.current) return undefined;
    const element = place.current;
    const size = () => ({ width: element.clientWidth, height: element.clientHeight });
    const hooks = {
      setCursor: [sayCursor],
      draw: [
        (one) => {
          seeScale(one);
          placeMarks(one);
        },
      ],
    };
    const how = { isLog, isSmooth };
    const one = new uPlot(
      options(chart, axis, AXES[axis].title, how, size(), hooks),
      drawn(chart, shown.current.columns, isSmooth),
      element,
    );
    plot.current = one;
    const resized = new ResizeObserver(() => one.setSize(size()));
    resized.observe(element);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => one.redraw(false);
    theme.addEventListener("change", redraw);
    return () => {
      theme.removeEventListener("change", redraw);
      resized.disconnect();
      one.destroy();
      plot.current = null;
      setTip(null);
    };
  }, [axis, isLog, isSmooth]);

  useEffect(() => {
    // A zoomed range stays in view while the curve grows.
    plot.current?.setData(drawn(chart, columns, isSmooth), !isZoomed);
    if (isZoomed) plot.current?.redraw();
  }, [data]);

  const zoomOut = () => {
    const xs = columns[0];
    plot.current?.setScale("x", { min: xs[0], max: xs[xs.length - 1] });
  };
  const choose = (name, value) => tellAddress({ [name]: value });
  const kinds = Object.keys(MARK_LEGEND).filter((each) => marks.some((mark) => mark.kind === each));
  return html`
    <div class="tools">
      ${chart.axes.length > 1 &&
      html`<div class="choice" role="group" aria-label="Along">
        ${chart.axes.map(
          (key) => html`<button
            type="button"
            aria-pressed=${key === axis}
            onClick=${() => choose("along", key === chart.axes[0] ? null : key)}
          >
            ${AXES[key].label}
          </button>`,
        )}
      </div>`}
      <div class="choice">
        ${chart.hasLog &&
        axis !== "time" &&
        html`<button type="button" aria-pressed=${isLog} onClick=${() => choose("log", isLog ? null : "1")}>
          logarithmic
        </button>`}
        ${chart.smoothed !== undefined &&
        html`<button type="button" aria-pressed=${isSmooth} onClick=${() => choose("smooth", isSmooth ? null : "1")}>
          smoothed
        </button>`}
      </div>
      ${isZoomed && html`<button type="button" onClick=${zoomOut}>show all of it</button>`}
      ${chart.hasLog && axis === "time" && html`<span class="quiet">logarithmic: along tokens or rounds</span>`}
    </div>
    <div class="chart">
      <div class="canvas" role="img" aria-label=${sentence(chart, axis, columns)} ref=${place}></div>
      <${Marks} ...${near} text=${AXES.time.text} onTell=${setTip} />
      ${tip && html`<${Tip} ...${tip} width=${place.current?.clientWidth ?? 0} />`}
    </div>
    <p class="legend">
      ${chart.series.map(
        ([, label, key, isMeasured]) =>
          html`<span class=${`key ${key} ${isMeasured ?? ""} ${chart.fromZero ? "dashed" : ""}`}>${label}</span>`,
      )}
      ${areEqual(columns) && html`<span class="quiet">both lines are equal</span>`}
      ${kinds.map((each) => html`<span class=${`key mark ${each}`}>${MARK_LEGEND[each]}</span>`)}
      <span class="quiet hint">
        ${isSmooth ? `bold: mean of ${span(columns[0].length)} points · ` : ""}drag across the chart to zoom in
      </span>
    </p>
  `;
}

/** Values beside the pointer, on the side with enough space. */
function Tip({ left, lines, width }) {
  const isLeft = left > width / 2;
  const style = isLeft ? { right: `${width - left + 14}px` } : { left: `${left + 14}px` };
  return html`<div class="tip" style=${style}>${lines.map((line) => html`<p>${line}</p>`)}</div>`;
}

function areEqual(columns) {
  const [, one, other] = columns;
  return Boolean(one?.length && other) && one.every((value, index) => value === other[index]);
}

function sentence(chart, axis, columns) {
  const last = columns[0].length - 1;
  if (last < 0) return "No values yet.";
  const at = (index) =>
    chart.series.map(([, label], place) => `${label} ${chart.text(columns[place + 1][index] ?? null)}`).join(", ");
  const { text } = AXES[axis];
  return `From ${text(columns[0][0])} (${at(0)}) to ${text(columns[0][last])} (${at(last)}).`;
}

function hasCurve(chart, data) {
  const times = data.columns.time;
  const isThere = (value) => value !== null && (!chart.fromZero || value > 0);
  return times.length > 1 && chart.series.some(([name]) => data.columns[name]?.some(isThere));
}

/** Put a chart above each table of the server, and close the table, once there are values. */
export function startCharts(watch = watchPoints) {
  for (const element of document.querySelectorAll("[data-chart]")) {
    const kind = element.dataset.chart;
    if (!CHARTS[kind] || (kind === "work") !== (watch !== watchPoints)) continue;
    const stop = watch((data) => {
      if (element.dataset.drawn || !hasCurve(CHARTS[kind], data)) return;
      element.dataset.drawn = "yes";
      element.querySelector(".empty")?.remove();
      element.querySelector("details")?.removeAttribute("open");
      const place = document.createElement("div");
      element.prepend(place);
      render(html`<${Chart} kind=${kind} watch=${watch} />`, place);
      queueMicrotask(() => stop());
    });
  }
}

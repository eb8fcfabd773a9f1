// One chart on uPlot's canvas: its options and colours, and lines across gaps.

import uPlot from "uplot";
import { tickTimes } from "./chart_kinds.js";
import { countText } from "./format.js";

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const seriesColor = { first: "--accent", second: "--second" };

function range(chart, low, high) {
  if (low === null || high === null) return [0, 1];
  const bottom = chart.fromZero ? 0 : low;
  const room = (high - bottom || 1) * 0.08;
  return [chart.fromZero ? 0 : bottom - room, high + room];
}

/**
 * Options of uPlot.
 *
 * @param {{isLog: boolean, isSmooth: boolean}} how
 * @param {object} hooks - of uPlot.
 */
export function options(chart, axis, axisTitle, how, size, hooks) {
  const ink = () => color("--quiet");
  const rule = () => color("--rule");
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const shared = { stroke: ink, font, labelFont: font, labelSize: 20, ticks: { show: false } };
  const series = chart.series.map(([, label, key, isMeasured], place) => ({
    label,
    stroke: () => color(seriesColor[key]),
    width: isMeasured ? 0 : key === "first" ? 2.25 : 1.5,
    // If two lines are equal, the lower one shows through the gaps.
    dash: key === "second" && chart.fromZero ? [8, 5] : undefined,
    alpha: how.isSmooth && chart.smoothed === place ? 0.3 : 1,
    spanGaps: true,
    points: isMeasured ? { show: true, size: 7, width: 0, fill: () => color(seriesColor[key]) } : { show: false },
    paths: chart.isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
  }));
  if (how.isSmooth) {
    const key = chart.series[chart.smoothed][2];
    series.push({ stroke: () => color(seriesColor[key]), width: 2.25, spanGaps: true, points: { show: false } });
  }
  return {
    ...size,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false }, points: { size: 8 } },
    scales: {
      x: axis === "time" ? { time: true } : { time: false, distr: how.isLog ? 3 : 1 },
      y: { range: (_, low, high) => range(chart, low, high) },
    },
    axes: [
      {
        ...shared,
        label: axisTitle,
        size: 34,
        // Space between the lowest number of one axis and the first number of the other.
        gap: 9,
        space: axis === "time" ? 84 : 60,
        grid: { show: false },
        values:
          axis === "time"
            ? (_, ticks, __, ___, seconds) => tickTimes(ticks, seconds)
            : (_, ticks) => ticks.map((tick) => (tick === null ? "" : countText(tick))),
      },
      {
        ...shared,
        label: chart.title,
        grid: { stroke: rule, width: 1 },
        size: (_, labels) => 16 + 7 * Math.max(3, ...(labels ?? []).map((label) => label.length)),
        values: (_, ticks) => ticks.map(chart.tick),
      },
    ],
    series: [{}, ...series],
    hooks,
  };
}

/** Draw an occasionally measured value at its measurements, where it differs from the previous value. */
export function drawn(chart, columns, isSmooth) {
  const shown = columns.map((column, place) => {
    if (place === 0 || !chart.series[place - 1][3]) return column;
    let before = null;
    return column.map((value) => {
      if (value === null || value === before) return null;
      before = value;
      return value;
    });
  });
  return isSmooth ? [...shown, smoothed(columns[chart.smoothed + 1])] : shown;
}

/** The odd number of points whose mean is one smoothed value. */
export const span = (number) => 2 * Math.max(1, Math.round(number / 60)) + 1;

/** Return each value as the mean of its neighbours on both sides; at the ends, of the existing neighbours. */
function smoothed(column) {
  const half = (span(column.length) - 1) / 2;
  return column.map((value, place) => {
    if (value === null) return null;
    const near = column.slice(Math.max(0, place - half), place + half + 1).filter((each) => each !== null);
    return near.reduce((sum, each) => sum + each, 0) / near.length;
  });
}

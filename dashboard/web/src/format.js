// Numbers as text, in the same form as `dht/ground/quantities.py`.

const COUNTS = ["", "k", "M", "G", "T", "P"];
const RATES = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];

function scaled(value, units) {
  if (!Number.isFinite(value)) return "unknown";
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < units.length - 1) {
    value /= 1000;
    step += 1;
  }
  const decimals = Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
  const digits = step || !Number.isInteger(value) ? value.toFixed(decimals) : String(value);
  return `${digits} ${units[step]}`.trimEnd();
}

export function countText(count) {
  return Number.isInteger(count) && Math.abs(count) < 10_000 ? String(count) : scaled(count, COUNTS);
}

export function bitRateText(bitsPerSecond) {
  return scaled(bitsPerSecond, RATES);
}

export function lossText(loss) {
  if (loss === null || loss === undefined) return "–";
  return Math.abs(loss) < 1000 ? loss.toFixed(3) : loss.toExponential(2);
}

export function ageText(seconds) {
  if (seconds < 1) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86_400)} d ago`;
}

/** A time by the browser's clock; with the date if it is on a different day. */
export function clockText(milliseconds) {
  const moment = new Date(milliseconds);
  const isToday = moment.toDateString() === new Date().toDateString();
  return isToday ? moment.toLocaleTimeString() : moment.toLocaleString();
}

let regions = null;

export function countryName(code) {
  try {
    regions ??= new Intl.DisplayNames(undefined, { type: "region" });
    return regions.of(code) ?? code;
  } catch {
    // Two letters that are not a region are shown unchanged.
    return code;
  }
}

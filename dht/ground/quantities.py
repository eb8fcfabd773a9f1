"""Text forms of numbers, times and states, in one style for terminal, page and panel.

Numbers have three significant digits and a unit, no exponent; losses have three decimals, to be comparable. A date is
``3 March 2030``, in UTC; a time in front of a line is in this machine's time zone.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "–"
"""Replaces a value that was not measured."""
DAY_SECONDS: Final = 86_400.0
_LATEST: Final = 253_402_214_400.0
"""31 December 9999, the end of calendars; no time zone is a day ahead."""
_NO_YEAR_SECONDS: Final = 300 * DAY_SECONDS
"""Dates within this time need no year."""
_COUNTS: Final = ("", "k", "M", "G", "T", "P")
MAX_TELLING_LOSS: Final = 20.0
"""Half a billion choices: more than the size of any vocabulary."""


def count_text(count: float) -> str:
    """``1234567`` -> ``1.23 M``, ``14000`` -> ``14.0 k``; whole numbers below ten thousand stay exact."""
    if math.isfinite(count) and abs(count) < 10_000 and count == int(count):
        return str(int(count))
    return _scaled(count, _COUNTS)


def bytes_text(num_bytes: float) -> str:
    """Decimal units, as network lines are sold: ``1500`` -> ``1.50 kB``."""
    return _scaled(num_bytes, ("B", "kB", "MB", "GB", "TB", "PB"))


def bit_rate_text(bits_per_second: float) -> str:
    """``1250000`` -> ``1.25 Mbit/s``."""
    return _scaled(bits_per_second, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def about(value: float) -> float:
    """Return the value with two significant digits, for estimates."""
    return float(f"{value:.2g}")


def share_text(share: float) -> str:
    """``0.1234`` -> ``12.3%``. Only exactly 1 gives 100%, and only exactly 0 gives 0%."""
    if share >= 1 or share == 0:
        return "100%" if share else "0%"
    return "<0.1%" if 0 < share < 0.001 else f"{min(99.9, 100 * share):.1f}%"


def loss_text(loss: float | None, unit: str = "") -> str:
    """``1.731 nats per token``; `unit` is empty if unknown."""
    if loss is None or not math.isfinite(loss):
        return UNKNOWN
    return f"{loss:.3f} {unit}".rstrip() if abs(loss) < 1000 else f"{loss:.2e} {unit}".rstrip()


def choices_text(loss: float | None) -> str:
    """``3.70``: the number of equally likely choices with this loss (perplexity). Empty if unknown."""
    return "" if loss is None or not 0 <= loss <= MAX_TELLING_LOSS else count_text(float(f"{math.exp(loss):.3g}"))


def words_text(count: float) -> str:
    """``2 billion``, ``350 million``, ``90 thousand``."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= 0.9995 * size:
            return f"{float(f'{count / size:.3g}'):g} {word}"
    return f"{count:.0f}"


def plural(count: int, noun: str) -> str:
    """``1 peer``, ``2 peers``, ``1.20 M peers``, ``7 addresses``, ``2 people``."""
    if noun == "person":
        return f"{count_text(count)} {'person' if count == 1 else 'people'}"
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count_text(count)} {noun}{ending}"


def short_peer(peer_id: str) -> str:
    """Return the last eight characters of a PeerId: all Ed25519 ids begin alike."""
    return peer_id[-8:] if peer_id else "(nobody)"


def state_text(state: str, role: str = "trainer") -> str:
    """Return the word for a member's activity, from the state in its record or from the last contact."""
    if state == "serving" and role == "trainer":
        return "paused"
    return "unresponsive" if state in ("late", "silent") else state


def seconds_text(seconds: float) -> str:
    """``0.35`` -> ``0.35 s``; ``75`` -> ``1 min 15 s``; ``7260`` -> ``2 h 1 min``; ``180000`` -> ``2 d 2 h``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if abs(seconds) < 59.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return _pair(minutes, "min", rest, "s")
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return _pair(hours, "h", minutes, "min")
    days, hours = divmod(hours, 24)
    return _pair(days, "d", hours, "h")


def short_time(seconds: float) -> str:
    """Format a time in its largest unit, where more would be too exact: ``26 h``."""
    for length, divisor, unit in ((2 * DAY_SECONDS, DAY_SECONDS, "d"), (5400.0, 3600.0, "h"), (60.0, 60.0, "min")):
        if seconds >= length:
            return f"{round(seconds / divisor)} {unit}"
    return f"{max(0, int(seconds))} s"


def age_text(seconds: float) -> str:
    """``3 s ago``, ``12 min ago``."""
    return "just now" if seconds < 1 else f"{short_time(seconds)} ago"


def clock_text(at: float) -> str:
    """Format unix seconds as the time of day on this machine: ``14:05:09``."""
    return f"{_moment(at).astimezone():%H:%M:%S}"


def day_text(at: float) -> str:
    """Format unix seconds as ``3 March 2030``. Times after the year 9999 become its last day."""
    moment = _moment(at)
    return f"{moment.day} {moment:%B %Y}"


def date_text(at: float) -> str:
    """Format unix seconds as ``3 March 2030, 14:05 UTC``."""
    return f"{day_text(at)}, {_moment(at):%H:%M} UTC"


def moment_text(at: float, span_seconds: float) -> str:
    """Format a point of a time axis of `span_seconds`: the time of day (UTC), or the date."""
    moment = _moment(at)
    if span_seconds < 1.5 * DAY_SECONDS:
        return f"{moment:%H:%M:%S}" if span_seconds < 300 else f"{moment:%H:%M}"
    return f"{moment.day} {moment:%b}"


def arrival_text(soonest_at: float, latest_at: float | None, now: float) -> str:
    """Format the arrival at a goal: ``in 3 h to 5 h``, ``between 2 December and 5 December``.

    Args:
        latest_at: unix seconds, like the others; None: unknown.
    """
    is_near = max(soonest_at, latest_at or 0.0) - now < _NO_YEAR_SECONDS

    def day(at: float) -> str:
        return day_text(at).rpartition(" ")[0] if is_near else day_text(at)

    soon = short_time(max(1.0, soonest_at - now))
    if latest_at is None:
        is_far = soonest_at - now > 2 * DAY_SECONDS
        return f"not before {day(soonest_at)}" if is_far else f"in {soon} at the earliest"
    if latest_at - now < 2 * DAY_SECONDS:
        late = short_time(max(1.0, latest_at - now))
        return f"in about {soon}" if soon == late else f"in {soon} to {late}"
    first, last = day(soonest_at), day(latest_at)
    return f"about {first}" if first == last else f"between {first} and {last}"


def _moment(at: float) -> datetime:
    """Return the moment in UTC. Times outside calendars, for example in a stranger's manifest, become the first or last
    moment.
    """
    return datetime.fromtimestamp(max(0.0, min(_LATEST, at)), UTC)


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return "unknown"
    scaled, step = value, 0
    # 999.5 would print as 1000, so it belongs to the next unit.
    while abs(scaled) >= 999.5 and step < len(units) - 1:
        scaled /= 1000
        step += 1
    # Unscaled whole numbers have no decimals; scaled ones have equally many digits, for columns.
    decimals = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    digits = f"{scaled:.{decimals}f}" if step or scaled != int(scaled) else str(int(scaled))
    return f"{digits} {units[step]}".rstrip()

"""Numbers as people read them: three digits, a unit, no exponent."""

from __future__ import annotations

import math


def count_text(count: float) -> str:
    """``1234567`` -> ``1.23 M``; whole numbers below ten thousand stay exact."""
    if isinstance(count, int) and abs(count) < 10_000:
        return str(count)
    return _scaled(count, ("", "k", "M", "G", "T", "P"))


def bytes_text(num_bytes: float) -> str:
    """Decimal units, as network lines are sold: ``1500`` -> ``1.5 kB``."""
    return _scaled(num_bytes, ("B", "kB", "MB", "GB", "TB", "PB"))


def bit_rate_text(bits_per_second: float) -> str:
    """``1250000`` -> ``1.25 Mbit/s``."""
    return _scaled(bits_per_second, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


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


def words_text(count: float) -> str:
    """``2 billion``, ``350 million``, ``90 thousand``."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= 0.9995 * size:
            return f"{float(f'{count / size:.3g}'):g} {word}"
    return f"{count:.0f}"


def plural(count: int, noun: str) -> str:
    """``1 peer``, ``2 peers``, ``1.2 k peers``, ``7 addresses``."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count_text(count)} {noun}{ending}"


def short_peer(peer_id: str) -> str:
    """The last eight characters of a PeerId: all Ed25519 ids begin alike and end unlike."""
    return peer_id[-8:] if peer_id else "(nobody)"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return "unknown"
    scaled, step = value, 0
    # 999.5 would print as 1e+03; it belongs to the next unit.
    while abs(scaled) >= 999.5 and step < len(units) - 1:
        scaled /= 1000
        step += 1
    digits = f"{scaled:.3g}" if abs(scaled) < 999.5 else f"{scaled:.0f}"
    return f"{digits} {units[step]}".rstrip()

"""Small pieces of HTML that several parts of the page share. Every value from outside is escaped here or by its caller.

Nothing depends on the time of rendering: ages are empty `<span data-at>` elements, filled by `with_ages` for the first
paint and by the script from then on.
"""

from __future__ import annotations

import re
from html import escape
from typing import Final
from urllib.parse import quote

from peer.quantities import count_text, seconds_text, short_peer

_AGE: Final = re.compile(r'(<span class="age" data-at="([0-9.]+)">)(?=</span>)')

BASES: Final = {
    "reported": "The peer says so itself; nobody has checked it.",
    "witnessed": "Others signed it: the reducer of a mean that the work is in, or the leader that took it.",
    "verified": "Somebody computed it again and got the same. Nothing does so at present.",
}


def basis(kind: str) -> str:
    """The label that says what a figure rests on."""
    return f'<span class="basis {kind}" title="{BASES[kind]}">{kind}</span>'


REPORTED: Final = basis("reported")
WITNESSED: Final = basis("witnessed")


def age(at: float) -> str:
    """An element that shows how long ago `at` (unix seconds) was."""
    return f'<span class="age" data-at="{max(0.0, at):.1f}"></span>'


def with_ages(html: str, now: float) -> str:
    """Fill the ages, as of `now` (unix seconds)."""
    return _AGE.sub(lambda match: match[1] + age_text(now - float(match[2])), html)


def age_text(seconds: float) -> str:
    """``3 s ago``, ``12 min ago``: one unit, because nobody needs more of a time that goes on."""
    return "just now" if seconds < 1 else f"{short_time(seconds)} ago"


def long_text(seconds: float) -> str:
    """A time of work: ``5 h 12 min``; below a minute ``40 s``, zero a dash."""
    return seconds_text(int(seconds)) if seconds >= 1 else "–"


def short_time(seconds: float) -> str:
    """A time in its largest unit: ``26 h``."""
    for unit_seconds, unit in ((172_800.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_seconds:
            return f"{int(seconds / min(unit_seconds, 86_400.0))} {unit}"
    return long_text(seconds)


def rate_text(per_second: float) -> str:
    """``1234.5`` -> ``1.23 k``."""
    return count_text(float(f"{per_second:.3g}"))


def whole_text(count: float) -> str:
    """A count that may be a fraction of a token: exact below ten thousand."""
    return count_text(round(count)) if count < 10_000 else count_text(float(count))


def share_text(share: float) -> str:
    """``0.1234`` -> ``12.3 %``."""
    return "100 %" if share >= 0.9995 else "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def share_bar(share: float, label: str) -> str:
    """A thin bar of `share` (0 to 1) of its track."""
    return (
        f'<svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f'<rect class="track" width="100" height="4"/><rect width="{100 * min(1.0, share):.1f}" height="4"/></svg>'
    )


def person(name: str, key: str, *, href: str = "") -> str:
    """A name, or `anonymous`, with the end of the key beside it."""
    shown = f'<bdi class="name">{escape(name)}</bdi>' if name else '<span class="name quiet">anonymous</span>'
    mark = f'<code title="{escape(key)}">{escape(short_peer(key))}</code>'
    inside = f"{shown} {mark}"
    return f'<a class="person" href="{escape(href)}">{inside}</a>' if href else inside


def contributor_path(contributor_id: str) -> str:
    """Of the contributor's own page."""
    return f"/c/{quote(contributor_id, safe='')}"


def country(code: str) -> str:
    """A declared country; scripts put its name in the viewer's language in the place of the two letters."""
    return f'<span class="country" data-country="{escape(code)}">{escape(code)}</span>'


def empty(text: str) -> str:
    """Why there is nothing to show yet."""
    return f'<p class="empty">{text}</p>'


def figures(rows: list[tuple[str, str, str]]) -> str:
    """A row of cards: (title, value, note)."""
    return (
        '<dl class="figures">'
        + "".join(
            f'<div class="card"><dt>{title}</dt><dd class="value">{value}</dd><dd class="quiet">{note}</dd></div>'
            for title, value, note in rows
        )
        + "</dl>"
    )


def sort_head(label: str, key: str, *, is_number: bool = True, is_sorted: bool = False) -> str:
    """A column's head that scripts turn into a button for sorting."""
    number = ' class="number"' if is_number else ""
    sorted_by = ' aria-sort="descending"' if is_sorted else ""
    return f'<th scope="col"{number} data-sort="{key}"{sorted_by}>{label}</th>'

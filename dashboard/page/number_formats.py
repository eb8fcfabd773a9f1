"""Numbers and times as text, beside `dht.ground.quantities`, and the templates that have them all as filters."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dht.ground.quantities import bit_rate_text, bytes_text, count_text, plural, seconds_text, short_peer, words_text
from dht.identity.join_link import SCHEME
from dht.identity.speakable import speakable_name
from peer.dates import day_text, short_day, until_text

_AGE: Final = re.compile(r'(<span class="age" data-at="([0-9.]+)">)(?=</span>)')

_DAY_SECONDS: Final = 86_400.0
MAX_TELLING_LOSS: Final = 20.0
"""Half a billion choices: more than any vocabulary has."""


def age_text(seconds: float) -> str:
    """``3 s ago``, ``12 min ago``: one unit, because nobody needs more of a time that goes on."""
    return "just now" if seconds < 1 else f"{short_time(seconds)} ago"


def long_text(seconds: float) -> str:
    """A time of work: ``5 h 12 min``; below a minute ``40 s``, zero a dash."""
    return seconds_text(int(seconds)) if seconds >= 1 else "–"


def short_time(seconds: float) -> str:
    """A time in its largest unit: ``26 h``."""
    for unit_seconds, unit in ((2 * _DAY_SECONDS, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_seconds:
            return f"{int(seconds / min(unit_seconds, _DAY_SECONDS))} {unit}"
    return long_text(seconds)


def moment_text(at: float, span_seconds: float) -> str:
    """A point of a time axis that is `span_seconds` long: the time of day (UTC), or the date."""
    moment = datetime.fromtimestamp(at, UTC)
    if span_seconds < 300:
        return f"{moment:%H:%M:%S}"
    if span_seconds < 1.5 * _DAY_SECONDS:
        return f"{moment:%H:%M}"
    return f"{moment.day} {moment:%b}"


def people_text(count: int) -> str:
    """``1 person``, ``2 people``."""
    return f"{count_text(count)} {'person' if count == 1 else 'people'}"


def date_text(at: float) -> str:
    """``3 March 2030, 14:05`` (UTC)."""
    return f"{day_text(at)}, {datetime.fromtimestamp(at, UTC):%H:%M}"


def rate_text(per_second: float) -> str:
    """``1234.5`` -> ``1.23 k``."""
    return count_text(float(f"{per_second:.3g}"))


def whole_text(count: float) -> str:
    """Tokens, all in one style: ``4.6 k``, ``12.3 k``, below a thousand exact."""
    return count_text(float(round(count)))


def share_text(share: float) -> str:
    """``0.1234`` -> ``12.3 %``. Only all of it is 100 %."""
    if share >= 1:
        return "100 %"
    return "< 0.1 %" if 0 < share < 0.001 else f"{min(99.9, 100 * share):.1f} %"


def about_bytes(num_bytes: float) -> str:
    """Two digits: ``450 MB``."""
    return bytes_text(float(f"{num_bytes:.2g}"))


def about_bits(bits_per_second: float) -> str:
    """Two digits, as lines are sold: ``0.27 Mbit/s``; a tenth at least, since nobody measures less."""
    return f"{max(0.1, float(f'{bits_per_second / 1e6:.2g}')):g} Mbit/s"


def times_text(factor: float) -> str:
    """Three digits, written out: ``1 380``."""
    rounded = float(f"{factor:.3g}")
    return f"{rounded:g}" if rounded < 1000 else f"{rounded:,.0f}".replace(",", "\u202f")


def loss_text(loss: float | None) -> str:
    """Three decimals, as losses are compared; a dash where there is none."""
    if loss is None:
        return "–"
    return f"{loss:.3f}" if abs(loss) < 1000 else f"{loss:.2e}"


def choices_text(loss: float | None) -> str:
    """``3.7``: a guess among so many equally likely choices is as bad (perplexity). Empty: nobody can say."""
    if loss is None or not 0 <= loss <= MAX_TELLING_LOSS:
        return ""
    choices = math.exp(loss)
    return f"{choices:.1f}" if choices < 10 else count_text(float(f"{choices:.3g}"))


def loss_with_unit(loss: float | None, unit: str) -> str:
    """``1.731 nats per byte``; `unit` is empty where nobody knows it."""
    return f"{loss_text(loss)} {unit}" if loss is not None and unit else loss_text(loss)


def shell_line(command: str) -> Markup:
    """A command for the page. A flag is never broken at its hyphens, and a link breaks anywhere rather than at one: the
    parts would be read as something else.
    """
    return Markup(" ").join(_shell_word(word) for word in command.split(" "))


def _shell_word(word: str) -> Markup:
    kind = "flag" if word.startswith("-") else "link" if word.lstrip("'").startswith(SCHEME) else ""
    return Markup('<span class="{}">{}</span>').format(kind, word) if kind else escape(word)


def contributor_path(contributor_id: str) -> str:
    """Of the contributor's own page."""
    return f"/c/{quote(contributor_id, safe='')}"


TEMPLATES: Final = Environment(
    loader=PackageLoader("dashboard.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    # A page that is being served stays the same when its files are replaced.
    auto_reload=False,
)
"""Every value is escaped, in SVG too; a name that nobody gave is an error."""
TEMPLATES.filters.update(
    {
        function.__name__: function
        for function in (
            *(
                about_bits,
                about_bytes,
                bit_rate_text,
                bytes_text,
                contributor_path,
                count_text,
                date_text,
                day_text,
                long_text,
            ),
            *(
                choices_text,
                loss_text,
                loss_with_unit,
                people_text,
                plural,
                rate_text,
                seconds_text,
                share_text,
                short_peer,
                short_time,
            ),
            *(shell_line, short_day, speakable_name, times_text, until_text, whole_text, words_text),
        )
    }
)


def with_ages(html: str, now: float) -> str:
    """Fill the ages, as of `now` (unix seconds); from then on the script does."""
    return _AGE.sub(lambda match: match[1] + age_text(now - float(match[2])), html)

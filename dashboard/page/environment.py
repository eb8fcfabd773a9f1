"""The environment of the page's templates: it escapes all values, and provides the product's text forms as filters."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dht.ground import quantities
from dht.ground.quantities import age_text
from dht.identity.join_link import SCHEME
from dht.identity.speakable import speakable_name

_AGE: Final = re.compile(r'(<span class="age" data-at="([0-9.]+)">)(?=</span>)')
_FORMATS: Final = (
    *("bit_rate_text", "bytes_text", "choices_text", "count_text", "date_text", "day_text", "loss_text"),
    *("plural", "seconds_text", "share_text", "short_peer", "short_time", "state_text", "words_text"),
)


def times_text(factor: float) -> str:
    """Format a factor with three digits, written out: ``1 380``."""
    rounded = float(f"{factor:.3g}")
    return f"{rounded:g}" if rounded < 1000 else f"{rounded:,.0f}".replace(",", "\u202f")


def shell_line(command: str) -> Markup:
    """Return a command as HTML. A flag never breaks at its hyphens, and a link may break anywhere but prefers no
    hyphen, because the parts would be misread.
    """
    return Markup(" ").join(_shell_word(word) for word in command.split(" "))


def _shell_word(word: str) -> Markup:
    kind = "flag" if word.startswith("-") else "link" if word.lstrip("'").startswith(SCHEME) else ""
    return Markup('<span class="{}">{}</span>').format(kind, word) if kind else escape(word)


def contributor_path(contributor_id: str) -> str:
    """Return the path of the contributor's page."""
    return f"/c/{quote(contributor_id, safe='')}"


TEMPLATES: Final = Environment(
    loader=PackageLoader("dashboard.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    # A served page does not change when its files are replaced.
    auto_reload=False,
)
"""All values are escaped, also in SVG; an undefined name is an error."""
TEMPLATES.filters.update({name: getattr(quantities, name) for name in _FORMATS})
TEMPLATES.filters.update(
    contributor_path=contributor_path, shell_line=shell_line, speakable_name=speakable_name, times_text=times_text
)


def with_ages(html: str, now: float) -> str:
    """Fill in the ages at `now` (unix seconds); the script updates them afterwards."""
    return _AGE.sub(lambda match: match[1] + age_text(now - float(match[2])), html)

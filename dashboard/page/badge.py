"""Badges as SVG: two words on two grounds, without script, font file or link.

The text is stretched to the width that was reserved for it (`textLength`), so it fits whatever font the viewer has.
"""

from __future__ import annotations

from typing import Final

from dashboard.history_facts import ContributorRow
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.number_formats import TEMPLATES, whole_text
from dht.ground.quantities import count_text, plural
from dht.identity.speakable import speakable_name

MAX_TEXT_LENGTH: Final = 40
_NARROW: Final = "ijlI.,:;'|!1 ftr()"
_WIDE: Final = "mwMW@%"


def run_badge(state: DashboardState) -> str:
    """The run's name, how many train, and tokens so far."""
    name = state.run_id.partition(".")[0]
    num_trainers = len(state.trainers)
    training = f"{count_text(num_trainers)} training" if num_trainers else state.phase
    tokens = f" · {count_text(float(state.committed_tokens))} {state.counted}" if state.committed_tokens else ""
    return badge(name, training + tokens, is_lit=num_trainers > 0)


def contributor_badge(run_id: str, row: ContributorRow, counted: str = "tokens") -> str:
    """The name, and what others witnessed. `row.name` is empty for those who chose none or withdrew it."""
    name = row.name or speakable_name(row.contributor_id)
    return badge(
        f"{name} · {run_id.partition('.')[0]}",
        f"{whole_text(row.tokens_witnessed)} {counted} · {plural(row.rounds, 'round')}",
        is_lit=row.is_here,
    )


def badge(label: str, message: str, *, is_lit: bool) -> str:
    """An SVG of `label` on a dark ground and `message` on a coloured one; grey unless `is_lit`."""
    label, message = _bounded(label), _bounded(message)
    left, right = _text_width(label), _text_width(message)
    template = TEMPLATES.get_template("badge.svg")
    return template.render(label=label, message=message, is_lit=is_lit, left=left, right=right)


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


def _text_width(text: str) -> int:
    """Pixels to reserve at 11 px; a guess that `textLength` makes true."""
    return round(sum(4.2 if char in _NARROW else 9.8 if char in _WIDE else 6.9 for char in text))

"""What the swarm sends, beside what plain data-parallel training would have sent; and what this page does not know."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from dashboard.facts import HistoryView
from dashboard.page.parts import empty
from peer.quantities import bytes_text, plural, seconds_text

MAX_GAPS_SHOWN = 8


def bandwidth(history: HistoryView) -> str:
    """Bytes over all lines, and the comparison."""
    known = history.bandwidth
    if known.upload_bytes <= 0:
        return empty("The first signed round says what went over the lines, and what plain training would have sent.")
    times = known.times_less
    lead = ""
    if times is not None and known.data_parallel_bytes is not None:
        largest = max(known.data_parallel_bytes, known.upload_bytes)
        rows = (
            ("this run", known.upload_bytes, "first"),
            ("plain data-parallel", known.data_parallel_bytes, "second"),
        )
        bars = "".join(
            f'<tr><th scope="row">{name}</th><td class="bar"><svg class="share {key}" viewBox="0 0 100 4" '
            f'preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="4"/>'
            f'<rect width="{max(0.6, 100 * num_bytes / largest):.1f}" height="4"/></svg></td>'
            f'<td class="number">{bytes_text(num_bytes)}</td></tr>'
            for name, num_bytes, key in rows
        )
        word = "less" if times >= 1 else "more"
        factor = times if times >= 1 else 1 / times
        lead = (
            f'<p class="versus"><strong>{_times_text(factor)} times {word}</strong> sent than with plain '
            f'data-parallel training of the same steps</p><table class="plain bars"><thead class="unseen"><tr>'
            '<th scope="col">Way of training</th><th scope="col">Compared</th><th scope="col">Uploaded</th>'
            "</tr></thead>"
            f"<tbody>{bars}</tbody></table>"
        )
    ring = "" if times is None else ", and the comparison is a ring of float32 gradients at every step"
    return (
        f'{lead}<p class="quiet">{bytes_text(known.upload_bytes)} of encoded values went from peer to peer. It is '
        f"counted from the signed rounds, without framing and what joiners fetched{ring}.</p>"
    )


def _times_text(factor: float) -> str:
    """Three digits, written out: ``1 380``."""
    rounded = float(f"{factor:.3g}")
    return f"{rounded:g}" if rounded < 1000 else f"{rounded:,.0f}".replace(",", "\u202f")


def gaps(history: HistoryView) -> str:
    """Where this page's knowledge begins and where it has holes."""
    if history.started_at <= 0:
        return ""
    parts = [f"This page knows the run since {_moment(history.started_at)} (UTC)."]
    if history.num_rounds:
        parts.append(f"It has checked the signed commits of {plural(history.num_rounds, 'round')}.")
    if history.storage:
        parts.append(f"{escape(history.storage).rstrip('.')}.")
    lines = [
        f"<li>{_moment(gap.begin_at)}, for {seconds_text(round(gap.end_at - gap.begin_at))}: {escape(gap.reason)}</li>"
        for gap in history.gaps[-MAX_GAPS_SHOWN:]
    ]
    lines += [
        f"<li>fragment {row.fragment}, versions {row.first_version} to {row.last_version}: nobody remembered these "
        "rounds when this page asked, so nobody is credited for them here</li>"
        for row in history.missing[-MAX_GAPS_SHOWN:]
    ]
    listed = f'<p class="quiet">It knows nothing of:</p><ul class="quiet">{"".join(lines)}</ul>' if lines else ""
    return f'<p class="quiet">{" ".join(parts)}</p>{listed}'


def _moment(at: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment.day} {moment:%B %Y}, {moment:%H:%M}"

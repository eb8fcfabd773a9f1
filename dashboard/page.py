"""The page as HTML: complete without JavaScript, one string per section so that live updates can replace sections.

Every value that came from outside goes through `escape`. Sections do not depend on the time of rendering: ages are
empty `<span data-at>` elements, filled by `with_ages` for the first paint and by the script from then on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Final

from dashboard.assets import LICENSES, Assets
from dashboard.chart import loss_chart, loss_text
from dashboard.state import DashboardState, FragmentRow, PeerRow, RoundRow
from dht.host import PeerId
from peer.quantities import bit_rate_text, count_text, plural, seconds_text, short_peer

MAX_PEERS_SHOWN: Final = 100
"""Rows on the page; the API has all that are kept."""
MAX_ROUNDS_SHOWN: Final = 15
REFRESH_SECONDS: Final = 5
"""How often browsers without JavaScript load the page again."""

SECTIONS: Final = ("status", "figures", "losses", "contributors", "fragments", "rounds")

_AGE = re.compile(r'(<span class="age" data-at="([0-9.]+)">)(?=</span>)')
_REPORTED = '<span class="basis" title="Peers say so themselves; nobody has checked it yet.">reported</span>'
_STATES = {"joining": "joining", "training": "training", "serving": "serving", "leaving": "leaving", "left": "left"}


def render_sections(state: DashboardState) -> dict[str, str]:
    """HTML of each of `SECTIONS`."""
    return {
        "status": _status(state),
        "figures": _figures(state),
        "losses": loss_chart(state.points),
        "contributors": _contributors(state),
        "fragments": _fragments(state),
        "rounds": _rounds(state),
    }


def with_ages(html: str, now: float) -> str:
    """Fill the ages, as of `now` (unix seconds)."""
    return _AGE.sub(lambda match: match[1] + age_text(now - float(match[2])), html)


def age_text(seconds: float) -> str:
    """``3 s ago``; whole seconds, because a page is never more exact than that."""
    return "just now" if seconds < 1 else f"{seconds_text(int(seconds))} ago"


def render_page(run_id: str, sections: Mapping[str, str], *, now: float, snapshot_id: str, assets: Assets) -> str:
    """The whole page at `now`. `snapshot_id` is where live updates go on from."""
    name, _, mark = run_id.partition(".")
    shown = {key: with_ages(html, now) for key, html in sections.items()}

    def section(key: str) -> str:
        return f'<div id="{key}" data-live>{shown[key]}</div>'

    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="Who trains {escape(name)}, and how well it learns.">
<title>{escape(name)} · Murmuration</title>
<link rel="icon" href="/assets/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/assets/{assets.style}">
{_script(assets)}
</head>
<body data-snapshot="{escape(snapshot_id)}" data-now="{now:.3f}">
<a class="skip" href="#contributors-title">Skip to the contributors</a>
<header>
<p class="brand"><img src="/assets/favicon.svg" alt="" width="22" height="22">Murmuration</p>
<h1>{escape(name)}<span class="mark">.{escape(mark)}</span></h1>
{section("status")}
</header>
<main>
<section aria-label="At a glance">{section("figures")}</section>
<section class="card" aria-labelledby="losses-title">
<h2 id="losses-title">Loss {_REPORTED}</h2>{section("losses")}</section>
<section class="card" aria-labelledby="contributors-title">
<h2 id="contributors-title">Contributors {_REPORTED}</h2>{section("contributors")}</section>
<div class="two">
<section class="card" aria-labelledby="fragments-title">
<h2 id="fragments-title">Fragments {_REPORTED}</h2>{section("fragments")}</section>
<section class="card" aria-labelledby="rounds-title">
<h2 id="rounds-title">Newest rounds {_REPORTED}</h2>{section("rounds")}</section>
</div>
<section class="card join" aria-labelledby="join-title">
<h2 id="join-title">Take part</h2>
<p>One command on a machine with Python 3.11 or newer; a graphics card helps.</p>
<pre><code>peer join --run-id {escape(run_id)} --peers ADDRESS</code></pre>
<p class="quiet">ADDRESS is that of any member; whoever runs this page or the run can tell you one.</p>
</section>
</main>
<footer>
<p><strong>Reported</strong> means that the peers say so themselves and nobody has checked it yet. Medians stand for the
swarm, so a single false report moves little.</p>
<p>Names are shown only of volunteers who chose one. No addresses are shown or kept. This page knows what happened since
it began to watch, and nothing earlier.</p>
<p>Data: <a href="/api/v1/run">run</a> · <a href="/api/v1/peers">peers</a> · <a href="/api/v1/rounds">rounds</a>
{_licenses(assets)}</p>
</footer>
</body>
</html>
"""


def _script(assets: Assets) -> str:
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
    if not assets.script:
        return refresh
    return f'<noscript>{refresh}</noscript>\n<script src="/assets/{assets.script}" type="module"></script>'


def _licenses(assets: Assets) -> str:
    return f' · <a href="/assets/{LICENSES}">licences of the scripts used</a>' if assets.has_licenses else ""


def _age(at: float) -> str:
    return f'<span class="age" data-at="{max(0.0, at):.1f}"></span>'


def _status(state: DashboardState) -> str:
    parts = []
    if state.run is not None:
        if state.run.description:
            parts.append(f'<p class="description"><bdi>{escape(state.run.description)}</bdi></p>')
        parts.append(f'<p class="quiet">{escape(state.run.summary)} · revision {count_text(state.run.revision)}</p>')
    word, sentence = _PHASES[state.phase]
    heard = f" · last news {_age(state.heard_at)}" if state.heard_at is not None else ""
    parts.append(
        f'<p class="pill {state.phase.replace(" ", "-")}" role="status"><span class="lamp"></span>{word}{heard}'
        '<span id="connection"></span></p>'
    )
    if sentence:
        parts.append(f'<p class="notice">{sentence}</p>')
    if state.problem:
        parts.append(f'<p class="notice">The newest look failed: {escape(state.problem[:300])}</p>')
    return "".join(parts)


_PHASES: Final = {
    "live": ("live", ""),
    "starting": ("starting", "This page has just started and connects to the network; that takes a few seconds."),
    "looking": (
        "looking for the swarm",
        "Nobody answers yet at the addresses this page was given. It keeps trying every few seconds; nothing is lost. "
        "If this lasts, check that one of the addresses belongs to a peer that is up.",
    ),
    "no run": (
        "run not found",
        "Other peers answer, but none of them has the record of this run yet. It keeps asking; "
        "if this lasts, check the run id.",
    ),
    "empty": (
        "waiting for peers",
        "The run was found and its owner's signature is good, but no peer is in it right now. "
        "The first one shows up here within seconds of joining.",
    ),
    "silent": (
        "silent",
        "No peer of this run can be heard any more. Either all have left, or this page lost its connection; "
        "it keeps looking. The figures below are the last that were heard.",
    ),
}


def _figures(state: DashboardState) -> str:
    num_trainers = len(state.trainers)
    num_others = len(state.here) - num_trainers
    is_known, has_anchors = bool(state.peers), bool(state.fragments)
    figures = (
        ("Held-out loss", loss_text(state.held_out_loss), f"training {loss_text(state.train_loss)}"),
        (
            "Training now",
            count_text(num_trainers) if is_known else "–",
            f"and {plural(num_others, 'other peer')}" if num_others else "peers",
        ),
        (
            "Tokens committed",
            count_text(float(state.committed_tokens)) if has_anchors else "–",
            "into the shared model",
        ),
        (
            "Rounds",
            count_text(state.num_rounds) if has_anchors else "–",
            f"over {plural(len(state.fragments), 'fragment')}" if has_anchors else "over all fragments",
        ),
        ("Speed", _rate_text(state.tokens_per_second) if is_known else "–", "tokens per second"),
    )
    return (
        '<dl class="figures">'
        + "".join(
            f'<div class="card"><dt>{title}</dt><dd class="value">{value}</dd>'
            f'<dd class="quiet">{note}{_REPORTED}</dd></div>'
            for title, value, note in figures
        )
        + "</dl>"
    )


def _contributors(state: DashboardState) -> str:
    if not state.peers:
        return '<p class="empty">Nobody is here yet. Peers appear within seconds of joining.</p>'
    order = {"here": 0, "silent": 1, "left": 2}
    rows = sorted(
        state.peers,
        key=lambda row: (order[row.condition], not row.same_manifest, -row.record.tokens, row.record.peer_id),
    )
    total = sum(row.record.tokens for row in state.peers if row.same_manifest)
    body = "".join(_peer_row(row, total) for row in rows[:MAX_PEERS_SHOWN])
    notes = []
    if len(rows) > MAX_PEERS_SHOWN:
        notes.append(f"{plural(len(rows) - MAX_PEERS_SHOWN, 'more peer')} in the data below.")
    if state.num_unlisted:
        notes.append(
            f"{plural(state.num_unlisted, 'newer peer')} not listed: this page keeps a bounded number of rows."
        )
    if state.num_invalid_records:
        notes.append(f"{plural(state.num_invalid_records, 'record')} refused: damaged, expired or wrongly signed.")
    return (
        '<table class="stack"><thead><tr><th scope="col">Peer</th><th scope="col">State</th>'
        '<th scope="col" class="number">Tokens</th><th scope="col" class="number">Rounds</th>'
        '<th scope="col" class="number">Tokens/s</th><th scope="col" class="number">Upload</th>'
        '<th scope="col" class="number">Training loss</th><th scope="col" class="number">Heard</th></tr></thead>'
        f"<tbody>{body}</tbody></table>" + "".join(f'<p class="quiet">{note}</p>' for note in notes)
    )


def _peer_row(row: PeerRow, total_tokens: int) -> str:
    record = row.record
    share = record.tokens / total_tokens if total_tokens and row.same_manifest else 0.0
    state = {"here": _STATES[record.state], "left": "left", "silent": "silent"}[row.condition]
    if not row.same_manifest:
        state += ", other manifest"
    elif record.role == "seed" and row.condition == "here":
        state = "seed"
    is_working = row.condition == "here"
    upload = bit_rate_text(record.upload_bits_per_second) if is_working and record.upload_bits_per_second else "–"
    speed = _rate_text(record.tokens_per_second) if is_working and record.tokens_per_second else "–"
    bar = (
        f'<svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        f'aria-label="{share:.0%} of the listed tokens"><rect class="track" width="100" height="4"/>'
        f'<rect width="{100 * share:.1f}" height="4"/></svg>'
    )
    reach = "" if record.reachable or not is_working else " · not reachable from outside"
    return (
        f'<tr class="{row.condition}"><th scope="row" class="who">{_peer_name(record.name, record.peer_id)}'
        f'<span class="quiet"><bdi>{escape(record.device) or "device unknown"}</bdi>{reach}</span></th>'
        f'<td data-label="State"><span class="state {escape(state.partition(",")[0])}">{escape(state)}</span></td>'
        f'<td data-label="Tokens" class="number">{count_text(float(record.tokens)) if record.tokens else "0"}{bar}</td>'
        f'<td data-label="Rounds" class="number">{count_text(record.rounds_contributed)}</td>'
        f'<td data-label="Tokens/s" class="number">{speed}</td>'
        f'<td data-label="Upload" class="number">{upload}</td>'
        f'<td data-label="Training loss" class="number">{loss_text(record.train_loss)}</td>'
        f'<td data-label="Heard" class="number">{_age(row.heard_at)}</td></tr>'
    )


def _rate_text(per_second: float) -> str:
    return count_text(float(f"{per_second:.3g}"))


def _peer_name(name: str, peer_id: PeerId) -> str:
    mark = f'<code title="{escape(peer_id)}">{escape(short_peer(peer_id))}</code>'
    return (
        f'<bdi class="name">{escape(name)}</bdi> {mark}'
        if name
        else f'<span class="name quiet">anonymous</span> {mark}'
    )


def _fragments(state: DashboardState) -> str:
    if not state.fragments:
        return '<p class="empty">No peer has announced its fragments yet.</p>'
    body = "".join(_fragment_row(row) for row in state.fragments)
    return (
        '<table><thead><tr><th scope="col">Fragment</th><th scope="col" class="number">Version</th>'
        '<th scope="col" class="number">Peers at it</th><th scope="col">Anchors</th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
        '<p class="quiet">A peer shows the version it had when it last wrote its record, some seconds ago.</p>'
    )


def _fragment_row(row: FragmentRow) -> str:
    lag = f"largest lag {count_text(row.largest_lag)}" if row.largest_lag else "no lag"
    anchors = (
        f'<span class="state silent">{plural(row.num_forked, "peer")} differ</span>'
        if row.num_forked
        else '<span class="state training">equal</span>'
    )
    return (
        f'<tr><th scope="row">{row.fragment}</th><td class="number">{count_text(row.version)}</td>'
        f'<td class="number">{row.num_current} of {row.num_peers}<span class="quiet">{lag}</span></td>'
        f"<td>{anchors}</td></tr>"
    )


def _rounds(state: DashboardState) -> str:
    if not state.rounds:
        return '<p class="empty">No round has ended since this page began to watch.</p>'
    names = {row.record.peer_id: row.record.name for row in state.peers}
    body = "".join(_round_row(row, names) for row in state.rounds[:MAX_ROUNDS_SHOWN])
    note = (
        ""
        if any(row.leader for row in state.rounds)
        else '<p class="quiet">Told from the versions in peer records; who took part is not known here yet.</p>'
    )
    return (
        '<table><thead><tr><th scope="col">Fragment</th><th scope="col" class="number">Version</th>'
        '<th scope="col">What is known</th><th scope="col" class="number">Seen</th></tr></thead>'
        f"<tbody>{body}</tbody></table>{note}"
    )


def _round_row(row: RoundRow, names: Mapping[PeerId, str]) -> str:
    if row.leader is None:
        known = "committed" if row.num_rounds == 1 else f"{count_text(row.num_rounds)} rounds committed"
    else:
        leader = names.get(row.leader, "") or short_peer(row.leader)
        known = (
            f"{plural(len(row.contributors), 'contributor')}, {count_text(float(row.tokens or 0))} tokens, "
            f"led by <bdi>{escape(leader)}</bdi>"
        )
        if row.num_void_shards:
            known += f", {plural(row.num_void_shards, 'void shard')}"
    return (
        f'<tr><th scope="row">{row.fragment}</th><td class="number">{count_text(row.version)}</td>'
        f'<td>{known}</td><td class="number">{_age(row.seen_at)}</td></tr>'
    )

"""The page as HTML: complete without JavaScript, one string per section so that live updates can replace sections.

Every value that came from outside goes through `escape`. What changes often and is large, the curves, is rendered once
per load; scripts then draw them from the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from dashboard.facts import HistoryView
from dashboard.observe.state import DashboardState
from dashboard.page.assets import LICENSES, Assets
from dashboard.page.charts import loss_text
from dashboard.page.parts import BASES, REPORTED, WITNESSED, age, basis, figures, rate_text, whole_text, with_ages
from dashboard.page.people import contributors, countries, peers
from dashboard.page.rounds import health, rounds_table, strip, timeline
from dashboard.page.swarm import bandwidth, gaps
from peer.quantities import count_text, plural

REFRESH_SECONDS: Final = 5
"""How often browsers without scripts load the page again."""

STREAM_PATH: Final = "/events/stream"
"""Of the server-sent events."""

SECTIONS: Final = (
    *("status", "figures", "contributors", "timeline", "strip", "health"),
    *("bandwidth", "countries", "rounds", "peers", "gaps"),
)
"""Replaced one by one while the page is open."""


def render_sections(state: DashboardState, history: HistoryView) -> dict[str, str]:
    """HTML of each of `SECTIONS`. It does not depend on the time of rendering."""
    return {
        "status": _status(state, history),
        "figures": _figures(state, history),
        "contributors": contributors(history),
        "timeline": timeline(state, history),
        "strip": strip(state, history),
        "health": health(state, history),
        "bandwidth": bandwidth(history),
        "countries": countries(history),
        "rounds": rounds_table(state, history.rounds),
        "peers": peers(state),
        "gaps": gaps(history),
    }


def render_page(
    run_id: str,
    sections: Mapping[str, str],
    charts: Mapping[str, str],
    *,
    now: float,
    snapshot_id: str,
    assets: Assets,
    join_addresses: Sequence[str] = (),
) -> str:
    """The whole page at `now`.

    Args:
        charts: of `charts.render_charts`.
        snapshot_id: where live updates go on from.
        join_addresses: members' addresses that the operator wants to be shown to everybody.
    """
    name, _, mark = run_id.partition(".")
    shown = {key: with_ages(html, now) for key, html in sections.items()}

    def section(key: str) -> str:
        return f'<div id="{key}" data-live>{shown[key]}</div>'

    def card(title: str, key: str, content: str, label: str = "", note: str = "") -> str:
        under = f'<p class="under quiet">{note}</p>' if note else ""
        return (
            f'<section class="card {key}-card" aria-labelledby="{key}-title"><h2 id="{key}-title">{title} {label}</h2>'
            f"{under}{content}</section>"
        )

    ranked = "Ranked by work that others in the round received and signed. Open a name for its curve and its proof."
    found = '<div id="people-tools"></div><div id="people-found" hidden></div>'
    lanes = "One lane per peer; time runs to the right."
    declared = '<span class="basis plain">declared</span>'
    main = f"""<section aria-label="At a glance">{section("figures")}</section>
{card("Learning", "losses", charts["losses"], REPORTED)}
{card("Contributors", "contributors", found + section("contributors"), WITNESSED, ranked)}
{card("Take part", "join", _join(run_id, join_addresses))}
{card("Rounds, live", "timeline", section("timeline"), REPORTED, lanes)}
<div class="two">
{card("Round health", "health", section("health"), WITNESSED)}
{card("How stale each fragment is", "strip", section("strip"), REPORTED)}
</div>
<div class="two">
{card("Swarm size", "swarm", charts["swarm"], REPORTED)}
{card("Bandwidth", "bandwidth", section("bandwidth") + charts["lines"], WITNESSED)}
</div>
{card("Newest rounds", "rounds", section("rounds"), WITNESSED)}
{card("Peers right now", "peers", section("peers"), REPORTED)}
<div class="two">
{card("Where from", "countries", section("countries"), declared)}
{card("How to read these figures", "legend", legend() + section("gaps"))}
</div>"""
    head = f"""<h1>{escape(name)}<span class="mark">.{escape(mark)}</span></h1>
{section("status")}
<nav aria-label="On this page"><a href="#losses-title">Learning</a><a href="#contributors-title">Contributors</a>
<a href="#timeline-title">Rounds</a><a href="#swarm-title">Swarm</a><a href="#join-title">Take part</a></nav>"""
    return document(
        title=f"{name} · Murmuration",
        description=f"Who trains {name}, and how well it learns.",
        head=head,
        main=main,
        footer=f"""<p>Names and countries are shown only of those who chose it, and disappear everywhere
when they are withdrawn. No address of anybody is shown or kept.</p>
<p>Data: <a href="/api/v1/run">run</a> · <a href="/api/v1/peers">peers</a> ·
<a href="/api/v1/rounds">rounds</a>{_licenses(assets)}</p>""",
        assets=assets,
        body=live_body(now, snapshot_id),
        skip=("contributors-title", "Skip to the contributors"),
    )


def document(
    *, title: str, description: str, head: str, main: str, footer: str, assets: Assets, body: str, skip: tuple[str, str]
) -> str:
    """A whole HTML document in the page's dress."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="{escape(description)}">
<title>{escape(title)}</title>
<link rel="icon" href="/assets/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/assets/{assets.style}">
{_script(assets)}
</head>
<body {body}>
<a class="skip" href="#{skip[0]}">{skip[1]}</a>
<header>
<p class="brand"><img src="/assets/favicon.svg" alt="" width="24" height="24">Murmuration</p>
{head}
</header>
<main>
{main}
</main>
<footer>
{footer}
</footer>
</body>
</html>
"""


def live_body(now: float, snapshot_id: str) -> str:
    """Attributes of the body that tell the script where to go on from."""
    return f'data-stream="{STREAM_PATH}" data-snapshot="{escape(snapshot_id)}" data-now="{now:.3f}"'


def legend() -> str:
    """What the three labels mean."""
    terms = "".join(f"<div><dt>{basis(kind)}</dt><dd>{text}</dd></div>" for kind, text in BASES.items())
    return (
        f'<dl class="terms">{terms}</dl><p class="quiet">The ranking counts witnessed tokens or better. Of what peers '
        "report, medians stand for the swarm, so a single false report moves little. A commit names every contributor "
        "with its tokens; fragments are parts of the model, so one pass over all of them counts each token once.</p>"
    )


def _script(assets: Assets) -> str:
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
    if not assets.script:
        return refresh
    return f'<noscript>{refresh}</noscript>\n<script src="/assets/{assets.script}" type="module"></script>'


def _licenses(assets: Assets) -> str:
    return f' · <a href="/assets/{LICENSES}">licences of the scripts used</a>' if assets.has_licenses else ""


def _join(run_id: str, addresses: Sequence[str]) -> str:
    command = f"peer join --run-id {escape(run_id)} --peers {escape(' '.join(addresses)) or 'ADDRESS'}"
    note = (
        "" if addresses else "<p>ADDRESS is that of any member; whoever runs this page or the run can tell you one.</p>"
    )
    return (
        f'<div class="command"><pre><code id="join-command">{command}</code></pre></div><div class="quiet">{note}'
        "<p>One command on a machine with Python 3.11 or newer; a graphics card helps, an ordinary internet line is "
        "enough. <code>--name Ada</code> puts a name beside your work; without it you stay anonymous. Ctrl+C leaves "
        "politely and nothing you did is lost.</p></div>"
    )


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


def _status(state: DashboardState, history: HistoryView) -> str:
    parts = []
    if state.run is not None:
        if state.run.description:
            parts.append(f'<p class="description"><bdi>{escape(state.run.description)}</bdi></p>')
        parts.append(f'<p class="quiet">{escape(state.run.summary)} · revision {count_text(state.run.revision)}</p>')
    word, sentence = _PHASES[state.phase]
    heard = f" · last news {age(state.heard_at)}" if state.heard_at is not None else ""
    parts.append(
        f'<p class="pill {state.phase.replace(" ", "-")}" role="status"><span class="lamp"></span>{word}{heard}'
        '<span id="connection"></span></p>'
    )
    if sentence:
        parts.append(f'<p class="notice">{sentence}</p>')
    if state.problem:
        parts.append(f'<p class="notice">The newest look failed: {escape(state.problem[:300])}</p>')
    if history.problem:
        parts.append(f'<p class="notice">The history is not being kept: {escape(history.problem[:300])}</p>')
    return "".join(parts)


def _figures(state: DashboardState, history: HistoryView) -> str:
    num_trainers = len(state.trainers)
    num_others = len(state.here) - num_trainers
    is_known, has_anchors = bool(state.peers), bool(state.fragments)
    others = f"and {plural(num_others, 'other peer')}" if num_others else "peers"
    witnessed = f"{whole_text(history.tokens_witnessed)} of them {WITNESSED}" if history.tokens_witnessed else REPORTED
    people = f"by {plural(len(history.contributors), 'contributor')}, " if history.contributors else ""
    return figures(
        [
            (
                "Held-out loss",
                loss_text(state.held_out_loss),
                f"training {loss_text(state.train_loss)} {REPORTED}",
            ),
            ("Training now", count_text(num_trainers) if is_known else "–", f"{others} {REPORTED}"),
            (
                "Tokens committed",
                count_text(float(state.committed_tokens)) if has_anchors else "–",
                f"{people}{witnessed}",
            ),
            (
                "Rounds",
                count_text(state.num_rounds) if has_anchors else "–",
                f"over {plural(len(state.fragments), 'fragment')} {REPORTED}" if has_anchors else "over all fragments",
            ),
            ("Speed", rate_text(state.tokens_per_second) if is_known else "–", f"tokens per second {REPORTED}"),
        ]
    )

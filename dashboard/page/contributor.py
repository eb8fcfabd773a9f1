"""A contributor's own page: what others witnessed of one person's work, and the proof to take home."""

from __future__ import annotations

from html import escape
from typing import Final

from dashboard.facts import ContributorRow, ContributorView
from dashboard.observe.state import DashboardState
from dashboard.page.assets import Assets
from dashboard.page.charts import work_chart
from dashboard.page.page import document, legend, live_body
from dashboard.page.parts import (
    REPORTED,
    WITNESSED,
    age,
    contributor_path,
    country,
    figures,
    share_text,
    short_time,
    whole_text,
    with_ages,
)
from dashboard.page.people import machine_table
from dashboard.page.rounds import rounds_table
from peer.quantities import count_text, plural, short_peer

ROUND_MILESTONES: Final = (10_000, 1000, 100, 10, 1)
TOKEN_MILESTONES: Final = (1e12, 1e9, 1e6, 1e3)
STREAK_MILESTONES: Final = (365, 100, 30, 7, 2)


def render_contributor(
    state: DashboardState, view: ContributorView, *, now: float, snapshot_id: str, assets: Assets
) -> str:
    """The whole page of `view`'s contributor at `now`."""
    row = view.row
    run = state.run_id.partition(".")[0]
    shown = escape(row.name) if row.name else "anonymous"
    key = contributor_path(row.contributor_id).removeprefix("/c")
    here = '<span class="lamp on"></span>here now' if row.is_here else f"last round {age(row.last_at)}"
    where = f" · {country(row.country)}" if row.country else ""
    head = f"""<p class="trail"><a href="/">{escape(run)}</a> <span aria-hidden="true">/</span> contributor</p>
<h1 id="contributor-title"><bdi>{shown}</bdi> <span class="mark">{escape(short_peer(row.contributor_id))}</span></h1>
<div id="who" data-live><p class="quiet">{here}{where} · with the run since {age(row.first_at)}</p></div>"""
    main = f"""<div id="work-figures" data-live><section aria-label="At a glance">{_figures(row)}</section></div>
<section class="card" aria-labelledby="work-title"><h2 id="work-title">Work over time {WITNESSED}</h2>
{work_chart(view.curve)}</section>
<section class="card" aria-labelledby="milestones-title"><h2 id="milestones-title">Milestones {WITNESSED}</h2>
<div id="milestones" data-live>{_milestones(row)}</div></section>
<section class="card" aria-labelledby="machines-title"><h2 id="machines-title">Machines {WITNESSED}</h2>
<div id="machines" data-live>{machine_table(row.machines)}</div></section>
<section class="card" aria-labelledby="own-rounds-title"><h2 id="own-rounds-title">Newest rounds {WITNESSED}</h2>
<div id="own-rounds" data-live>{rounds_table(state, view.rounds)}</div></section>
<div class="two">
<section class="card" aria-labelledby="proof-title"><h2 id="proof-title">Proof</h2>
<p><a class="button" href="/api/v1/contributors{key}/proof" download>Download the signed proof</a></p>
<p class="quiet">Every commit that lists this contributor, with the signatures of the leader and the reducers. Anybody
can check it without this page, without a network, and come to the same totals:</p>
<pre><code>peer receipts verify FILE</code></pre></section>
<section class="card" aria-labelledby="badge-title"><h2 id="badge-title">Badge</h2>
<p><img src="/badge{key}.svg" alt="Badge of this contributor"></p>
<p class="quiet">For a profile or a README, always as new as this page; put this page's address in the place of
PAGE:</p>
<pre><code>![{escape(run)}](PAGE/badge{key}.svg)</code></pre></section>
</div>
<section class="card" aria-labelledby="legend-title"><h2 id="legend-title">How to read this</h2>
<p>A round takes what several machines learned, averages it, and commits the result to the shared model. The commit
says who was in it and with how many tokens; its leader signs it, and so does every reducer for the part that it summed
up. Tokens that somebody other than the contributor signed are {WITNESSED}; what only the machine itself claims is
{REPORTED} and never ranks. A round counts as missed when a machine was planned in it and nothing of it arrived in
time: a slow line, a sleeping laptop. It costs nothing but that round.</p>
<p>The account is a key, not a name: a rename, a new machine under the same key, or a restart loses no credit.</p>
{legend()}</section>"""
    page = document(
        title=f"{row.name or 'anonymous'} · {run} · Murmuration",
        description=f"What {row.name or 'a contributor'} did for {run}.",
        head=head,
        main=main,
        footer=f'<p><a href="/">Back to the run</a> · Data: <a href="/api/v1/contributors{key}">'
        "this contributor</a></p>",
        assets=assets,
        body=f'data-page="contributor" data-id="{escape(row.contributor_id)}" {live_body(now, snapshot_id)}',
        skip=("work-title", "Skip to the curve"),
    )
    return with_ages(page, now)


def _figures(row: ContributorRow) -> str:
    uptime = sum(machine.uptime_seconds for machine in row.machines)
    planned = row.rounds + row.rounds_missed
    rank = f"rank {count_text(row.rank)}" if row.rank else "not ranked yet"
    reliable = f"{share_text(row.rounds / planned)} of {count_text(planned)} planned" if planned else "none planned yet"
    return figures(
        [
            ("Tokens", whole_text(row.tokens_witnessed), f"{whole_text(row.tokens_reported)} reported"),
            ("Share of the run", share_text(row.share), rank),
            ("Rounds", count_text(row.rounds), reliable),
            ("Uptime", short_time(uptime), f"on {plural(len(row.machines), 'machine')}"),
            ("Streak", plural(row.streak_days, "day") if row.streak_days else "–", "in a row with a round"),
        ]
    )


def _milestones(row: ContributorRow) -> str:
    reached = []
    for milestones, value, noun in (
        (ROUND_MILESTONES, float(row.rounds), "round"),
        (TOKEN_MILESTONES, row.tokens_witnessed, "token"),
        (STREAK_MILESTONES, float(row.streak_days), "day in a row"),
    ):
        best = next((milestone for milestone in milestones if value >= milestone), None)
        if best is not None:
            text = plural(int(best), noun) if noun != "day in a row" else f"{count_text(int(best))} days in a row"
            reached.append(f"<li>{text}</li>")
    if not reached:
        return '<p class="empty">The first is a round that others signed.</p>'
    return f'<ul class="milestones">{"".join(reached)}</ul>'

"""Who takes part: contributors by witnessed work, the peers that are here, and declared countries."""

from __future__ import annotations

from html import escape
from typing import Final

from dashboard.facts import ContributorRow, HistoryView, MachineRow
from dashboard.observe.state import DashboardState, PeerRow
from dashboard.page.parts import (
    age,
    contributor_path,
    country,
    empty,
    long_text,
    person,
    rate_text,
    share_bar,
    share_text,
    sort_head,
    whole_text,
)
from peer.quantities import bit_rate_text, count_text, plural

MAX_CONTRIBUTORS_SHOWN: Final = 25
"""Rows on the page; search and the API reach all of them."""
MAX_PEERS_SHOWN: Final = 50
MAX_MACHINES_SHOWN: Final = 16

CONDITIONS: Final = {"here": "here", "left": "left", "silent": "silent"}


def contributors(history: HistoryView) -> str:
    """The ranked table, machines inside each row."""
    rows = history.contributors
    if not rows:
        return empty(
            "No round has been signed yet. Contributors appear here within one round: others have to sign what they "
            "received from them first."
        ) + _unverified(history)
    body = "".join(_contributor(row) for row in rows[:MAX_CONTRIBUTORS_SHOWN])
    more = len(rows) - MAX_CONTRIBUTORS_SHOWN
    note = f'<p class="quiet more">{plural(more, "more contributor")} in the data below.</p>' if more > 0 else ""
    return (
        f'<table class="stack people"><thead><tr><th scope="col" class="rank"><abbr title="Rank">#</abbr></th>'
        f"{sort_head('Contributor', 'name', is_number=False)}"
        f"{sort_head('Tokens', 'tokens', is_sorted=True)}{sort_head('Share', 'share')}{sort_head('Rounds', 'rounds')}"
        f"{sort_head('Uptime', 'uptime')}{sort_head('Streak', 'streak')}{sort_head('Last round', 'last')}</tr></thead>"
        f"<tbody>{body}</tbody></table>{note}{_unverified(history)}"
    )


def _unverified(history: HistoryView) -> str:
    if not history.num_unverified:
        return ""
    verb = "says that it is" if history.num_unverified == 1 else "say that they are"
    return (
        f'<p class="quiet">{plural(history.num_unverified, "unverified peer")} {verb} here; no signed round lists '
        f"{'it' if history.num_unverified == 1 else 'them'} yet.</p>"
    )


def _contributor(row: ContributorRow) -> str:
    uptime = sum(machine.uptime_seconds for machine in row.machines)
    rank = str(row.rank) if row.rank else '<span title="nothing witnessed yet">–</span>'
    reported = (
        f'<span class="quiet">{whole_text(row.tokens_reported)} reported</span>'
        if row.tokens_reported > row.tokens_witnessed * 1.005 + 0.5
        else ""
    )
    missed = f'<span class="quiet">{count_text(row.rounds_missed)} missed</span>' if row.rounds_missed else ""
    streak = plural(row.streak_days, "day") if row.streak_days else "–"
    lamp = f'<span class="lamp {"on" if row.is_here else "off"}" title="{"here now" if row.is_here else "not here"}">'
    said = "here now" if row.is_here else "not here"
    return (
        f'<tr class="{"here" if row.is_here else "left"}"><td class="rank" data-label="Rank">{rank}</td>'
        f'<th scope="row" class="who">{lamp}<span class="unseen">{said}</span></span> '
        f"{person(row.name, row.contributor_id, href=contributor_path(row.contributor_id))}"
        f"{f' {country(row.country)}' if row.country else ''}{_machines(row)}</th>"
        f'<td data-label="Tokens" class="number">{whole_text(row.tokens_witnessed)}{reported}</td>'
        f'<td data-label="Share" class="number">{share_text(row.share)}'
        f"{share_bar(row.share, f'{row.share:.1%} of the witnessed tokens')}</td>"
        f'<td data-label="Rounds" class="number">{count_text(row.rounds)}{missed}</td>'
        f'<td data-label="Uptime" class="number">{long_text(uptime)}</td>'
        f'<td data-label="Streak" class="number">{streak}</td>'
        f'<td data-label="Last" class="number">{age(row.last_at)}</td></tr>'
    )


def _machines(row: ContributorRow) -> str:
    if len(row.machines) == 1:
        return f'<span class="quiet"><bdi>{escape(row.machines[0].device) or "device unknown"}</bdi></span>'
    if not row.machines:
        return ""
    lines = "".join(f"<li>{_machine_line(machine)}</li>" for machine in row.machines[:MAX_MACHINES_SHOWN])
    more = len(row.machines) - MAX_MACHINES_SHOWN
    rest = f"<li>and {count_text(more)} more</li>" if more > 0 else ""
    # The whole id keeps an opened row open when the section is replaced.
    return (
        f'<details id="machines-{escape(row.contributor_id)}"><summary>{plural(len(row.machines), "machine")}</summary>'
        f"<ul>{lines}{rest}</ul></details>"
    )


def _machine_line(machine: MachineRow) -> str:
    return (
        f"<bdi>{escape(machine.device) or 'device unknown'}</bdi> "
        f'<code title="{escape(machine.peer_id)}">{escape(machine.peer_id[-8:])}</code> · {machine.condition} · '
        f"{whole_text(machine.tokens_witnessed)} tokens · {plural(machine.rounds, 'round')} · "
        f"{long_text(machine.uptime_seconds)} up"
    )


def machine_table(machines: tuple[MachineRow, ...]) -> str:
    """Every machine with what it did, for the contributor's page."""
    body = "".join(
        f'<tr><th scope="row" class="who"><bdi>{escape(machine.device) or "device unknown"}</bdi> '
        f'<code title="{escape(machine.peer_id)}">{escape(machine.peer_id[-8:])}</code></th>'
        f'<td data-label="State"><span class="state {machine.condition}">{CONDITIONS[machine.condition]}</span></td>'
        f'<td data-label="Tokens" class="number">{whole_text(machine.tokens_witnessed)}</td>'
        f'<td data-label="Rounds" class="number">{count_text(machine.rounds)}</td>'
        f'<td data-label="Missed" class="number">{count_text(machine.rounds_missed)}</td>'
        f'<td data-label="Uptime" class="number">{long_text(machine.uptime_seconds)}</td>'
        f'<td data-label="Last" class="number">{age(machine.last_at)}</td></tr>'
        for machine in machines
    )
    return (
        '<table class="stack"><thead><tr><th scope="col">Machine</th><th scope="col">State</th>'
        '<th scope="col" class="number">Tokens</th><th scope="col" class="number">Rounds</th>'
        '<th scope="col" class="number">Missed</th><th scope="col" class="number">Uptime</th>'
        f'<th scope="col" class="number">Last round</th></tr></thead><tbody>{body}</tbody></table>'
    )


def countries(history: HistoryView) -> str:
    """Where contributors say they are; countries with fewer than three are not named."""
    if not history.countries:
        return empty(
            "A country is named here when three or more contributors have declared it, and nowhere is guessed from "
            "addresses. Nobody is placed yet."
        )
    largest = max(count for _, count in history.countries)
    rows = "".join(
        f'<tr><th scope="row">{country(code)}</th><td class="number">{count_text(count)}</td>'
        f'<td class="bar">{share_bar(count / largest, f"{count} contributors")}</td></tr>'
        for code, count in history.countries
    )
    rest = (
        f'<tr><th scope="row" class="quiet">not declared</th><td class="number">'
        f"{count_text(history.num_country_undeclared)}</td><td></td></tr>"
        if history.num_country_undeclared
        else ""
    )
    return (
        '<table class="plain bars"><thead><tr><th scope="col">Country</th><th scope="col" class="number">Contributors'
        f'</th><th scope="col"><span class="unseen">Compared</span></th></tr></thead>'
        f"<tbody>{rows}{rest}</tbody></table>"
        '<p class="quiet">Declared by the contributors themselves; shown from three per country.</p>'
    )


def peers(state: DashboardState) -> str:
    """Every machine that is or was here, as it describes itself."""
    if not state.peers:
        return empty("Nobody is here yet. Peers appear within seconds of joining.")
    order = {"here": 0, "silent": 1, "left": 2}
    rows = sorted(
        state.peers,
        key=lambda row: (order[row.condition], not row.same_manifest, -row.record.tokens, row.record.peer_id),
    )
    body = "".join(_peer(row) for row in rows[:MAX_PEERS_SHOWN])
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
        '<th scope="col" class="number">Tokens/s</th><th scope="col" class="number">'
        '<abbr title="What its line can send, learned in rounds">Upload line</abbr></th>'
        '<th scope="col" class="number">Training loss</th><th scope="col" class="number">Heard</th></tr></thead>'
        f"<tbody>{body}</tbody></table>" + "".join(f'<p class="quiet">{note}</p>' for note in notes)
    )


def _peer(row: PeerRow) -> str:
    record = row.record
    state: str = record.state if row.condition == "here" else row.condition
    if not row.same_manifest:
        state += ", other manifest"
    elif record.role == "seed" and row.condition == "here":
        state = "seed"
    is_working = row.condition == "here"
    upload = bit_rate_text(record.upload_bits_per_second) if is_working and record.upload_bits_per_second else "–"
    speed = rate_text(record.tokens_per_second) if is_working and record.tokens_per_second else "–"
    reach = "" if record.reachable or not is_working else " · not reachable from outside"
    loss = "–" if record.train_loss is None else f"{record.train_loss:.3f}" if record.train_loss < 1000 else "> 999"
    return (
        f'<tr class="{row.condition}"><th scope="row" class="who">{person(record.name, record.peer_id)}'
        f'<span class="quiet"><bdi>{escape(record.device) or "device unknown"}</bdi>{reach}</span></th>'
        f'<td data-label="State"><span class="state {escape(state.partition(",")[0])}">{escape(state)}</span></td>'
        f'<td data-label="Tokens" class="number">{count_text(float(record.tokens)) if record.tokens else "0"}</td>'
        f'<td data-label="Rounds" class="number">{count_text(record.rounds_contributed)}</td>'
        f'<td data-label="Tokens/s" class="number">{speed}</td>'
        f'<td data-label="Upload line" class="number">{upload}</td>'
        f'<td data-label="Training loss" class="number">{loss}</td>'
        f'<td data-label="Heard" class="number">{age(row.heard_at)}</td></tr>'
    )

"""The API's answers, as models: they take their fields from the page's facts, and describe themselves as JSON schemas.

Every answer says on what its figures rest (`basis`) and when they were seen (`observed_at`, unix seconds). Version 1:
fields may be added, never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar, get_type_hints

from pydantic import (
    AliasGenerator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    WithJsonSchema,
    create_model,
)

from dashboard.history.thinned_curves import columns_of, rounded, thinned
from dashboard.history_facts import ContributorView, Gap, HistoryPoint, HistoryView, MissingRounds, RoundFacts
from dashboard.observe.dashboard_state import FragmentRow
from dashboard.observe.shown_manifest import ShownManifest
from dashboard.page.annotations import annotations_of
from dashboard.page.goal_progress import progress_of
from dashboard.page.run_result import result_of
from dashboard.server.api_queries import ContributorsQuery, EventsQuery, PointsQuery, Query, RoundsQuery
from dashboard.server.contributor_search import found_contributors
from dashboard.server.handler_context import Site
from dht.records.peer_record import PeerRecord
from peer.view.run_view import FIGURES, RunView

SCHEMA: Final = 1
MAX_LOSSES: Final = 360
"""Of the loss curve, about one per two pixels."""
REPORTED: Final = "reported"
"""Peers say so themselves; nobody has checked it."""
WITNESSED: Final = "witnessed"
"""Others in the round signed it."""

_AS_IT_IS: Final = GetPydanticSchema(lambda _, handler: handler(Any))
Number = Annotated[float, _AS_IT_IS, WithJsonSchema({"type": "number"})]
"""Whole or not: facts hold nothing else, and thousands of rows need no second look at each figure."""
TextOrNull = Annotated[str | None, BeforeValidator(lambda text: text or None)]
"""Empty texts become null."""
_RUN_FIELDS: Final[dict[str, Any]] = {name: (get_type_hints(RunView)[name], ...) for name in FIGURES}
_RUN_SCHEMA: Final = create_model("RunView", **_RUN_FIELDS).model_json_schema()
RunFigures = Annotated[dict[str, Any], WithJsonSchema(_RUN_SCHEMA)]
"""`RunView.to_json`: its fields are the schema."""
_RECORD_FIELDS: Final = frozenset(field.name for field in fields(PeerRecord))


class Model(BaseModel):
    """Reads attributes of facts; `validation_alias` where the fact has another name for it."""

    model_config = ConfigDict(
        from_attributes=True, serialize_by_alias=True, json_schema_serialization_defaults_required=True
    )


class Answer(Model):
    """What every answer says."""

    schema_: int = Field(SCHEMA, serialization_alias="schema")
    basis: str
    run_id: str
    observed_at: Number
    heard_at: Number | None
    problem: TextOrNull


class Bandwidth(Model):
    upload_bytes: Number
    download_bytes: Number
    data_parallel_bytes: Number | None
    times_less: Number | None


class Country(Model):
    country: str
    num_contributors: int


class Loss(Model):
    at: Number
    committed_tokens: int = Field(validation_alias="tokens")
    validation_loss: Number | None
    train_loss: Number | None
    num_trainers: int
    tokens_per_second: Number


class RunProgress(Model):
    """`target` and `value` are tokens."""

    target: Number
    value: Number
    share: Number
    soonest_at: Number | None
    latest_at: Number | None


class Note(Model):
    """The organiser's words, signed with the key of the run's owner."""

    at: Number
    text: str


class Run(Answer):
    figures: RunFigures
    phase: str
    name: str | None
    description: str | None
    what: str | None
    organiser: TextOrNull
    page: TextOrNull
    licence: TextOrNull
    notes: list[Note]
    progress: RunProgress | None
    join_addresses: list[str]
    revision: int | None
    manifest_hash: str | None
    model_kind: str | None
    code: TextOrNull
    command: TextOrNull
    watching_since: Number
    history_since: Number
    num_witnessed_rounds: int
    witnessed_tokens: Number
    witnessed_milli_tokens: int
    num_contributors: int
    num_unverified: int
    bandwidth: Bandwidth
    countries: list[Country]
    num_country_undeclared: int
    gaps: list[Gap]
    missing_rounds: list[MissingRounds]
    storage: str
    storage_problem: TextOrNull
    losses: list[Loss]


class Join(Answer):
    """What `peer join URL` of a page's address needs; the run's manifest is checked against its id by each joiner."""

    name: str | None
    link: str
    addresses: list[str]
    manifest_hash: str | None
    page: TextOrNull
    is_private: bool | None
    has_ended: bool
    model_kind: str | None


class Peer(Model):
    """A peer's record, and what was seen of it."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(
            validation_alias=lambda name: AliasPath("record", name) if name in _RECORD_FIELDS else name
        )
    )

    peer_id: str
    name: TextOrNull
    condition: str
    state: str
    role: str
    same_manifest: bool
    device: str
    software: str
    reachable: bool
    inner_steps: int
    tokens: int
    rounds_contributed: int
    tokens_per_second: Number
    upload_bits_per_second: Number
    train_loss: Number | None
    validation_loss: Number | None
    versions: list[int]
    started_at: Number
    first_heard_at: Number
    heard_at: Number


class Peers(Answer):
    num_unlisted: int
    num_invalid_records: int
    peers: list[Peer]


class DropReason(Model):
    reason: str
    count: int


class Lane(Model):
    peer_id: str
    started_at: Number
    compute_seconds: Number
    send_seconds: Number
    receive_seconds: Number
    apply_seconds: Number


class Round(Model):
    """`version` is the one that the round reached. Of one that is told from peer records no more is known."""

    number: int | None = None
    fragment: int
    version: int
    seen_at: Number
    num_rounds: int = 1
    source: str
    leader: str | None = None
    tokens: int | None = None
    contributors: list[str] | None = None
    num_missed: int | None = None
    num_void_shards: int | None = None
    duration_seconds: Number | None = None
    drop_reasons: list[DropReason] = []
    # Of version 1, and empty: how peers spent their time is not told by round.
    lanes: list[Lane] = []


class Rounds(Answer):
    fragments: list[FragmentRow]
    rounds: list[Round]
    next_before: int | None


class Machine(Model):
    peer_id: str
    device: str
    condition: str
    tokens_witnessed: Number
    tokens_reported: Number
    milli_tokens_witnessed: int = Field(validation_alias="milli_witnessed")
    milli_tokens_reported: int = Field(validation_alias="milli_reported")
    rounds: int
    rounds_missed: int
    first_at: Number
    last_at: Number
    uptime_seconds: Number


class Standing(Model):
    rank: int
    rank_before: int
    milli_tokens_witnessed: int = Field(validation_alias="milli_witnessed")


class Contributor(Model):
    contributor_id: str
    rank: int
    rank_before: int
    name: TextOrNull
    country: TextOrNull
    team: TextOrNull
    tokens_witnessed: Number
    tokens_reported: Number
    milli_tokens_witnessed: int = Field(validation_alias="milli_witnessed")
    milli_tokens_reported: int = Field(validation_alias="milli_reported")
    share: Number
    rounds: int
    rounds_missed: int
    first_at: Number
    last_at: Number
    is_here: bool
    today: Standing
    week: Standing
    machines: list[Machine]


class Contributors(Answer):
    num_contributors: int
    num_found: int
    num_unverified: int
    witnessed_tokens: Number
    witnessed_milli_tokens: int
    contributors: list[Contributor]
    next_offset: int | None


class CurvePoint(Model):
    at: Number
    tokens_witnessed: Number
    tokens_reported: Number
    milli_tokens_witnessed: int = Field(validation_alias="milli_witnessed")
    milli_tokens_reported: int = Field(validation_alias="milli_reported")
    rounds: int


class Day(Model):
    """`day` is counted from 1 January 1970 (UTC)."""

    day: int
    milli_tokens_witnessed: int = Field(validation_alias="milli_witnessed")
    rounds: int


class ContributorPage(Answer):
    contributor: Contributor
    num_ranked: int
    days: list[Day]
    curve: list[CurvePoint]
    rounds: list[Round]


class Behind(Model):
    peer_id: str
    versions: int


class Strip(Model):
    at: Number
    largest_lag: int
    mean_lag: Annotated[Number, BeforeValidator(lambda lag: round(lag, 3))]
    num_peers: int


class Fragment(Model):
    fragment: int
    behind: list[Behind]
    strip: list[Strip]


class Fragments(Answer):
    fragments: list[Fragment]


class Event(Model):
    number: int
    at: Number
    kind: str
    peer_id: TextOrNull
    tokens: int
    fragment: int | None
    version: int | None


class Events(Answer):
    events: list[Event]
    next_after: int


class Mark(Model):
    at: Number
    committed_tokens: int = Field(validation_alias="tokens")
    kind: str
    peer_id: TextOrNull
    who: TextOrNull = Field(description="The peer's name.")
    text: TextOrNull = Field(description="Of a note: the organiser's words.")


class Points(Answer):
    x: str
    names: list[str]
    columns: list[list[Number | None]]
    marks: list[Mark]


AnyAnswer = TypeVar("AnyAnswer", bound=Answer)

_SIGNED: Final = ("leader", "tokens", "contributors", "num_missed", "num_void_shards", "duration_seconds")
"""What a signed commit tells of a round."""
NOT_DRAWN: Final = ("tokens_per_second", "download_bits_per_second")
"""Columns of points of which the page has no curve."""


async def run(site: Site, query: Query) -> Run:
    """The run, its swarm and the loss curve."""
    state, history = site.live.state, site.live.history
    owner = state.run
    return answer_of(
        Run,
        site,
        REPORTED,
        **_said(owner, "name", "description", "what", "organiser", "page", "licence", "revision"),
        **_said(owner, "model_kind", "code", "command"),
        figures=state.view.to_json(),
        notes=owner.notes if owner else (),
        progress=progress_of(state, history, result_of(state, history).tokens),
        manifest_hash=owner.manifest_hash.hex() if owner else None,
        watching_since=state.started_at,
        history_since=history.started_at,
        num_witnessed_rounds=history.num_rounds,
        **_witnessed(history),
        countries=[{"country": name, "num_contributors": count} for name, count in history.countries],
        missing_rounds=history.missing,
        storage_problem=history.problem,
        losses=_losses(history.points),
    )


async def join(site: Site, query: Query) -> Join:
    """Run, addresses and link for those who want to join, as `peer join` reads them from a page's address."""
    state = site.live.state
    owner = state.run
    return answer_of(
        Join,
        site,
        REPORTED,
        **_said(owner, "name", "page", "is_private", "model_kind"),
        link=str(state.join_link),
        addresses=state.join_addresses,
        manifest_hash=owner.manifest_hash.hex() if owner else None,
    )


async def peers(site: Site, query: Query) -> Peers:
    """Everyone seen lately, without addresses."""
    return answer_of(Peers, site, REPORTED)


async def rounds(site: Site, query: RoundsQuery) -> Rounds:
    """Where each fragment stands, and rounds, newest first."""
    state = site.live.state
    found = await site.reader.rounds(query.limit, query.before)
    next_before = found[-1][0] if len(found) == query.limit else None
    shown = [round_of(facts, number) for number, facts in found]
    if not found and query.before is None:
        # Of a run whose commits are not known here peer records tell a little.
        shown = [round_of(facts) for facts in state.rounds[: query.limit]]
    basis = WITNESSED if found else REPORTED
    return answer_of(Rounds, site, basis, rounds=shown, next_before=next_before)


async def contributors(site: Site, query: ContributorsQuery) -> Contributors:
    """Contributors with what others witnessed of them."""
    history = site.live.history
    rows = found_contributors(history, query)
    end = query.offset + query.limit
    return answer_of(
        Contributors,
        site,
        WITNESSED,
        num_found=len(rows),
        **_witnessed(history),
        contributors=rows[query.offset : end],
        next_offset=end if end < len(rows) else None,
    )


def contributor(site: Site, view: ContributorView) -> ContributorPage:
    """A contributor's own answer."""
    rounds = [round_of(facts) for facts in view.rounds]
    return answer_of(
        ContributorPage,
        site,
        WITNESSED,
        contributor=view.row,
        num_ranked=view.num_ranked,
        days=view.days,
        curve=view.curve,
        rounds=rounds,
    )


async def fragments(site: Site, query: Query) -> Fragments:
    """How far peers are behind with each fragment."""
    rows = [
        {
            "fragment": row.fragment,
            "behind": [{"peer_id": peer_id, "versions": lag} for peer_id, lag in row.ages],
            "strip": row.strip,
        }
        for row in site.live.history.fragments
    ]
    return answer_of(Fragments, site, REPORTED, fragments=rows)


async def events(site: Site, query: EventsQuery) -> Events:
    """What happened, oldest first."""
    found = await site.reader.events(query.after, query.limit)
    return answer_of(Events, site, REPORTED, events=found, next_after=found[-1].number if found else query.after)


async def points(site: Site, query: PointsQuery) -> Points:
    """The curves as columns."""
    history = site.live.history
    found = list(thinned(history.points, query.max))
    if query.max > len(found):
        found = await site.reader.points(0.0, query.max) or found
    names, columns = columns_of(found, query.x)
    if query.columns == "drawn":
        kept = [place for place, name in enumerate(names) if name not in NOT_DRAWN]
        names, columns = [names[place] for place in kept], [columns[place] for place in kept]
    columns = rounded(columns, query.digits)
    marks = annotations_of(site.live.state, history)
    return answer_of(Points, site, REPORTED, x=query.x, names=names, columns=columns, marks=marks)


def round_of(facts: RoundFacts, number: int | None = None) -> Round:
    """A round, as in every answer and export."""
    place = {"fragment": facts.fragment, "version": facts.version + 1, "seen_at": facts.seen_at}
    if not facts.leader:
        return Round.model_validate(place | {"num_rounds": facts.num_rounds, "source": "peer records"})
    signed = {name: getattr(facts, name) for name in _SIGNED}
    drops = [{"reason": reason, "count": count} for reason, count in facts.drop_reasons]
    return Round.model_validate({**place, **signed, "number": number, "source": "commit record", "drop_reasons": drops})


def answer_of(model: type[AnyAnswer], site: Site, basis: str, **content: Any) -> AnyAnswer:
    """An answer. A field that `content` does not have is the one of this name of the state, or else of the history."""
    state, history = site.live.state, site.live.history
    content |= {"basis": basis, "observed_at": state.now}
    wanted = [name for name, field in model.model_fields.items() if field.is_required() and name not in content]
    found = {name: getattr(state if hasattr(state, name) else history, name) for name in wanted}
    return model.model_validate(found | content)


def _said(owner: ShownManifest | None, *names: str) -> dict[str, Any]:
    """What the owner signed; null while nobody has given it."""
    return {name: getattr(owner, name) if owner else None for name in names}


def _losses(points: Sequence[HistoryPoint]) -> Sequence[HistoryPoint]:
    """Where something changed, of points that have a loss."""
    told = attrgetter("validation_loss", "train_loss", "tokens", "num_trainers", "tokens_per_second")
    firsts = [(figures, next(same)) for figures, same in groupby(points, told)]
    return thinned([point for figures, point in firsts if figures[:2] != (None, None)], MAX_LOSSES)


def _witnessed(history: HistoryView) -> dict[str, Any]:
    return {
        "num_contributors": len(history.contributors),
        "witnessed_tokens": history.tokens_witnessed,
        "witnessed_milli_tokens": history.milli_witnessed,
    }

"""The API's answers: the read model, with schemas generated from its fields.

Each answer contains the basis of its values (`basis`) and the time of their observation (`observed_at`, unix seconds).
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar, get_type_hints

from pydantic import AliasPath, BaseModel, ConfigDict, Field, create_model

from dashboard.history.thinned_curves import columns_of, rounded, thinned
from dashboard.history_facts import (
    ChartMark,
    ContributorRow,
    ContributorView,
    DayOfWork,
    Gap,
    MissingRounds,
    ModelSample,
    RoundFacts,
    TaskScore,
    TrafficTotals,
    WorkPoint,
)
from dashboard.observe.dashboard_state import FragmentRow
from dashboard.observe.listed_peers import PeerRow
from dashboard.observe.shown_manifest import RunNote, ShownManifest
from dashboard.page.annotations import annotations_of
from dashboard.page.goal_progress import GoalProgress, progress_of
from dashboard.server.api_queries import ContributorsQuery, PointsQuery, Query, RoundsQuery
from dashboard.server.contributor_search import found_contributors
from dashboard.server.handler_context import Site
from dht.records.peer_record import PeerRecord
from peer.view.run_view import FIGURES, MEMBER_FIGURES, RunView

SCHEMA: Final = 1
REPORTED: Final = "reported"
"""Stated by peers themselves, unchecked."""
WITNESSED: Final = "witnessed"
"""Signed by other members of the round."""
COMPUTED: Final = "computed"
"""Computed by this page's machine."""


class Model(BaseModel):
    """Base of answers, filled from attributes of facts; `validation_alias` is set where the names differ."""

    model_config = ConfigDict(from_attributes=True, serialize_by_alias=True)


_RUN_HINTS: Final = get_type_hints(RunView)
_RUN_FIELDS: Final[dict[str, Any]] = {name: (_RUN_HINTS[name], ...) for name in FIGURES}
RunFigures: Final = create_model("RunView", __base__=Model, **_RUN_FIELDS)
"""Model with the figures of `RunView` as fields."""


class Answer(Model):
    """Common fields of all answers. Missing texts are empty."""

    schema_: int = Field(SCHEMA, serialization_alias="schema")
    basis: str
    run_id: str
    observed_at: float
    heard_at: float | None
    problem: str


class Run(Answer):
    figures: RunFigures  # type: ignore[valid-type]  # made of the fields of another type
    phase: str
    name: str | None
    description: str | None
    what: str | None
    page: str | None
    licence: str | None
    notes: tuple[RunNote, ...]
    progress: GoalProgress | None
    join_addresses: tuple[str, ...]
    revision: int | None
    manifest_hash: str | None
    model_kind: str | None
    code: str | None
    watching_since: float
    history_since: float
    num_witnessed_rounds: int
    milli_tokens_witnessed: int
    num_contributors: int
    num_unverified: int
    bandwidth: TrafficTotals
    gaps: tuple[Gap, ...]
    missing: tuple[MissingRounds, ...]
    storage: str
    storage_problem: str


class Join(Answer):
    """Data that `peer join URL` reads from a page's address; each joiner checks the run's manifest against its id."""

    name: str | None
    link: str
    addresses: tuple[str, ...]
    manifest_hash: str | None
    page: str | None
    is_private: bool | None
    has_ended: bool
    model_kind: str | None


_RECORD_HINTS: Final = get_type_hints(PeerRecord)
_ROW_HINTS: Final = get_type_hints(PeerRow)
_PEER_FIELDS: Final[dict[str, Any]] = {
    **{name: (_RECORD_HINTS[name], Field(validation_alias=AliasPath("record", name))) for name in MEMBER_FIGURES},
    **{name: (_ROW_HINTS[name], ...) for name in ("condition", "same_manifest", "first_heard_at", "heard_at")},
}
Peer: Final = create_model("Peer", __base__=Model, **_PEER_FIELDS)
"""The figures of a member, and observations of it."""


class Peers(Answer):
    num_unlisted: int
    num_invalid_records: int
    peers: tuple[Peer, ...]  # type: ignore[valid-type]  # made of the fields of other types


class Round(Model):
    """`version` is the version that the round reached. A round from peer records has no further fields."""

    number: int | None = None
    fragment: int
    version: int
    seen_at: float
    num_rounds: int = 1
    source: Literal["commit record", "peer records"]
    leader: str | None = None
    tokens: int | None = None
    contributors: tuple[str, ...] | None = None
    num_missed: int | None = None
    num_void_shards: int | None = None
    drop_reasons: dict[str, int] = {}


class Rounds(Answer):
    fragments: tuple[FragmentRow, ...]
    rounds: list[Round]
    next_before: int | None


class Contributors(Answer):
    num_contributors: int
    num_found: int
    num_unverified: int
    milli_tokens_witnessed: int
    contributors: tuple[ContributorRow, ...]
    next_offset: int | None


class ContributorPage(Answer):
    contributor: ContributorRow
    num_ranked: int
    days: tuple[DayOfWork, ...]
    curve: tuple[WorkPoint, ...]
    rounds: list[Round]


class Points(Answer):
    x: str
    names: list[str]
    columns: list[list[float | None]]
    marks: tuple[ChartMark, ...]


class Samples(Answer):
    samples: tuple[ModelSample, ...]


class Evaluations(Answer):
    evaluations: tuple[TaskScore, ...]


AnyAnswer = TypeVar("AnyAnswer", bound=Answer)

_SIGNED: Final = ("leader", "tokens", "contributors", "num_missed", "num_void_shards")
"""Fields of a round that come from its signed commit."""


async def run(site: Site, query: Query) -> Run:
    """Return the run and its swarm."""
    state, history = site.live.state, site.live.history
    owner = state.run
    return answer_of(
        Run,
        site,
        REPORTED,
        **_said(owner, "name", "description", "what", "page", "licence", "revision"),
        **_said(owner, "model_kind", "code"),
        figures=state.view,
        notes=owner.notes if owner else (),
        progress=progress_of(state, history),
        manifest_hash=owner.manifest_hash.hex() if owner else None,
        watching_since=state.started_at,
        history_since=history.started_at,
        num_witnessed_rounds=history.num_rounds,
        num_contributors=len(history.contributors),
        storage_problem=history.problem,
    )


async def join(site: Site, query: Query) -> Join:
    """Return run, addresses and link for newcomers; `peer join` reads them from a page's address."""
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
    """Return all recently seen peers, without addresses."""
    return answer_of(Peers, site, REPORTED)


async def rounds(site: Site, query: RoundsQuery) -> Rounds:
    """Return the state of each fragment, and rounds, newest first."""
    state = site.live.state
    found = await site.history.rounds(query.limit, query.before)
    next_before = found[-1][0] if len(found) == query.limit else None
    shown = [round_of(facts, number) for number, facts in found]
    if not found and query.before is None:
        # Without known commits, peer records provide a few facts about rounds.
        shown = [round_of(facts) for facts in state.rounds[: query.limit]]
    basis = WITNESSED if found else REPORTED
    return answer_of(Rounds, site, basis, rounds=shown, next_before=next_before)


async def contributors(site: Site, query: ContributorsQuery) -> Contributors:
    """Return contributors with their witnessed work."""
    history = site.live.history
    rows = found_contributors(history, query)
    end = query.offset + query.limit
    return answer_of(
        Contributors,
        site,
        WITNESSED,
        num_contributors=len(history.contributors),
        num_found=len(rows),
        contributors=rows[query.offset : end],
        next_offset=end if end < len(rows) else None,
    )


def contributor(site: Site, view: ContributorView) -> ContributorPage:
    """Return the answer about one contributor."""
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


async def points(site: Site, query: PointsQuery) -> Points:
    """Return the curves as columns."""
    history = site.live.history
    found = list(thinned(history.points, query.max))
    if query.max > len(found):
        found = await site.history.points(0.0, query.max) or found
    names, columns = columns_of(found, query.x)
    columns = rounded(columns, query.digits)
    marks = annotations_of(site.live.state, history)
    return answer_of(Points, site, REPORTED, x=query.x, names=names, columns=columns, marks=marks)


async def samples(site: Site, query: Query) -> Samples:
    """Return the committed model's texts over time, oldest first, written by this page from confirmed anchors."""
    return answer_of(Samples, site, COMPUTED)


async def evaluations(site: Site, query: Query) -> Evaluations:
    """Return the model's task scores over tokens, as the owner of this page measured them."""
    return answer_of(Evaluations, site, COMPUTED, evaluations=site.live.history.scores)


def round_of(facts: RoundFacts, number: int | None = None) -> Round:
    """Return a round in the form of all answers and exports."""
    place = {"fragment": facts.fragment, "version": facts.version + 1, "seen_at": facts.seen_at}
    if not facts.leader:
        return Round.model_validate(place | {"num_rounds": facts.num_rounds, "source": "peer records"})
    signed = {name: getattr(facts, name) for name in _SIGNED}
    return Round.model_validate(
        {**place, **signed, "number": number, "source": "commit record", "drop_reasons": dict(facts.drop_reasons)}
    )


def answer_of(model: type[AnyAnswer], site: Site, basis: str, **content: Any) -> AnyAnswer:
    """Return an answer. Fields missing in `content` come from the state or, if it lacks them, from the history."""
    state, history = site.live.state, site.live.history
    content |= {"basis": basis, "observed_at": state.now}
    wanted = [name for name, field in model.model_fields.items() if field.is_required() and name not in content]
    found = {name: getattr(state if hasattr(state, name) else history, name) for name in wanted}
    return model.model_validate(found | content)


def _said(owner: ShownManifest | None, *names: str) -> dict[str, Any]:
    """Return fields of the signed manifest; null while it is unknown."""
    return {name: getattr(owner, name) if owner else None for name in names}

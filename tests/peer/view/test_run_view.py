"""One member's lies, or any number of free records, do not move where a run is and how good it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from dht.records.peer_record import PeerRecord
from peer.view.run_view import RunView, run_view_of
from tests.kit.records import make_record

HONEST = tuple(
    make_record(
        name,
        versions=(50, 49),
        digests=(b"a" * 8, b"b" * 8),
        lineage_tokens=(9000, 8800),
        evaluation=Evaluation(loss, version),
        tokens_per_second=speed,
    )
    for name, loss, version, speed in (("A", 2.41, 97, 900.0), ("B", 2.40, 98, 1100.0), ("C", 2.42, 96, 1000.0))
)
LIES: tuple[dict[str, Any], ...] = (
    {"versions": (2**53 - 1, 2**53 - 1)},
    {"versions": (0, 0)},
    {"versions": (7,) * 90, "digests": (b"a" * 8,) * 90, "lineage_tokens": (1,) * 90},
    {"lineage_tokens": (2**60, 2**60)},
    {"evaluation": Evaluation(0.0001, 99)},
    {"evaluation": Evaluation(0.0001, 2**62)},
    {"evaluation": Evaluation(-1e18, 99)},
    {"evaluation": Evaluation(1e18, 99)},
    {"tokens_per_second": 1e18},
    {"tokens": 2**62},
)
EVERY_LIE = {key: value for lie in LIES for key, value in lie.items() if key not in ("digests",)} | {
    "versions": (2**53 - 1, 2**53 - 1),
    "lineage_tokens": (2**60, 2**60),
}


def liar(name: str, lie: dict[str, Any]) -> PeerRecord:
    return replace(make_record(name), **{**{key: getattr(HONEST[0], key) for key in _TOLD}, **lie})


_TOLD = ("versions", "digests", "lineage_tokens", "evaluation", "tokens_per_second")


def figures(view: RunView) -> tuple[object, ...]:
    return view.versions, view.committed_tokens, view.evaluation


@pytest.mark.parametrize("lie", [*LIES, EVERY_LIE], ids=lambda lie: "+".join(f"{k}={v}"[:40] for k, v in lie.items()))
def test_one_liar_with_as_much_signed_work_as_the_others_moves_nothing(lie: dict[str, Any]) -> None:
    for work in ({}, {"A": 100, "B": 100, "C": 100, "LIAR": 100}):
        view = run_view_of([*HONEST, liar("LIAR", lie)], work)
        assert view.versions == (50, 49)
        assert view.committed_tokens == 9000
        assert view.evaluation is not None
        assert 2.40 <= view.evaluation.loss <= 2.42
        assert view.tokens_per_second <= 3 * 1000 + 4 * 1100


@pytest.mark.parametrize("num_honest", [1, 2, 3])
@pytest.mark.parametrize("num_free", [1, 10, 200])
def test_free_records_count_for_nothing_beside_signed_work(num_honest: int, num_free: int) -> None:
    honest = HONEST[:num_honest]
    free = [liar(f"FREE{number}", EVERY_LIE) for number in range(num_free)]
    alone = run_view_of(honest)
    view = run_view_of([*free, *honest], {one.peer_id: 7 for one in honest})
    assert replace(view, num_members=num_honest, has_signed_work=False) == alone
    assert view.trainers == honest
    assert len(run_view_of([*free, *honest]).trainers) == num_free + num_honest, "nobody has worked yet"


def test_words_weigh_what_the_work_of_their_members_weighs() -> None:
    liars = [liar(name, {"evaluation": Evaluation(0.0001, 97), "versions": (70, 70)}) for name in ("X", "Y", "Z")]
    work = {"A": 1000, "X": 10, "Y": 10, "Z": 10}
    assert figures(run_view_of([HONEST[0], *liars], work)) == figures(run_view_of([HONEST[0]]))


def test_of_two_equal_members_the_one_that_claims_less_counts() -> None:
    boast = liar(
        "X", {"versions": (2**53 - 1, 2**53 - 1), "lineage_tokens": (2**60, 0), "evaluation": Evaluation(0.0001, 97)}
    )
    assert figures(run_view_of([HONEST[0], boast])) == ((50, 49), 9000, Evaluation(2.41, 97))


def test_an_old_measurement_is_of_another_model() -> None:
    old = replace(HONEST[0], evaluation=Evaluation(5.3, 20))
    assert figures(run_view_of([old, HONEST[1]]))[2:] == (Evaluation(2.40, 98),)


def test_before_anybody_has_an_anchor_nothing_is_known() -> None:
    assert figures(run_view_of([])) == ((), 0, None)
    assert figures(run_view_of([make_record("A")])) == ((), 0, None)
    assert figures(run_view_of([make_record("A"), make_record("B")], {PeerId("A"): 5})) == ((), 0, None)


def test_a_fast_member_counts_whole_once_its_work_is_signed() -> None:
    slow = [replace(one, tokens_per_second=100.0) for one in HONEST]
    fast = replace(HONEST[0], peer_id=make_record("F").peer_id, tokens_per_second=50_000.0)
    work = {"A": 100, "B": 100, "C": 100, "F": 50_000}
    assert run_view_of([*slow, fast], work).tokens_per_second == 50_300.0


@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(1.0, 5.0)), min_size=2, max_size=7),
    st.integers(0, 2**53 - 1),
    st.none() | st.builds(Evaluation, st.floats(-1e18, 1e18), st.integers(0, 2**62)),
)
def test_a_minority_never_leads_beyond_what_honest_members_say(
    honest: list[tuple[int, float]], version: int, evaluation: Evaluation | None
) -> None:
    records = [
        make_record(
            f"H{place}",
            versions=(at,),
            digests=(bytes(8),),
            lineage_tokens=(at,),
            evaluation=Evaluation(told, at),
        )
        for place, (at, told) in enumerate(honest)
    ]
    lie = {"versions": (version,), "digests": (bytes(8),), "lineage_tokens": (version,)}
    liar = make_record("L", **lie, evaluation=evaluation)
    view = run_view_of([*records, liar])
    assert view.versions[0] <= max(at for at, _ in honest)
    assert view.committed_tokens <= max(at for at, _ in honest)  # their clocks are their versions here
    if view.evaluation is not None:
        assert view.evaluation.loss >= min(told for _, told in honest)

"""What a peer sees of the others: ranks, names, in bounded memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from dht.records.peer_record import PeerRecord
from dht.records.profiles import Profile
from peer.view.swarm_seen import NUM_ROWS, ProfileLooks, SwarmSeen, SwarmWatch
from tests.kit.records import make_record

ME = PeerId("me")


def record(peer_id: str, tokens: int, **changes: Any) -> PeerRecord:
    return make_record(peer_id, tokens=tokens, tokens_per_second=10.0, **changes)


def said(name: str, country: str, machines: tuple[PeerId, ...]) -> dict[bytes, Profile]:
    return {b"k" * 32: Profile("", PeerId("k"), 1, 0.0, 0.0, name, country, False, machines)}


def places(seen: SwarmSeen) -> list[tuple[int, str, int]]:
    return [(row.rank, row.peer_id, row.tokens) for row in seen.rows]


def test_people_are_ranked_by_their_work_on_all_their_machines() -> None:
    both = {"contributor_key": b"k" * 32}
    watch = SwarmWatch(ME, "Ada", "ada-id")
    watch.take_profiles(said("Ada", "NL", (ME, PeerId("mine"))))
    seen = watch.look(
        [
            record("me", 100, **both),
            record("mine", 300, state="serving", **both),
            record("other", 350, name="Kiran"),
            record("seed", 0, role="seed", state="serving"),
        ],
        1.0,
    )
    assert places(seen) == [(1, "me", 400), (2, "other", 350)]
    assert seen.own_row is not None
    assert (seen.own_row.name, seen.own_row.doing) == ("Ada", "training")
    assert [row.num_machines for row in seen.rows] == [2, 1]
    counts = (seen.run.num_training, seen.run.num_paused, seen.run.num_seeds, seen.num_ranked)
    assert counts == (2, 1, 1, 2)
    # Who has left keeps the place, and is away.
    later = watch.look([record("me", 500, **both)], 2.0)
    assert places(later) == [(1, "me", 800), (2, "other", 350)]
    assert (later.rows[1].doing, later.num_ranked) == ("away", 2)


def test_a_machine_that_finds_its_person_is_not_counted_twice() -> None:
    """As on the page: the key alone is a claim, and a profile that names the machine makes it true."""
    watch, key = SwarmWatch(PeerId("other")), {"contributor_key": b"k" * 32}
    assert places(watch.look([record("a", 100), record("other", 50)], 1.0)) == [(1, "a", 100), (2, "other", 50)]
    assert watch.look([record("a", 100, **key), record("b", 9, **key), record("other", 50)], 2.0).num_ranked == 3
    watch.take_profiles(said("Ada", "", (PeerId("a"), PeerId("b"))))
    seen = watch.look([record("a", 120, **key), record("b", 9, **key), record("other", 50)], 3.0)
    assert places(seen) == [(1, "a", 129), (2, "other", 50)]


def test_others_are_counted_once_and_silent_ones_apart() -> None:
    here = [
        record(ME, 5),
        record("a", 5),
        record("b", 5, state="serving"),
        record("s", 0, role="seed", state="serving"),
    ]
    seen = SwarmWatch(ME).look(here, 1.0, silent=[record("c", 5), record("d", 5, state="joining")])
    assert (seen.num_others, seen.num_silent) == (3, 2)
    assert (seen.num_other_trainers, seen.num_silent_trainers) == (2, 1)


def test_names_are_told_once_and_again_when_they_change() -> None:
    watch = SwarmWatch(ME)
    assert watch.look([record("a", 1, name="Kiran"), record("b", 2)], 1.0).names == (("a", "Kiran"),)
    assert watch.look([record("a", 1, name="Kiran"), record("b", 2)], 2.0).names == ()
    assert watch.look([record("a", 1, name="Jo"), record("b", 2)], 3.0).names == (("a", "Jo"),)


def test_a_profile_names_the_machines_that_it_lists_and_no_other() -> None:
    watch = SwarmWatch(ME)
    key = {"contributor_key": b"k" * 32}
    watch.take_profiles(said("Kiran", "NL", (PeerId("a"),)))
    seen = watch.look([record("a", 1, **key), record("thief", 2, name="I am Kiran", **key), record("b", 3)], 1.0)
    assert dict(seen.names) == {"a": "Kiran", "thief": "I am Kiran"}
    assert seen.own_name == ""
    # Of one whose key came to this machine without the file beside it.
    watch.take_profiles(said("Kiran", "NL", (PeerId("a"), ME)))
    assert watch.look([record("me", 1, **key)], 2.0).own_name == "Kiran"


def test_a_person_who_hides_is_not_named_by_any_of_their_machines() -> None:
    watch, key = SwarmWatch(ME, "Zoë"), {"contributor_key": b"k" * 32}
    here = [record(ME, 9, name="Zoë", **key), record("second", 1, name="Zoë's", **key)]
    profiles = said("Zoë", "NL", (ME, PeerId("second")))
    watch.take_profiles(profiles)
    watch.take_own_profile(b"k" * 32, profiles[b"k" * 32])
    assert watch.look(here, 1.0).own_name == "Zoë"
    hidden = replace(profiles[b"k" * 32], sequence=2, is_hidden=True, name="", country="")
    watch.take_own_profile(b"k" * 32, hidden)
    seen = watch.look(here, 2.0)
    assert (seen.own_name, [row.name for row in seen.rows]) == ("", [""])
    assert dict(seen.names) == {ME: "", "second": ""}
    # Said on another machine, before the file here has it.
    watch.take_profiles({b"k" * 32: replace(profiles[b"k" * 32], sequence=3, name="Zo")})
    watch.take_own_profile(b"k" * 32, hidden)
    assert watch.look(here, 3.0).own_name == "Zoë", "given to this machine"


def test_a_newcomer_of_somebody_is_looked_up_soon_and_a_flood_is_not_followed() -> None:
    watch, key = SwarmWatch(ME), {"contributor_key": b"k" * 32}
    watch.take_profiles(said("Kiran", "NL", (PeerId("a"),)))
    looks = ProfileLooks(0.0)
    known = watch.strangers([record("a", 1, **key), record("b", 1)])
    assert known == set()
    assert [now for now in range(1300) if looks.is_due(known, now)] == [10, 610, 1210]
    # Kiran's second machine, which the profile names a little later, or never.
    newcomer = watch.strangers([record("a", 1, **key), record("second", 1, **key)])
    assert [now for now in range(1300, 1900) if looks.is_due(newcomer, now)] == [1300, 1330]
    flood = [{PeerId(str(number))} for number in range(300)]
    asked = [number for number, made_up in enumerate(flood) if looks.is_due(made_up, 1900 + number)]
    assert asked == list(range(0, 300, 30))
    assert not any(ProfileLooks(0.0).is_due(newcomer, now) for now in range(10)), "while the state comes"


def test_the_loss_is_that_of_the_newest_version() -> None:
    seen = SwarmWatch(ME).look(
        [
            record("a", 1, versions=(5, 4), evaluation=Evaluation(5.3, 3)),
            record("b", 1, versions=(5, 4), evaluation=Evaluation(2.5, 9)),
            record("c", 1),
        ],
        1.0,
    )
    assert seen.run.evaluation == Evaluation(2.5, 9)


def test_the_loss_does_not_go_back_to_an_older_version_when_its_member_leaves() -> None:
    watch, older = SwarmWatch(ME), {"evaluation": Evaluation(5.3, 3)}
    watch.look([record("b", 1, versions=(5, 4), evaluation=Evaluation(2.5, 9))], 1.0)
    assert watch.look([record("a", 1, versions=(5, 4), **older)], 2.0).run.evaluation == Evaluation(2.5, 9)
    assert watch.look([record("a", 1, versions=(5, 3), **older)], 3.0).run.evaluation == Evaluation(5.3, 3), (
        "nobody has that version"
    )


def test_free_records_take_no_rank_and_no_word_on_the_loss() -> None:
    watch, work = SwarmWatch(ME), {ME: 500, PeerId("other"): 400}
    honest = [record(one, tokens, versions=(5, 4), evaluation=Evaluation(2.5, 9)) for one, tokens in work.items()]
    lies = {"versions": (2**53 - 1,) * 2, "evaluation": Evaluation(0.0001, 9)}
    free = [record(f"free{number}", 2**62, **lies) for number in range(10)]
    before = watch.look([*honest, *free], 0.5)
    assert (before.num_ranked, before.run.num_training) == (12, 12), "nobody has worked yet"
    watch.look([*honest, *free], 1.0, work=work)
    more = [replace(one, tokens=one.tokens + 100) for one in (*honest, *free)]
    seen = watch.look(more, 2.0, work=work)
    assert places(seen) == [(1, "me", 600), (2, "other", 500)]
    assert seen.run.evaluation == Evaluation(2.5, 9)
    assert seen.run.num_training == 2


def test_of_many_the_first_and_the_neighbours_are_listed() -> None:
    many = [record(f"p{n:03}", 10_000 - n) for n in range(100)]
    seen = SwarmWatch(PeerId("p050")).look(many, 1.0)
    assert [row.rank for row in seen.rows] == [*range(1, NUM_ROWS - 2), 50, 51, 52]
    assert seen.own_row is not None
    assert (seen.own_row.rank, seen.num_ranked) == (51, 100)


def test_a_flood_of_keys_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.view.swarm_seen.MAX_PEOPLE", 10)
    watch = SwarmWatch(ME)
    for batch in range(20):
        seen = watch.look([record("me", 1), *(record(f"{batch}-{n}", 1, name="x") for n in range(5))], float(batch))
        assert seen.num_ranked <= 17


def test_it_passes_through_json() -> None:
    watch = SwarmWatch(ME, "Ada")
    seen = watch.look(
        [record("me", 5), record("a", 1, name="Kiran", evaluation=Evaluation(2.0, 1))], 1.0, (PeerId("a"),)
    )
    assert SwarmSeen.from_fields(json.loads(json.dumps(seen.to_json()))) == replace(
        seen, run=replace(seen.run, electors=())
    )

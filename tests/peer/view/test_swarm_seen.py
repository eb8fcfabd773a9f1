"""What a peer sees of the others: names, and how many answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from dht.records.peer_record import PeerRecord
from dht.records.profiles import Profile
from peer.view.swarm_seen import NUM_ROWS, SwarmSeen, SwarmWatch
from tests.kit.records import make_record

ME = PeerId("me")


def record(peer_id: str, tokens: int, **changes: Any) -> PeerRecord:
    return make_record(peer_id, tokens=tokens, tokens_per_second=10.0, **changes)


def said(name: str, country: str, machines: tuple[PeerId, ...]) -> dict[bytes, Profile]:
    return {b"k" * 32: Profile("", PeerId("k"), 1, 0.0, 0.0, name, country, False, machines)}


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


def test_trainers_that_have_worked_are_listed_and_this_peer_always() -> None:
    work = {PeerId(f"p{number:02}"): 5 for number in range(20)}
    here = [record(one, 1000 + number, versions=(5, 4)) for number, one in enumerate(work)]
    here += [record(ME, 3, name="Ada"), record("free", 2**62), record("s", 0, role="seed", state="serving")]
    rows = SwarmWatch(ME).look(here, 1.0, work=work).rows
    assert [row.peer_id for row in rows] == [*(f"p{number:02}" for number in range(19, 20 - NUM_ROWS, -1)), ME]
    assert (rows[-1].name, rows[-1].is_own, rows[0].doing) == ("Ada", True, "training")


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
    assert seen.own_name == ""
    assert dict(seen.names) == {ME: "", "second": ""}
    # Said on another machine, before the file here has it.
    watch.take_profiles({b"k" * 32: replace(profiles[b"k" * 32], sequence=3, name="Zo")})
    watch.take_own_profile(b"k" * 32, hidden)
    assert watch.look(here, 3.0).own_name == "Zoë", "given to this machine"


def test_it_passes_through_json() -> None:
    watch = SwarmWatch(ME, "Ada")
    seen = watch.look([record("me", 5), record("a", 1, name="Kiran", evaluation=Evaluation(2.0, 1))], 1.0)
    assert SwarmSeen.from_fields(json.loads(json.dumps(seen.to_json()))) == replace(
        seen, run=replace(seen.run, electors=())
    )

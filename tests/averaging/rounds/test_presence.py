"""Which members count: those with work in signed commits, and records of others change nothing."""

from __future__ import annotations

from averaging.rounds.presence import COUNTED_COMMITS, MemberPresence, beside, established_in, most_newcomers
from averaging.wire.messages import DIGEST_BYTES, Commit, RosterEntry, ShardResult
from dht.ground.host import PeerId
from tests.kit.network.memory_networks import named
from tests.kit.rounds.exchange_swarm import Swarm, scenario

MEMBERS = tuple(sorted(named(number) for number in range(8)))
FREE_KEYS = tuple(named(1000 + number) for number in range(100))


def commit_of(version: int, members: tuple[PeerId, ...], leader: PeerId | None = None) -> Commit:
    roster = tuple(RosterEntry(peer_id, 10, 1, version, version) for peer_id in sorted(members))
    shards = (ShardResult(0, 8, 0, bytes(DIGEST_BYTES), tuple(range(len(roster)))),)
    return Commit(0, version, 0, leader or roster[version % len(roster)].peer_id, bytes(DIGEST_BYTES), roster, shards)


def commits_of(first: int, end: int, members: tuple[PeerId, ...]) -> list[Commit]:
    return [commit_of(version, members) for version in range(first, end)]


def test_records_alone_do_not_count_beside_work():
    presence = MemberPresence(MEMBERS[0])
    presence.follow(0, commits_of(0, 4, MEMBERS[:3]))
    seen = presence.see([*MEMBERS[:3], *FREE_KEYS])
    assert (set(seen.trainers), seen.newcomers, seen.num_known) == (set(MEMBERS[:3]), (), 3)


def test_keys_that_open_streams_stay_newcomers_until_they_have_work_in_commits_of_two_leaders():
    presence = MemberPresence(MEMBERS[0])
    presence.follow(0, commits_of(0, 4, MEMBERS[:3]))
    for peer_id in (*FREE_KEYS, MEMBERS[4]):
        presence.meet(peer_id)
    everyone = [*MEMBERS[:5], *FREE_KEYS]
    seen = presence.see(everyone)
    assert set(seen.trainers) == set(MEMBERS[:3])
    assert set(seen.newcomers) == {MEMBERS[4], *FREE_KEYS}
    grown = (*MEMBERS[:3], MEMBERS[4])
    commits = [*commits_of(0, 4, MEMBERS[:3]), commit_of(4, grown, MEMBERS[0])]
    presence.follow(0, commits)
    assert MEMBERS[4] not in presence.see(everyone).trainers
    presence.follow(0, [*commits, commit_of(5, grown, MEMBERS[1])])
    assert set(presence.see(everyone).trainers) == set(grown)


def test_a_round_gives_newcomers_that_take_part_time_to_offer_and_only_as_many_as_count():
    """Red as long as the first few that are established wait for nobody else: they went on among themselves."""
    presence = MemberPresence(MEMBERS[0])
    presence.follow(0, commits_of(0, 4, MEMBERS[:2]))
    everyone = [*MEMBERS, *FREE_KEYS]
    presence.meet(MEMBERS[5])
    assert set(presence.see(everyone).awaited) == set(MEMBERS[:2])
    presence.take_part(MEMBERS[4])
    seen = presence.see(everyone)
    assert set(seen.awaited) == {*MEMBERS[:2], MEMBERS[4]}
    assert set(seen.trainers) == set(MEMBERS[:2])
    for peer_id in FREE_KEYS:
        presence.take_part(peer_id)
    presence.take_part(MEMBERS[4])
    awaited = presence.see(everyone).awaited
    assert (len(awaited), MEMBERS[4] in awaited) == (2 + 4, True)


def test_in_a_flood_before_a_first_round_those_are_awaited_that_took_part():
    """Not all records: of those an honest commit of all has no quarter in it."""
    presence = MemberPresence(MEMBERS[0])
    for peer_id in MEMBERS[1:]:
        presence.take_part(peer_id)
    assert set(presence.see([*MEMBERS, *FREE_KEYS]).awaited) == set(MEMBERS)


def test_before_anybody_is_established_a_round_with_own_work_needs_no_quarter_of_free_keys():
    """Red as long as keys that introduce themselves are most of those of whom a first commit needs a quarter."""
    presence, everyone = MemberPresence(MEMBERS[0]), (*MEMBERS, *FREE_KEYS)
    of_all, of_others = commit_of(0, MEMBERS), commit_of(0, MEMBERS[1:3])
    assert presence.of_whom_a_quarter(of_all, everyone, ()) == (MEMBERS[0],)
    assert presence.of_whom_a_quarter(of_others, everyone, ()) == everyone
    presence.follow(0, commits_of(0, 2, MEMBERS))
    assert presence.of_whom_a_quarter(of_all, everyone, ()) == everyone


def test_before_anybody_is_established_the_first_member_that_was_met_is_not_all_there_is():
    """Red as long as a peer that knows records of others follows the lone commit of the first key that calls it."""
    presence, alone = MemberPresence(MEMBERS[0]), commit_of(0, FREE_KEYS[:1], FREE_KEYS[0])
    met = (MEMBERS[0], FREE_KEYS[0])
    assert presence.of_whom_a_quarter(alone, met, ()) == met
    assert presence.of_whom_a_quarter(alone, met, MEMBERS[1:]) == (*met, MEMBERS[1])
    presence.follow(0, commits_of(0, 2, MEMBERS[:2]))
    assert presence.of_whom_a_quarter(alone, met, MEMBERS[1:]) == met


def test_one_leader_brings_no_keys_along():
    """A roster is its leader's word: only its reducers sign who was in a mean, and it chooses them."""
    honest = commits_of(0, 4, MEMBERS[:3])
    alone = [commit_of(version, (MEMBERS[3], *FREE_KEYS), MEMBERS[3]) for version in range(4, 8)]
    assert established_in([*honest, *alone]) == set(MEMBERS[:3])


def test_one_leader_keeps_nobody_out():
    """A liar that closes a run's first rounds alone is not all that counts."""
    alone = [commit_of(version, MEMBERS[:1]) for version in range(4)]
    assert established_in(alone) == set()
    presence = MemberPresence(MEMBERS[7])
    presence.follow(0, alone)
    for peer_id in MEMBERS[1:7]:
        presence.take_part(peer_id)
    assert set(presence.see([*MEMBERS, *FREE_KEYS]).trainers) == set(MEMBERS)


def test_in_a_flood_those_count_whose_work_stands_beside_ones_own():
    """Otherwise free keys go on leading the rounds of a young run, and none of them closes one."""
    first = commit_of(0, MEMBERS[:3])
    assert established_in([first]) == set()
    assert beside(MEMBERS[0], [first]) == set(MEMBERS[1:3])
    assert beside(MEMBERS[5], [first]) == beside(MEMBERS[0], [commit_of(0, MEMBERS[:1])]) == set()
    presence = MemberPresence(MEMBERS[0])
    presence.follow(0, [first])
    for peer_id in FREE_KEYS:
        presence.take_part(peer_id)
    assert set(presence.see([*MEMBERS[:3], *FREE_KEYS]).trainers) == set(MEMBERS[:3])
    assert set(presence.see(MEMBERS).trainers) == set(MEMBERS), "a first round leaves out many of an honest swarm"


def test_in_a_first_round_all_that_were_met_count_and_without_any_all_records():
    presence = MemberPresence(MEMBERS[0])
    assert set(presence.see(MEMBERS).trainers) == set(MEMBERS)
    presence.meet(MEMBERS[1])
    seen = presence.see([*MEMBERS, *FREE_KEYS])
    assert (set(seen.trainers), seen.num_known) == (set(MEMBERS[:2]), 2)
    for peer_id in FREE_KEYS[:20]:
        presence.meet(peer_id)
    assert presence.take_part(MEMBERS[1])
    assert not presence.take_part(MEMBERS[1])
    assert set(presence.see([*MEMBERS, *FREE_KEYS]).trainers) == set(MEMBERS[:2])


def test_a_member_that_vanished_counts_in_the_quorum_until_its_record_or_its_rounds_are_over():
    presence = MemberPresence(MEMBERS[0])
    presence.follow(0, commits_of(0, 4, MEMBERS))
    seen = presence.see(MEMBERS[:2], MEMBERS[2:])
    assert (set(seen.trainers), seen.num_known) == (set(MEMBERS[:2]), 8)
    assert presence.see(MEMBERS[:2], MEMBERS[2:5]).num_known == 5
    presence.follow(0, [*commits_of(0, 4, MEMBERS), *commits_of(4, 4 + COUNTED_COMMITS, MEMBERS[:2])])
    assert presence.see(MEMBERS[:2], MEMBERS[2:]).num_known == 2


def test_work_in_any_fragment_counts_and_another_lineage_replaces_it():
    presence = MemberPresence(MEMBERS[0])
    assert presence.follow(0, commits_of(0, 2, MEMBERS[:2]))
    assert presence.follow(1, commits_of(0, 2, MEMBERS[2:4]))
    assert not presence.follow(1, commits_of(0, 2, MEMBERS[2:4]))
    assert set(presence.see(MEMBERS).trainers) == set(MEMBERS[:4])
    presence.follow(1, ())
    assert set(presence.see(MEMBERS).trainers) == set(MEMBERS[:2])


def test_newcomers_weigh_at_most_a_quarter_and_at_least_one():
    assert [most_newcomers(number) for number in (0, 1, 4, 8, 40)] == [1, 1, 1, 2, 10]


def test_a_hundred_free_records_cost_no_rounds():
    """Red as long as the quorum is a share of the records, and most leaders are keys without a host."""

    rounds: list[int] = []

    async def play():
        swarm = Swarm(3, sizes=(300,))
        for keys in ((), FREE_KEYS):
            if keys:
                await swarm.close()
                swarm = Swarm(3, sizes=(300,))
            await swarm.train(3, 4.0)
            before = swarm.live()[0].fragments[0].state.version
            for peer in swarm.live():
                peer.exchange.set_view([*(other.name for other in swarm.live()), *keys], [])
            await swarm.train(8, 4.0, first_seed=900)
            rounds.append(swarm.live()[0].fragments[0].state.version - before)
        return swarm

    scenario(play)
    control, attacked = rounds
    assert attacked >= 0.9 * control > 0

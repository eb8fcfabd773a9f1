"""What a peer remembers of donors that gave something wrong."""

from __future__ import annotations

import asyncio

from peer.network.anchors.donors import BLAME_SECONDS, FORK_SECONDS, MAX_REMEMBERED, MAX_WITNESSES, Donors
from tests.kit.network.memory_networks import named
from tests.simulator.virtual_time import run_virtual


class Nobody:
    def members(self):
        return []

    def suspect(self, peer_id, reason):
        raise AssertionError("nobody is suspected here")


def test_strangers_under_ever_new_names_fill_no_memory_and_the_last_ones_are_avoided():
    donors, names = Donors(named(0), Nobody()), [f"{named(1)}{number}" for number in range(2 * MAX_REMEMBERED)]

    async def run():
        for name in names:
            donors.blame(name, 0, "gave other bytes")
            donors.outvote(name, 1, bytes(32))
        donors.blame(names[MAX_REMEMBERED], 0, "gave other bytes again")
        donors.blame(named(2), 0, "gave other bytes")
        assert len(donors._blamed._pauses) == len(donors._outvoted) == MAX_REMEMBERED
        assert donors.is_blamed(names[-1])
        assert donors.is_outvoted(names[-1], 1, bytes(8))
        assert not donors.is_blamed(names[0])
        assert donors.is_blamed(names[MAX_REMEMBERED]), "the last thing said of it is the newest of all"

    run_virtual(run())


def test_after_a_while_a_donor_is_asked_again():
    async def run():
        donors = Donors(named(0), Nobody())
        donors.blame(named(1), 0, "gave other bytes")
        donors.outvote(named(1), 0, bytes(32))
        await asyncio.sleep(FORK_SECONDS + 1)
        assert not donors.is_outvoted(named(1), 0, bytes(32))
        assert donors.is_blamed(named(1))
        await asyncio.sleep(BLAME_SECONDS)
        assert not donors.is_blamed(named(1))

    run_virtual(run())


def test_free_keys_are_asked_beside_workers_and_never_as_many():
    workers, free = [named(number) for number in range(8)], [named(100 + number) for number in range(100)]
    donors = Donors(named(50), Nobody(), has_worked=lambda peer_id: peer_id in workers)
    asked = donors.witnesses([*workers, *free])
    assert set(workers) <= set(asked)
    assert len(set(asked) - set(workers)) == 2
    many = [named(200 + number) for number in range(40)]
    crowded = Donors(named(50), Nobody(), has_worked=lambda peer_id: peer_id in many)
    asked = crowded.witnesses([*many, *free])
    assert (len(asked), len(set(asked) & set(many))) == (MAX_WITNESSES, 9)
    newcomer = Donors(named(50), Nobody())
    assert len(newcomer.witnesses([*workers, *free])) == MAX_WITNESSES
    met = Donors(named(50), Nobody(), was_met=lambda peer_id: peer_id in workers)
    assert set(workers) < set(met.witnesses([*free, *workers]))

"""Real peers that were asleep, on another address, or without network: they come back by themselves and say so."""

from __future__ import annotations

import signal

from averaging.rounds.facts import Fact
from peer.events.peer_events import SwarmFound, SwarmLost
from tests.kit.network.network_spaces import line_between_two_machines
from tests.kit.processes.process_swarm import PeerProcess, process_swarm

AWAY_SECONDS = 120.0
"""For a peer to be given up (24 s in the tiny run), or to be back among the others."""


def lines_about_company(peer: PeerProcess, after: int) -> list[type[Fact]]:
    """What it told its owner of losing and finding the swarm."""
    return [type(event.fact) for event in peer.events()[after:] if isinstance(event.fact, (SwarmLost, SwarmFound))]


def test_a_laptop_that_slept_until_others_gave_it_up_is_back_with_one_line() -> None:
    with process_swarm() as swarm:
        first = swarm.start("first", has_record=True)
        first.wait_joined(seconds=AWAY_SECONDS)
        laptop = swarm.start("laptop", peers=[first.address])
        laptop.wait_joined(seconds=AWAY_SECONDS)
        first.wait_common_round(laptop.peer_id, after=0)
        marks = first.mark(), laptop.mark()
        laptop.signal_all(signal.SIGSTOP)
        # The other one misses its announcements, and is alone without it.
        first.wait_for(SwarmLost, after=marks[0], seconds=AWAY_SECONDS)
        steps = laptop.inner_steps()
        asleep = first.mark()
        laptop.signal_all(signal.SIGCONT)
        found = laptop.wait_for(SwarmFound, after=marks[1], seconds=AWAY_SECONDS)
        assert found.seconds > 5
        first.wait_common_round(laptop.peer_id, after=asleep, seconds=AWAY_SECONDS)
        laptop.wait_common_round(first.peer_id, after=marks[1], seconds=AWAY_SECONDS)
        assert laptop.inner_steps() >= steps
        assert lines_about_company(laptop, marks[1]) == [SwarmFound]

        # It moves: another address, which the others learn from it alone. It knows them from before.
        laptop.process.send_signal(signal.SIGTERM)
        assert laptop.wait_end() == 0
        mark = first.mark()
        moved = swarm.start("laptop")
        assert moved.port != laptop.port
        moved.wait_joined(after=moved.mark(), seconds=AWAY_SECONDS)
        first.wait_common_round(moved.peer_id, after=mark, seconds=AWAY_SECONDS)


def test_peers_whose_line_is_cut_train_on_alone_and_find_each_other_again() -> None:
    """Shortened: until they give each other up. An hour of it is in tests/peer/network/membership/test_reconnect.py, in
    virtual time."""
    with line_between_two_machines() as line, process_swarm() as swarm:
        here = swarm.start("here", has_record=True, ip=line.ips[0], wrapper=line.wrapper(0))
        here.wait_joined(seconds=AWAY_SECONDS)
        there = swarm.start("there", peers=[here.address], ip=line.ips[1], wrapper=line.wrapper(1))
        there.wait_joined(seconds=AWAY_SECONDS)
        here.wait_common_round(there.peer_id, after=0)
        marks = {peer: peer.mark() for peer in (here, there)}
        line.cut()
        alone = {}
        for peer in (here, there):
            peer.wait_for(SwarmLost, after=marks[peer], seconds=AWAY_SECONDS)
            alone[peer] = peer.mark()
            # Training goes on, and so do rounds of one.
            peer.wait_common_round(after=alone[peer], seconds=AWAY_SECONDS)
        line.mend()
        for peer, other in ((here, there), (there, here)):
            peer.wait_for(SwarmFound, after=marks[peer], seconds=AWAY_SECONDS)
            peer.wait_common_round(other.peer_id, after=alone[peer], seconds=AWAY_SECONDS)
        for peer in (here, there):
            assert lines_about_company(peer, marks[peer]) == [SwarmLost, SwarmFound]
            assert "Traceback" not in peer.stderr

"""Real peers that were without network: they come back by themselves and say so."""

from __future__ import annotations

from peer.events.peer_events import SwarmContact
from tests.kit.network.network_spaces import line_between_two_machines
from tests.kit.processes.process_swarm import process_swarm

AWAY_SECONDS = 120.0
"""For a peer to be given up (24 s in the tiny run), or to be back among the others."""


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
            peer.wait_for(SwarmContact, lambda fact: fact.state == "lost", after=marks[peer], seconds=AWAY_SECONDS)
            alone[peer] = peer.mark()
            # Training goes on, and so do rounds of one.
            peer.wait_common_round(after=alone[peer], seconds=AWAY_SECONDS)
        line.mend()
        for peer, other in ((here, there), (there, here)):
            peer.wait_for(SwarmContact, lambda fact: fact.state == "found", after=marks[peer], seconds=AWAY_SECONDS)
            peer.wait_common_round(other.peer_id, after=alone[peer], seconds=AWAY_SECONDS)
        for peer in (here, there):
            assert peer.losses_and_finds(marks[peer]) == ["lost", "found"]
            assert "Traceback" not in peer.stderr

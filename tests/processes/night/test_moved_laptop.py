"""A real peer that was asleep until the others gave it up, and then is at another address.

By day, laptops sleep in virtual time (tests/swarms/clocks/test_sleeping.py).
"""

from __future__ import annotations

import signal

from peer.events.peer_events import SwarmContact
from tests.kit.processes.process_swarm import process_swarm

AWAY_SECONDS = 120.0
"""For a peer to be given up (24 s in the tiny run), or to be back among the others."""


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
        first.wait_for(SwarmContact, lambda fact: fact.state == "lost", after=marks[0], seconds=AWAY_SECONDS)
        steps = laptop.inner_steps()
        asleep = first.mark()
        laptop.signal_all(signal.SIGCONT)
        found = laptop.wait_for(SwarmContact, lambda fact: fact.state == "found", after=marks[1], seconds=AWAY_SECONDS)
        assert found.seconds > 5
        first.wait_common_round(laptop.peer_id, after=asleep, seconds=AWAY_SECONDS)
        laptop.wait_common_round(first.peer_id, after=marks[1], seconds=AWAY_SECONDS)
        assert laptop.inner_steps() >= steps
        assert laptop.losses_and_finds(marks[1]) == ["found"]

        # It moves: another address, which the others learn from it alone. It knows them from before.
        laptop.process.send_signal(signal.SIGTERM)
        assert laptop.wait_end() == 0
        mark = first.mark()
        moved = swarm.start("laptop")
        assert moved.port != laptop.port
        moved.wait_joined(after=moved.mark(), seconds=AWAY_SECONDS)
        first.wait_common_round(moved.peer_id, after=mark, seconds=AWAY_SECONDS)

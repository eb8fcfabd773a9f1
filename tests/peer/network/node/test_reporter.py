"""What the reporter makes of the trainer's counters."""

from __future__ import annotations

import pytest

from dht.ground.host import PeerId
from peer.checkpoint.checkpoint_facts import Totals
from peer.events.peer_events import Event, JoinedRun
from peer.mailbox.mailbox import Mailbox
from peer.network.node.reporter import Reporter


def test_waits_for_data_are_part_of_the_progress() -> None:
    mailbox, events = Mailbox.in_process([4]), list[Event]()
    reporter = Reporter(PeerId("me"), mailbox, lambda: 0.0, lambda: 0.0, events.append)
    mailbox.trainer.inner_steps = 3
    reporter.progress()
    assert "for data" not in events[-1].sentence()
    mailbox.trainer.data_waits, mailbox.trainer.data_wait_seconds, mailbox.trainer.data_rereads = 2, 31.0, 1
    reporter.progress()
    assert events[-1].sentence().endswith("; waited 2 times for data, 31 s in total, 1 step reused data.")


@pytest.mark.parametrize(
    ("log", "checkpoint", "expected"),
    [
        ((900, 5), Totals(inner_steps=40, tokens=700, rounds_contributed=3), (40, 900, 5)),
        ((0, 0), Totals(inner_steps=40, tokens=700, rounds_contributed=3), (40, 700, 3)),
        ((900, 5), None, (0, 900, 5)),
    ],
)
def test_work_that_the_log_alone_knows_is_of_earlier_sessions(
    log: tuple[int, int], checkpoint: Totals | None, expected: tuple[int, int, int]
) -> None:
    mailbox, events = Mailbox.in_process([4]), list[Event]()
    mailbox.trainer.tokens, mailbox.network.rounds_contributed = log
    reporter = Reporter(PeerId("me"), mailbox, lambda: 0.0, lambda: 0.0, events.append)
    if checkpoint is not None:
        reporter.restored(checkpoint)
    mailbox.trainer.tokens += 50  # it trains before this is told
    reporter.joined("run", "cpu", (0,), None)
    (fact,) = (event.fact for event in events)
    assert isinstance(fact, JoinedRun)
    assert (fact.earlier_inner_steps, fact.earlier_tokens, fact.earlier_rounds) == expected
    assert mailbox.network.rounds_contributed == expected[2]

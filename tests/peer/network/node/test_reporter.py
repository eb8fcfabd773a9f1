"""What the reporter makes of the trainer's counters."""

from __future__ import annotations

from dht.host import PeerId
from peer.events.peer_events import Event, WaitedForData
from peer.mailbox.mailbox import Mailbox
from peer.network.node.reporter import Reporter


def test_waits_for_data_are_reported_when_there_are_new_ones() -> None:
    mailbox, events = Mailbox.in_process([4]), list[Event]()
    reporter = Reporter(PeerId("me"), mailbox, lambda: 0.0, lambda: 0.0, events.append)

    def waits() -> list[WaitedForData]:
        return [event.fact for event in events if isinstance(event.fact, WaitedForData)]

    reporter.progress()
    assert waits() == []
    mailbox.trainer.data_waits, mailbox.trainer.data_wait_seconds = 2, 31.0
    reporter.progress()
    reporter.progress()
    assert waits() == [WaitedForData(2, 31.0, 0)]
    mailbox.trainer.data_rereads = 1
    reporter.progress()
    assert waits()[1].sentence() == (
        "Waited for data: 2 times, 31 s in this session; 1 step read what is here once more."
    )

"""What the trainer's side of the network process makes of a child that ends badly."""

from __future__ import annotations

import socket

from peer.network_spec import NetworkSpec
from peer.supervisor import NetworkProcess

SPEC = NetworkSpec("run.id", "trainer", (), "", "", (), (), 1.0, "", 1.0, 1, None, None)


def test_a_child_that_dies_with_orders_unread_has_ended_like_any_other():
    """A reset is not an end of file, but the thread that supervises must go on to the restart all the same."""
    notes: list[str] = []
    network = NetworkProcess(SPEC, lambda event: None, notes.append)
    ours, theirs = socket.socketpair()
    network._connection = ours
    ours.sendall(b"an order\n")
    theirs.sendall(b'{"kind": "addresses", "addresses": ["/ip4/127.0.0.1/tcp/1"]}\n')
    theirs.close()
    network._read_until_closed()
    assert network.addresses in ((), ("/ip4/127.0.0.1/tcp/1",))
    ours.close()

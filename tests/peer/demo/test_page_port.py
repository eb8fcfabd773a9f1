"""The page of the demo is never another program's."""

from __future__ import annotations

import socket

from peer.demo.swarm import page_port_near


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        found = page_port_near(taken)
        assert found != taken
    assert page_port_near(taken) == taken
    assert page_port_near(0) > 0

"""P2pdHost with real daemons on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dht.ground.errors import LocalFault, PeerUnreachable, UsageFault
from dht.ground.host import Host, PeerId, StreamHandler
from dht.identity.keys import Identity
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from dht.p2pd import host as p2pd_host
from dht.p2pd import supervisor
from dht.p2pd.control import ControlError, P2pdControl
from dht.p2pd.daemon import DaemonOptions, announced_addresses, claim_ports
from dht.p2pd.host import P2pdHost
from dht.streams.upload_and_download_limits import URGENT_BYTES, RateLimits
from tests.kit.host_contract import CONTRACT, ECHO, Check, HostNetwork, assert_echo, echo, run_check

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


class P2pdNetwork(HostNetwork):
    def __init__(self) -> None:
        self.hosts: list[P2pdHost] = []

    async def host(self, handlers: Mapping[str, StreamHandler]) -> P2pdHost:
        host = P2pdHost(Identity.generate(), LOOPBACK)
        for protocol, handler in handlers.items():
            host.handle(protocol, handler)
        self.hosts.append(host)
        await host.start()
        return host

    async def send_partial_frame(self, host: Host, to: Host, protocol: str, data: bytes) -> bool:
        assert isinstance(host, P2pdHost)
        writer = await P2pdControl(host.daemon.control_socket).open_stream(to.peer_id, protocol, 10.0)
        writer.write(data)
        writer.close()
        await writer.wait_closed()
        return True

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(check: Check) -> None:
    asyncio.run(run_check(check, P2pdNetwork()))


def run_on_network(check: Check) -> None:
    asyncio.run(run_check(check, P2pdNetwork()))


def freeze(process_id: int) -> None:
    """Stop a child; the signal takes effect a little later, and this returns when all its threads stand still."""
    os.kill(process_id, signal.SIGSTOP)
    os.waitid(os.P_PID, process_id, os.WSTOPPED)


async def restarted(host: P2pdHost) -> asyncio.Event:
    event = asyncio.Event()

    async def listener() -> None:
        event.set()

    host.add_restart_listener(listener)
    return event


def test_a_killed_daemon_is_back_with_the_same_identity_port_and_protocols() -> None:
    async def check(network: HostNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo})
        assert isinstance(caller, P2pdHost)
        assert isinstance(called, P2pdHost)
        await caller.connect(called.addresses()[0], 5.0)
        open_stream = await caller.open_stream(called.peer_id, ECHO, 5.0)
        addresses, first_process = called.addresses(), called.daemon.process_id
        assert first_process is not None
        await called.connected_addresses()
        event = await restarted(called)
        os.kill(first_process, signal.SIGKILL)
        with pytest.raises(PeerUnreachable):
            await open_stream.receive(10)
        async with asyncio.timeout(60):
            await event.wait()
        assert called.addresses() == addresses
        assert called.daemon.process_id != first_process
        assert called.daemon.num_restarts == 1
        # The restarted host dialled its peers again, so it is known by its PeerId alone.
        assert caller.peer_id in await called.connected_addresses()
        await assert_echo(caller, called)

    run_on_network(check)


def test_a_port_that_was_lost_while_the_daemon_was_down_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program takes the port in between: nobody asked for that one, and the others learn the new address."""
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_SECONDS", 1.0)

    async def check(network: HostNetwork) -> None:
        other, moved = await network.host({}), await network.host({ECHO: echo})
        assert isinstance(other, P2pdHost)
        assert isinstance(moved, P2pdHost)
        await moved.connect(other.addresses()[0], 5.0)
        before = moved.addresses()
        port = parse_multiaddr(before[0]).port
        event = await restarted(moved)
        assert moved.daemon.process_id is not None
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            os.kill(moved.daemon.process_id, signal.SIGKILL)
            async with asyncio.timeout(60):
                while True:
                    try:
                        thief.bind(("127.0.0.1", port))
                        break
                    except OSError:
                        await asyncio.sleep(0.01)
                thief.listen()
                await event.wait()
        assert moved.addresses() != before
        assert moved.peer_id in moved.addresses()[0]
        await assert_echo(other, moved)

    run_on_network(check)


def test_a_daemon_that_does_not_start_with_a_changed_address_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "NUM_TRIES_OF_CHANGE", 1)

    async def check(network: HostNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo})
        assert isinstance(called, P2pdHost)
        before = called.options, called.addresses()
        # Nothing listens there, so that nobody can say which port it is.
        other = DaemonOptions(reachability="public")
        await called.change(other, [f"/ip4/8.8.8.8/udp/0/quic-v1/p2p/{called.peer_id}"])
        assert (called.options, called.addresses()) == before
        await caller.connect(called.addresses()[0], 5.0)
        await called.change(other)
        assert (called.options, called.addresses()) == (other, before[1])

    run_on_network(check)


def test_a_killed_daemon_of_the_caller_fails_its_streams_and_then_works_again() -> None:
    async def check(network: HostNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo})
        assert isinstance(caller, P2pdHost)
        assert isinstance(called, P2pdHost)
        await caller.connect(called.addresses()[0], 5.0)
        stream = await caller.open_stream(called.peer_id, ECHO, 5.0)
        event = await restarted(caller)
        assert caller.daemon.process_id is not None
        os.kill(caller.daemon.process_id, signal.SIGKILL)
        with pytest.raises(PeerUnreachable):
            await stream.receive(10)
        async with asyncio.timeout(60):
            await event.wait()
        await assert_echo(caller, called)

    run_on_network(check)


def test_a_daemon_that_hangs_meets_deadlines_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "HEALTH_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "CONTROL_SECONDS", 0.5)

    async def check(network: HostNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo})
        assert isinstance(caller, P2pdHost)
        assert isinstance(called, P2pdHost)
        await caller.connect(called.addresses()[0], 5.0)
        event = await restarted(caller)
        assert caller.daemon.process_id is not None
        freeze(caller.daemon.process_id)
        with pytest.raises(PeerUnreachable, match="within"):
            await caller.open_stream(called.peer_id, ECHO, 0.2)
        async with asyncio.timeout(60):
            await event.wait()
        await assert_echo(caller, called)

    run_on_network(check)


def test_a_protocol_added_later_is_served() -> None:
    async def check(network: HostNetwork) -> None:
        caller, called = await network.host({}), await network.host({})
        assert isinstance(caller, P2pdHost)
        assert isinstance(called, P2pdHost)
        await caller.connect(called.addresses()[0], 5.0)
        called.handle(ECHO, echo)
        async with asyncio.timeout(60):
            while True:
                try:
                    await assert_echo(caller, called)
                    return
                except PeerUnreachable:
                    await asyncio.sleep(0.01)

    run_on_network(check)


def test_connected_addresses_can_be_dialled() -> None:
    async def check(network: HostNetwork) -> None:
        first, second, third = [await network.host({ECHO: echo}) for _ in range(3)]
        assert isinstance(first, P2pdHost)
        await first.connect(second.addresses()[0], 5.0)
        connected = await first.connected_addresses()
        assert list(connected) == [second.peer_id]
        assert await third.connect(connected[second.peer_id][0], 5.0) == second.peer_id

    run_on_network(check)


def start_and_close(host: P2pdHost) -> None:
    async def run() -> None:
        try:
            await host.start()
        finally:
            await host.close()

    asyncio.run(run())


def test_a_port_taken_by_another_program_is_a_local_fault() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalFault, match="in use by another program"):
            start_and_close(P2pdHost(Identity.generate(), [f"/ip4/127.0.0.1/tcp/{port}"]))


def test_a_port_that_another_program_took_after_the_look_is_replaced_unless_somebody_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        of_another = parse_multiaddr(f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}")
        num_looks = 0

        def late_look(listen: list[Multiaddr]) -> list[Multiaddr]:
            nonlocal num_looks
            num_looks += 1
            return [of_another] if num_looks == 1 else claim_ports(listen)

        monkeypatch.setattr(supervisor, "claim_ports", late_look)

        async def run() -> None:
            async with P2pdHost(Identity.generate(), LOOPBACK) as host:
                assert host.daemon.listens[0].port not in (0, of_another.port)

        asyncio.run(run())
        assert num_looks == 2
        num_looks = 0
        with pytest.raises(LocalFault, match="--listen"):
            start_and_close(P2pdHost(Identity.generate(), [str(of_another)]))
        assert num_looks == 1


def test_an_address_of_another_machine_is_a_usage_fault() -> None:
    with pytest.raises(UsageFault, match="--announce"):
        start_and_close(P2pdHost(Identity.generate(), ["/ip4/192.0.2.77/tcp/0"]))


@pytest.mark.parametrize("text", ["", "127.0.0.1:80", "/ip4/300.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/99999", "/ipx/1"])
def test_text_that_is_no_multiaddr_is_a_usage_fault(text: str) -> None:
    async def run() -> None:
        P2pdHost(Identity.generate(), [text])

    with pytest.raises(UsageFault, match="multiaddr"):
        asyncio.run(run())


def test_a_daemon_that_cannot_run_is_a_local_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "p2pd"
    script.write_text("#!/bin/sh\necho it went wrong\nexit 3\n")
    script.chmod(0o700)
    monkeypatch.setattr(supervisor, "find_p2pd", lambda: script)
    with pytest.raises(LocalFault, match="it went wrong"):
        start_and_close(P2pdHost(Identity.generate(), LOOPBACK))
    monkeypatch.setattr(supervisor, "find_p2pd", lambda: tmp_path / "nothing")
    with pytest.raises(LocalFault, match="cannot be run"):
        start_and_close(P2pdHost(Identity.generate(), LOOPBACK))


def test_the_announced_port_is_never_zero() -> None:
    async def run() -> None:
        host = P2pdHost(Identity.generate(), LOOPBACK, announce=["/ip4/203.0.113.5/tcp/0"])
        try:
            await host.start()
            (text,) = host.addresses()
        finally:
            await host.close()
        address = parse_multiaddr(text)
        assert address.value("ip4") == "203.0.113.5"
        assert address.port not in (None, 0)
        assert address.peer_id == host.peer_id

    asyncio.run(run())


def test_an_announced_port_zero_without_a_listener_is_a_usage_fault() -> None:
    with pytest.raises(UsageFault, match="port 0"):
        announced_addresses([parse_multiaddr("/ip4/203.0.113.5/udp/0/quic-v1")], [parse_multiaddr(LOOPBACK[0])])


def test_quic_works() -> None:
    async def run() -> None:
        quic = ["/ip4/127.0.0.1/udp/0/quic-v1"]
        first, second = P2pdHost(Identity.generate(), quic), P2pdHost(Identity.generate(), quic)
        second.handle(ECHO, echo)
        try:
            await first.start()
            await second.start()
            await first.connect(second.addresses()[0], 5.0)
            await assert_echo(first, second)
        finally:
            await first.close()
            await second.close()

    asyncio.run(run())


def test_a_daemon_that_found_odd_addresses_alone_is_told_to_announce_them(monkeypatch: pytest.MonkeyPatch) -> None:
    identify, told = P2pdControl.identify, list[list[Multiaddr]]()

    async def as_in_a_laboratory(control: P2pdControl) -> tuple[PeerId, list[Multiaddr]]:
        peer_id, visible = await identify(control)
        told.append(visible)
        here = visible[0]
        return peer_id, visible if len(told) > 1 else [here, Multiaddr((("ip4", "198.18.0.7"), *here.parts[1:]))]

    monkeypatch.setattr(P2pdControl, "identify", as_in_a_laboratory)

    async def check(network: HostNetwork) -> None:
        host, other = [await network.host({ECHO: echo}) for _ in range(2)]
        assert isinstance(host, P2pdHost)
        assert isinstance(other, P2pdHost)
        port = host.daemon.listens[0].port
        assert host.addresses() == [f"/ip4/198.18.0.7/tcp/{port}/p2p/{host.peer_id}"]
        assert host.daemon.num_restarts == 0
        await other.connect(host.local_addresses()[0], 5.0)
        await assert_echo(other, host)
        assert await other.connected_addresses() == {host.peer_id: host.addresses()}

    run_on_network(check)


def test_an_address_that_nobody_knows_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_found(*_: object) -> None:
        raise ControlError("routing: not found")

    async def check(network: HostNetwork) -> None:
        host = await network.host({})
        stranger = Identity.generate().peer_id
        with pytest.raises(PeerUnreachable, match="connected to no peer that could know an address of it"):
            await host.open_stream(stranger, ECHO, 5.0)
        monkeypatch.setattr(P2pdControl, "open_stream", not_found)
        with pytest.raises(PeerUnreachable, match="retries or goes on without it") as caught:
            await host.open_stream(stranger, ECHO, 5.0)
        assert caught.value.reason == "no peer that this peer is connected to knows an address of it"

    run_on_network(check)


def test_only_the_streams_of_a_paced_protocol_wait_for_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p2pd_host, "congestion_control", lambda: "cubic")

    async def check(network: HostNetwork) -> None:
        caller, called = await network.host({}), await network.host({ECHO: echo, "/other": echo})
        assert isinstance(caller, P2pdHost)
        await caller.connect(called.addresses()[0], 5.0)
        line = caller.pace_of(ECHO)
        assert line is not None
        assert line is caller.pace_of(ECHO)
        waited = asyncio.Event()

        async def let_pass(num_bytes: int) -> None:
            waited.set()

        line.let_pass = let_pass  # type: ignore[method-assign]
        for protocol, waits in (("/other", False), (ECHO, True)):
            stream = await caller.open_stream(called.peer_id, protocol, 10.0)
            await stream.send(bytes(URGENT_BYTES + 1))
            assert len(await stream.receive(10_000)) == URGENT_BYTES + 1
            assert waited.is_set() == waits
            await stream.close()

    run_on_network(check)


def test_a_limit_holds_for_all_streams_and_no_pace_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p2pd_host, "congestion_control", lambda: "cubic")
    assert P2pdHost(Identity.generate(), limits=RateLimits(1e6)).pace_of(ECHO) is None
    assert P2pdHost(Identity.generate(), limits=RateLimits(None, 1e6)).pace_of(ECHO) is not None


def test_no_pace_where_the_kernel_paces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p2pd_host, "congestion_control", lambda: "bbr")
    assert P2pdHost(Identity.generate()).pace_of(ECHO) is None


def test_two_that_dial_each_other_at_the_same_moment_both_succeed() -> None:
    async def check(network: HostNetwork) -> None:
        for _ in range(4):
            first, second = await asyncio.gather(network.host({}), network.host({}))
            reached = await asyncio.gather(
                first.connect(second.addresses()[0], 5.0), second.connect(first.addresses()[0], 5.0)
            )
            assert list(reached) == [second.peer_id, first.peer_id]

    run_on_network(check)


def test_light_processes_load_neither_torch_nor_more_of_hivemind_than_the_daemons_messages() -> None:
    """Its packages stand there without their content (`dht.p2pd.lazy_hivemind`)."""
    program = (
        "import sys, dht.p2pd.host; print(*(name for name in sys.modules if name.startswith(('torch', 'hivemind'))))"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    empty = {"hivemind", "hivemind.utils", "hivemind.dht"}
    assert set(told.split()) == {*empty, "hivemind.proto", "hivemind.proto.p2pd_pb2"}

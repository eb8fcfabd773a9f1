"""What every `Host` must do, whatever carries its bytes. An adapter's test file runs `CONTRACT` on its own network:

@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(check):
    asyncio.run(run_check(check, MyNetwork()))
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import pytest

from dht.ground.errors import PeerFault, PeerUnreachable, UsageFault
from dht.ground.host import FRAME_HEADER_BYTES, Host, Stream, StreamHandler
from dht.identity.keys import Identity

ECHO = "/murmuration/test/echo/1"
MAX_FRAME = 8 * 1024 * 1024
OPEN_SECONDS = 10.0
CHECK_SECONDS = 60.0


class HostNetwork(Protocol):
    """How the contract gets its hosts."""

    async def host(self, handlers: Mapping[str, StreamHandler]) -> Host:
        """A started host that already serves these protocols."""
        ...

    async def send_partial_frame(self, host: Host, to: Host, protocol: str, data: bytes) -> bool:
        """Send raw bytes and close; False when the transport only knows whole frames."""
        ...

    async def close(self) -> None:
        """Close all hosts that were made."""
        ...


Check = Callable[[HostNetwork], Awaitable[None]]


async def run_check(check: Check, network: HostNetwork) -> None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check(network)
    finally:
        await network.close()


async def echo(stream: Stream) -> None:
    while True:
        await stream.send(await stream.receive(MAX_FRAME))


async def assert_echo(caller: Host, called: Host) -> None:
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    await stream.send(b"hello")
    assert await stream.receive(5) == b"hello"
    await stream.close()


async def connected_pair(
    network: HostNetwork, handlers: Mapping[str, StreamHandler], own: Mapping[str, StreamHandler] | None = None
) -> tuple[Host, Host]:
    """(caller, called); the called one serves `handlers` and the caller knows its address."""
    caller, called = await network.host(own or {}), await network.host(handlers)
    assert await caller.connect(called.addresses()[0], OPEN_SECONDS) == called.peer_id
    return caller, called


async def frames_of_all_sizes_come_back(network: HostNetwork) -> None:
    caller, called = await connected_pair(network, {ECHO: echo})
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    assert stream.remote == called.peer_id
    total = 0
    for num_bytes in (0, 1, 2, 65535, 65536, 1_000_003, 4 * 1024 * 1024):
        frame = random.Random(num_bytes).randbytes(num_bytes)
        await stream.send(memoryview(frame))
        assert await stream.receive(num_bytes) == frame
        total += num_bytes + FRAME_HEADER_BYTES
        assert stream.bytes_sent == total
        assert stream.bytes_received == total
    await stream.close()


async def many_frames_keep_their_order(network: HostNetwork) -> None:
    caller, called = await connected_pair(network, {ECHO: echo})
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    frames = [random.Random(number).randbytes(number % 977) for number in range(2000)]

    async def send_all() -> None:
        for frame in frames:
            await stream.send(frame)

    sending = asyncio.create_task(send_all())
    assert [await stream.receive(1000) for _ in frames] == frames
    await sending
    await stream.close()


async def thirty_streams_at_once(network: HostNetwork) -> None:
    caller, called = await connected_pair(network, {ECHO: echo})

    async def talk(number: int) -> None:
        stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
        for turn in range(5):
            frame = f"{number} {turn} ".encode() * 1000
            await stream.send(frame)
            assert await stream.receive(len(frame)) == frame
        await stream.close()

    await asyncio.gather(*(talk(number) for number in range(30)))


async def the_remote_sees_who_calls(network: HostNetwork) -> None:
    async def tell(stream: Stream) -> None:
        await stream.send(stream.remote.encode())
        await stream.receive(1)

    caller, called = await connected_pair(network, {ECHO: tell})
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    assert (await stream.receive(100)).decode() == caller.peer_id
    await stream.close()


async def both_sides_can_open(network: HostNetwork) -> None:
    caller, called = await connected_pair(network, {ECHO: echo}, {ECHO: echo})
    for one, other in ((caller, called), (called, caller)):
        stream = await one.open_stream(other.peer_id, ECHO, OPEN_SECONDS)
        await stream.send(b"hello")
        assert await stream.receive(5) == b"hello"
        await stream.close()


async def a_frame_that_is_too_long_blames_the_remote_and_ends_the_stream(network: HostNetwork) -> None:
    caller, called = await connected_pair(network, {ECHO: echo})
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    await stream.send(bytes(1001))
    with pytest.raises(PeerFault, match="1001") as caught:
        await stream.receive(1000)
    assert not isinstance(caught.value, PeerUnreachable)
    assert caught.value.peer_id == called.peer_id
    with pytest.raises(PeerUnreachable):
        await stream.receive(2000)
    with pytest.raises(PeerUnreachable):
        await stream.send(b"more")


async def a_stream_closed_by_the_remote_is_unreachable(network: HostNetwork) -> None:
    async def greet(stream: Stream) -> None:
        await stream.receive(10)

    caller, called = await connected_pair(network, {ECHO: greet})
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    await stream.send(b"bye")
    with pytest.raises(PeerUnreachable):
        await stream.receive(10)


async def a_stream_closed_in_the_middle_of_a_frame_is_unreachable(network: HostNetwork) -> None:
    caught: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def read_one(stream: Stream) -> None:
        try:
            await stream.receive(MAX_FRAME)
        except PeerFault as fault:
            caught.set_result(fault)

    caller, called = await connected_pair(network, {ECHO: read_one})
    if not await network.send_partial_frame(caller, called, ECHO, b"\0\0\1\0" + bytes(255)):
        pytest.skip("this transport only knows whole frames")
    fault = await caught
    assert isinstance(fault, PeerUnreachable)
    assert fault.peer_id == caller.peer_id


async def an_unknown_protocol_is_unreachable(network: HostNetwork) -> None:
    caller, called = await connected_pair(network, {ECHO: echo})

    async def ask() -> None:
        stream = await caller.open_stream(called.peer_id, "/murmuration/test/nobody/1", OPEN_SECONDS)
        # A transport may notice only at the first answer.
        await stream.send(b"anybody?")
        await stream.receive(10)

    with pytest.raises(PeerUnreachable) as caught:
        await ask()
    assert caught.value.peer_id == called.peer_id


async def an_unknown_peer_is_unreachable_within_the_deadline(network: HostNetwork) -> None:
    caller, _ = await connected_pair(network, {ECHO: echo})
    stranger = Identity.generate().peer_id
    started_at = asyncio.get_running_loop().time()
    with pytest.raises(PeerUnreachable) as caught:
        await caller.open_stream(stranger, ECHO, 2.0)
    assert caught.value.peer_id == stranger
    assert asyncio.get_running_loop().time() - started_at < 4.0


async def somebody_else_at_the_address_is_refused(network: HostNetwork) -> None:
    caller, called = await network.host({}), await network.host({ECHO: echo})
    stranger = Identity.generate().peer_id
    place = called.addresses()[0].rpartition("/p2p/")[0]
    with pytest.raises(PeerUnreachable) as caught:
        await caller.connect(f"{place}/p2p/{stranger}", 5.0)
    assert caught.value.peer_id == stranger


async def text_that_is_no_address_is_a_usage_fault(network: HostNetwork) -> None:
    caller = await network.host({})
    for text in ("", "localhost:4001", "/ip4/127.0.0.1/tcp/4001", "/ip4/1.2.3.4/tcp/4001/p2p/nonsense"):
        with pytest.raises(UsageFault):
            await caller.connect(text, 1.0)


async def a_faulty_handler_ends_its_stream_and_nothing_else(network: HostNetwork) -> None:
    async def blame(stream: Stream) -> None:
        raise PeerFault(stream.remote, "sent nonsense")

    async def crash(stream: Stream) -> None:
        raise ZeroDivisionError("a bug")

    caller, called = await connected_pair(
        network, {ECHO: echo, "/murmuration/test/blame/1": blame, "/murmuration/test/crash/1": crash}
    )
    for protocol in ("/murmuration/test/blame/1", "/murmuration/test/crash/1"):
        stream = await caller.open_stream(called.peer_id, protocol, OPEN_SECONDS)
        with pytest.raises(PeerUnreachable):
            await stream.receive(10)
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    await stream.send(b"still there")
    assert await stream.receive(100) == b"still there"
    await stream.close()


async def a_sender_waits_for_a_slow_reader(network: HostNetwork) -> None:
    frame, num_frames = bytes(1024 * 1024), 64
    may_read, all_read = asyncio.Event(), asyncio.Event()

    async def read_late(stream: Stream) -> None:
        await may_read.wait()
        for _ in range(num_frames):
            assert len(await stream.receive(len(frame))) == len(frame)
        all_read.set()
        await stream.receive(1)

    caller, called = await connected_pair(network, {ECHO: read_late})
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)

    async def send_all() -> None:
        for _ in range(num_frames):
            await stream.send(frame)

    sending = asyncio.create_task(send_all())
    # Transports may hold up to 16 MiB of window on each side; 64 MiB never fit.
    await asyncio.wait({sending}, timeout=1.5)
    assert not sending.done()
    assert stream.bytes_sent < 48 * len(frame)
    may_read.set()
    await sending
    await all_read.wait()
    await stream.close()


async def closing_a_host_ends_its_streams_on_both_sides(network: HostNetwork) -> None:
    handler_ended = asyncio.Event()

    async def listen(stream: Stream) -> None:
        try:
            await stream.send(b"ready")
            await stream.receive(10)
        finally:
            handler_ended.set()

    caller, called = await connected_pair(network, {ECHO: listen})
    stream = await caller.open_stream(called.peer_id, ECHO, OPEN_SECONDS)
    assert await stream.receive(10) == b"ready"
    waiting = asyncio.create_task(stream.receive(10))
    await asyncio.sleep(0)
    await caller.close()
    with pytest.raises(PeerUnreachable):
        await waiting
    await handler_ended.wait()
    with pytest.raises(PeerUnreachable):
        await caller.open_stream(called.peer_id, ECHO, 1.0)
    await caller.close()


CONTRACT: list[Check] = [
    frames_of_all_sizes_come_back,
    many_frames_keep_their_order,
    thirty_streams_at_once,
    the_remote_sees_who_calls,
    both_sides_can_open,
    a_frame_that_is_too_long_blames_the_remote_and_ends_the_stream,
    a_stream_closed_by_the_remote_is_unreachable,
    a_stream_closed_in_the_middle_of_a_frame_is_unreachable,
    an_unknown_protocol_is_unreachable,
    an_unknown_peer_is_unreachable_within_the_deadline,
    somebody_else_at_the_address_is_refused,
    text_that_is_no_address_is_a_usage_fault,
    a_faulty_handler_ends_its_stream_and_nothing_else,
    a_sender_waits_for_a_slow_reader,
    closing_a_host_ends_its_streams_on_both_sides,
]

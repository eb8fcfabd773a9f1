"""The reader and writer of connections to the daemon: frames arrive whole, whatever pieces they come in."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from dht.streams.byte_stream import SCRATCH_BYTES, ByteStream

LONG = 5 * SCRATCH_BYTES + 7
BUFFER_BYTES = 8 * SCRATCH_BYTES


def made_up(num_bytes: int, first: int = 0) -> bytes:
    return bytes((first + index * 7) % 251 for index in range(num_bytes))


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[ByteStream, socket.socket]]:
    """A stream and the other end of its connection, which tests read and write through the loop."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.setblocking(False)
    _, stream = await asyncio.get_running_loop().create_unix_connection(lambda: ByteStream(BUFFER_BYTES), sock=ours)
    try:
        yield stream, theirs
    finally:
        theirs.close()
        stream.transport.abort()
        await stream.wait_closed()


async def tell(remote: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(remote, data)


Check = Callable[[ByteStream, socket.socket], Awaitable[None]]


def on_each_loop(check: Check) -> None:
    """Run `check` on the loop that a peer uses and on asyncio's own."""

    async def run() -> None:
        async with connected() as (stream, remote):
            await asyncio.wait_for(check(stream, remote), 20)

    uvloop.run(run())
    asyncio.run(run())


@pytest.mark.parametrize("piece_bytes", [1000, SCRATCH_BYTES, LONG])
def test_reads_of_all_lengths_return_what_was_sent(piece_bytes: int) -> None:
    lengths = [1, 0, 3, LONG, 4, SCRATCH_BYTES, SCRATCH_BYTES + 1, 2, 3 * BUFFER_BYTES + 5, LONG]

    async def check(stream: ByteStream, remote: socket.socket) -> None:
        data = made_up(sum(lengths))

        async def send() -> None:
            for start in range(0, len(data), piece_bytes):
                await tell(remote, data[start : start + piece_bytes])
                await asyncio.sleep(0)

        sending = asyncio.ensure_future(send())
        taken = [await stream.readexactly(length) for length in lengths]
        await sending
        assert [len(one) for one in taken] == lengths
        assert b"".join(taken) == data

    on_each_loop(check)


@pytest.mark.parametrize("has_all", [False, True])
def test_a_cancelled_read_leaves_its_bytes_to_the_next_one(has_all: bool) -> None:
    async def check(stream: ByteStream, remote: socket.socket) -> None:
        data = made_up(LONG)
        first = LONG if has_all else LONG - 100
        reading = asyncio.ensure_future(stream.readexactly(LONG))
        await asyncio.sleep(0)
        if has_all:
            # Filled by hand, so that the read is complete and its task has not run yet.
            view = stream.get_buffer(-1)
            view[:] = data
            stream.buffer_updated(LONG)
            stream.get_buffer(-1)[:3] = b"abc"
            stream.buffer_updated(3)
        else:
            await tell(remote, data[:first])
            await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await tell(remote, data[first:] + (b"" if has_all else b"abc"))
        assert await stream.readexactly(LONG) == data
        assert await stream.readexactly(3) == b"abc"

    on_each_loop(check)


def test_an_announced_length_costs_no_memory_before_its_bytes_come_and_a_cancel_loses_none() -> None:
    async def check(stream: ByteStream, remote: socket.socket) -> None:
        data = made_up(3 * BUFFER_BYTES)
        reading = asyncio.ensure_future(stream.readexactly(len(data)))
        await asyncio.sleep(0)
        assert len(stream.get_buffer(-1)) <= BUFFER_BYTES
        await tell(remote, data[: 2 * BUFFER_BYTES + 9])
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await tell(remote, data[2 * BUFFER_BYTES + 9 :])
        assert await stream.readexactly(len(data)) == data

    on_each_loop(check)


def test_nothing_more_is_taken_from_the_line_than_the_buffer_holds_while_nobody_reads() -> None:
    async def check(stream: ByteStream, remote: socket.socket) -> None:
        remote.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SCRATCH_BYTES)
        data = made_up(100 * SCRATCH_BYTES)
        sending = asyncio.ensure_future(tell(remote, data))
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert len(stream._buffered) <= BUFFER_BYTES + SCRATCH_BYTES
        assert await stream.readexactly(len(data) - 1) == data[:-1]
        await sending
        assert await stream.readexactly(1) == data[-1:]

    on_each_loop(check)


@pytest.mark.parametrize("num_bytes", [10, LONG])
def test_an_end_in_the_middle_of_a_read_says_what_had_come(num_bytes: int) -> None:
    async def check(stream: ByteStream, remote: socket.socket) -> None:
        await tell(remote, b"half")
        reading = asyncio.ensure_future(stream.readexactly(num_bytes))
        await asyncio.sleep(0.05)
        remote.shutdown(socket.SHUT_WR)
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await reading
        assert caught.value.partial == b"half"
        with pytest.raises(asyncio.IncompleteReadError):
            await stream.readexactly(num_bytes)

    on_each_loop(check)


def test_drain_waits_for_a_remote_that_reads_nothing_and_ends_with_it() -> None:
    async def check(stream: ByteStream, remote: socket.socket) -> None:
        stream.transport.set_write_buffer_limits(high=SCRATCH_BYTES)
        stream.write(made_up(200 * SCRATCH_BYTES))
        draining = asyncio.ensure_future(stream.drain())
        await asyncio.sleep(0.05)
        assert not draining.done()
        remote.close()
        with pytest.raises(ConnectionError):
            await draining
        await stream.wait_closed()
        with pytest.raises(ConnectionError):
            await stream.drain()

    on_each_loop(check)


def test_a_write_after_the_end_of_the_connection_says_so() -> None:
    async def check(stream: ByteStream, remote: socket.socket) -> None:
        stream.transport.abort()
        with pytest.raises(ConnectionResetError):
            stream.write(made_up(10))
        await stream.wait_closed()
        with pytest.raises(ConnectionResetError):
            stream.write(made_up(10))

    on_each_loop(check)

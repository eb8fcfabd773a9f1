"""The network process: `python -m peer.network.process.main FD`, started and supervised by the trainer's process.

FD is one end of a Unix socket pair. Both processes send lines of JSON; the mailbox is sent as a file descriptor with a
line. When the other end closes, the trainer's process is gone, and this process ends too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvloop

from dht.ground.errors import DaemonFault, LocalFault, MurmurationError
from dht.ground.tasks import is_done_before
from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
from dht.records.signed_manifest import RunRecord, encode_run_record
from dht.streams.upload_and_download_limits import RateLimits
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.console.plain_output import make_plain
from peer.console.word_wrap import fitting
from peer.events.event_log import to_json
from peer.events.peer_events import Event, JoinedRun
from peer.mailbox.mailbox import Mailbox
from peer.network.process.child_start import OWNERS_SIGNALS, send_line

MAX_LINE_BYTES = 1 << 20
END_SECONDS = 30.0
"""Time limit for closing everything at the end. A task or thread that does not end delays the exit no longer."""
_OUR_ROOMS = ("averaging", "dht", "peer")
ORDERS = ("leave", "limits")
"""Orders that the owner may send at any time."""


def main() -> int:
    """Entry point; returns the exit code."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    sys.stderr = make_plain(sys.stderr)
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Ctrl+C in a terminal, closing it, or the end of a system service reaches every process of the group; the trainer's
    # process handles these signals, and when it ends, this process ends.
    for number in OWNERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Processes started from here, such as the daemon, receive the signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OWNERS_SIGNALS)
    # With uvloop, rounds of four peers on two cores with 400 Mbit/s take a sixth less time than with asyncio's own
    # loop.
    return uvloop.run(_run(connection, _end_soon))


class LogLines(logging.Formatter):
    """Formats warnings like the other lines of a peer, as a time and a sentence; other packages' warnings with their
    module.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        said = record.message
        if record.name.partition(".")[0] not in _OUR_ROOMS:
            said = f"{record.levelname} {record.name}: {said}"
        return fitting(f"{record.asctime} {said[:1].upper()}{said[1:]}", sys.stderr)


def _end_soon(code: int) -> None:
    def end() -> None:
        time.sleep(END_SECONDS)
        os._exit(code)

    threading.Thread(target=end, name="end", daemon=True).start()


async def _run(connection: socket.socket, end_soon: Callable[[int], None]) -> int:
    """Run and return the exit code. A fault is sent before the event loop and its remaining tasks are closed.

    Args:
        end_soon: called with the exit code when only this closing is left.
    """
    try:
        await _take_part(connection, end_soon)
    except MurmurationError as error:
        code = error.exit_code if isinstance(error, LocalFault) else 1
        may_pass = isinstance(error, DaemonFault)
        send_line(connection, "fault", message=str(error), exit_code=code, may_pass=may_pass)
    else:
        code = 0
    end_soon(code)
    return code


async def _take_part(connection: socket.socket, end_soon: Callable[[int], None]) -> None:
    allow_parts_of_hivemind()
    from peer.network.process.network_side import NetworkSide

    lines: asyncio.Queue[tuple[dict[str, Any], list[int]]] = asyncio.Queue()
    orders: asyncio.Queue[tuple[dict[str, Any], list[int]]] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    received = b""

    def readable() -> None:
        nonlocal received
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, 65536, 1)
        except OSError:
            # A killed trainer resets the connection if it left lines unread.
            data, descriptors = b"", []
        if not data:
            loop.remove_reader(connection)
            gone.set()
            return
        received += data
        while b"\n" in received:
            line, _, received = received.partition(b"\n")
            message = json.loads(line)
            (orders if message.get("kind") in ORDERS else lines).put_nowait((message, list(descriptors)))
            descriptors = []

    loop.add_reader(connection, readable)
    beginning = asyncio.create_task(lines.get())
    if not await is_done_before(beginning, gone):
        return
    first, _ = beginning.result()
    config = PeerConfig.model_validate_json(first["config"])

    async def make_mailbox(record: RunRecord, manifest: RunManifest) -> tuple[Mailbox, str]:
        send_line(connection, "run", record=encode_run_record(record).hex())
        message, descriptors = await lines.get()
        if not descriptors:
            raise LocalFault("the trainer's process sent no mailbox; start `peer join` again")
        return Mailbox.attach(descriptors[0], message["sizes"], message["sent_bytes"]), message["device"]

    def emit(event: Event) -> None:
        send_line(connection, "event", event=to_json(event))
        if isinstance(event.fact, JoinedRun):
            # All modules are loaded by now. A full collection would traverse all their objects and block for 0.1 s of
            # processor time, which other peers notice on a crowded machine.
            gc.freeze()

    side = NetworkSide(
        config,
        "trainer",
        emit,
        lambda addresses: send_line(connection, "addresses", addresses=addresses),
        make_mailbox,
        lambda seen: send_line(connection, "seen", seen=seen.to_json()),
    )

    async def obey() -> None:
        while True:
            message, _ = await orders.get()
            if message["kind"] == "leave":
                side.leave(message["reason"])
            else:
                side.limit(RateLimits(**message["limits"]))

    orphaned = asyncio.create_task(gone.wait())
    work = asyncio.create_task(side.run())
    obeying = asyncio.create_task(obey())
    await asyncio.wait({work, orphaned}, return_when=asyncio.FIRST_COMPLETED)
    obeying.cancel()
    if not work.done():
        end_soon(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return
    orphaned.cancel()
    work.result()


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed. Unloading the modules would only delay the process that waits for the end.
    os._exit(exit_code)

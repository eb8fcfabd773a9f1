"""The daemon's control protocol: what goes over the socket, and answers that are none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dht.ground.delimited import encode_varint
from dht.ground.host import PeerId
from dht.identity.multiaddr import parse_multiaddr
from dht.p2pd.control import MAX_CONTROL_BYTES, ControlError, P2pdControl
from dht.streams.byte_stream import ByteStream

PEER = PeerId("12D3KooWQYKePtWhbyLYcnaBMqRz1zTnT8eGfmnpZL3CiHV1hLQB")
KEY = "002408011220dac3286ba0ccaa76832fe28eed4feebabeba2e50b7eddbe9338ff4852babc02c"
OK = bytes([2, 8, 0])

Call = Callable[[P2pdControl], Awaitable[Any]]
CALLS: list[tuple[Call, str]] = [
    (lambda daemon: daemon.identify(), "0800"),
    (
        lambda daemon: daemon.connect(PEER, parse_multiaddr("/ip4/10.0.0.1/tcp/4001"), 2.5),
        f"080112340a26{KEY}1208040a000001060fa11803",
    ),
    (lambda daemon: daemon.open_stream(PEER, "/x/1", 0.2), f"08021a300a26{KEY}12042f782f311801"),
    (
        lambda daemon: daemon.add_stream_handler("/x/1", Path("/run/y")),
        "080322130a099003062f72756e2f7912042f782f311800",
    ),
    (lambda daemon: daemon.find_peer(PEER), f"08042a2c08001226{KEY}3801"),
    (lambda daemon: daemon.list_connections(), "0805"),
    (lambda daemon: daemon.disconnect(PEER), f"08073a280a26{KEY}"),
    (lambda daemon: daemon.open_lifeline(), "0809"),
]


def ask(call: Call, answer: bytes, folder: Path) -> tuple[bytes, Any]:
    """What a daemon that answers so was asked, and what came of it."""
    asked: list[bytes] = []

    async def play() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readexactly((await reader.readexactly(1))[0]))
            writer.write(answer)
            writer.close()

        async with await asyncio.start_unix_server(serve, str(folder / "s")):
            try:
                outcome = await call(P2pdControl(folder / "s"))
            except ControlError as error:
                outcome = error
            if isinstance(outcome, ByteStream):
                outcome.transport.abort()
            await asyncio.sleep(0)  # for sockets to be closed
            return outcome

    outcome = asyncio.run(play())
    return asked[0], outcome


@pytest.mark.parametrize(("call", "request_hex"), CALLS, ids=[request_hex[:4] for _, request_hex in CALLS])
def test_requests_are_those_of_the_protocol(call: Call, request_hex: str, tmp_path: Path) -> None:
    asked, _ = ask(call, OK, tmp_path)
    assert asked.hex() == request_hex


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "ended before it answered"),
        (OK[:2], "ended before it answered"),
        (bytes([2, 0x0B, 0]), "a garbled message"),
        (bytes([2, 0x12, 9]), "a garbled message"),
        (b"\xff" * 9, "a garbled length"),
        (encode_varint(MAX_CONTROL_BYTES + 1), f"expected at most {MAX_CONTROL_BYTES}"),
        (bytes([13, 8, 1, 0x12, 9, 0x0A, 7]) + b"no\n way", "no way"),
        (OK, "without its field identify"),
    ],
)
def test_an_answer_that_is_none_is_one_fault(answer: bytes, words: str, tmp_path: Path) -> None:
    _, outcome = ask(lambda daemon: daemon.identify(), answer, tmp_path)
    assert isinstance(outcome, ControlError)
    assert words in str(outcome)

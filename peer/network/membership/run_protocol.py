"""Fetches a run's signed manifest from a member, for a newcomer that has only the run id.

In an open run the newcomer sends the run id. In a private run it also sends a proof of membership, and gets no answer
without one. A newcomer that does not know the kind of the run tries the first, then the second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from dht.admission.admission import Admission, NotAdmitted
from dht.admission.dated_proofs import MAX_PROOF_BYTES
from dht.admission.handshake_frames import check_reply, make_refusal
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.fields import pack, unpack
from dht.ground.host import Host, PeerId, Stream
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.records.peer_record import MAX_RUN_ID_LENGTH
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, RunRecord, decode_run_record, encode_run_record
from dht.streams.streams_per_remote import StreamCounts
from peer.network.membership.mistyped_run_id import answer_to_other_run, other_run

RUN_PROTOCOL = "/murmuration/run/1"
ASK_SECONDS = 10.0
"""Time limit for a member's answer with the run's record: a relayed dial and two small frames."""
MAX_STREAMS_PER_PEER = 4
"""A newcomer asks a member once, or twice if it does not know whether the run is private."""
MAX_KNOCK_BYTES = MAX_RUN_ID_LENGTH + MAX_PROOF_BYTES + 32
"""Run id, proof and framing of a newcomer's first frame."""
RUN_RECORD_LIFE_SECONDS = 7 * 86400.0 - 3600.0
"""Just under the longest life that holders accept."""


log = logging.getLogger(__name__)


async def reached_at(
    host: Host,
    addresses: Sequence[str],
    timeout_seconds: float,
    on_fault: Callable[[str, str], object] = lambda address, what: None,
) -> list[str]:
    """Dial the addresses concurrently and return those at which the expected peer answers.

    `on_fault` is called with (address, error message) for each of the others.
    """

    async def dial(address: str) -> bool:
        try:
            await host.connect(address, timeout_seconds)
        except PeerUnreachable as fault:
            on_fault(address, fault.what)
            return False
        return True

    answers = await asyncio.gather(*map(dial, addresses))
    return [address for address, is_there in zip(addresses, answers, strict=True) if is_there]


async def ask_for_run(
    host: Host,
    admission: Admission,
    addresses: list[str],
    on_invalid: Callable[[str], None] = lambda reason: None,
    on_refused: Callable[[PeerId, str], None] = lambda remote, reason: None,
) -> RunRecord | None:
    """Ask the members at `addresses` directly for the run's record; None if no member sends it.

    The DHT also has the record, but only once its holders have met, and not for unknown peers. `on_invalid` is called
    for records that the owner did not sign, `on_refused` for members that refuse with a reason.
    """
    plain = admission.run_id.encode()
    for address in addresses:
        peer_id, _ = parse_peer_multiaddr(address)
        knock = pack({"run_id": admission.run_id, "proof": admission.prove(peer_id, "run")})
        for question in (knock,) if admission.is_private else (plain, knock):
            try:
                found = await _ask(host, peer_id, question)
            except _Refused as refusal:
                on_refused(peer_id, refusal.what)
                continue
            except (PeerFault, TimeoutError) as fault:
                log.debug("%s did not send the run record: %s", address, fault)
                continue
            try:
                return decode_run_record(found, run_id=admission.run_id)
            except PeerFault as fault:
                on_invalid(f"{address} sent {fault.what}")
    return None


def serve_run(host: Host, admission: Admission, current: Callable[[], RunRecord]) -> None:
    """Answer `ask_for_run` of other peers; `current` returns the newest revision known here."""

    streams = StreamCounts(MAX_STREAMS_PER_PEER)

    async def serve(stream: Stream) -> None:
        record = current()
        try:
            with streams.one_more(stream.remote):
                async with asyncio.timeout(ASK_SECONDS):
                    if admission.is_private:
                        asked = await _admitted(stream, admission)
                    else:
                        asked = await stream.receive(MAX_RUN_ID_LENGTH)
                    if asked == record.run_id.encode():
                        await _send_last(stream, encode_run_record(record))
                        return
                    if not admission.is_private:
                        # An open run's id is public, so a peer that asks with a mistyped id gets the right one.
                        await _send_last(stream, make_refusal(answer_to_other_run(record.run_id)))
                    raise PeerFault(stream.remote, f"asked for a run other than {record.run_id}")
        except TimeoutError as error:
            raise PeerUnreachable(stream.remote, f"asked for no run within {ASK_SECONDS:.0f} s") from error

    host.handle(RUN_PROTOCOL, serve)


async def run_of(host: Host, asked: str, addresses: Sequence[str]) -> RunRecord | str | None:
    """Return the signed record of the run `asked`, or the id of the run that its members train instead.

    The first answering member decides; None if no member answers, as in a private run.
    """
    for address in addresses:
        peer_id, _ = parse_peer_multiaddr(address)
        try:
            return decode_run_record(await _ask(host, peer_id, asked.encode()), run_id=asked)
        except _Refused as refusal:
            if (other := other_run(refusal.what)) is not None:
                return other
        except (PeerFault, TimeoutError) as fault:
            log.debug("%s did not return its run id: %s", address, fault)
    return None


class _Refused(PeerFault):
    """A member refused with a reason."""


async def _ask(host: Host, peer_id: PeerId, question: bytes) -> bytes:
    stream = await host.open_stream(peer_id, RUN_PROTOCOL, ASK_SECONDS)
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await stream.send(question)
            found = await stream.receive(MAX_RUN_RECORD_BYTES)
    finally:
        await stream.close()
    try:
        check_reply(peer_id, found)
    except PeerFault as fault:
        # Only refusals are handled here; the signature validates all other answers.
        if fault.what.startswith("refused this peer"):
            raise _Refused(peer_id, fault.what) from fault
    return found


async def _admitted(stream: Stream, admission: Admission) -> bytes:
    """Admit a peer of a private run, and return the run id that it asks for."""
    frame = await stream.receive(MAX_KNOCK_BYTES)
    try:
        content = unpack(frame)
    except ValueError:
        content = None
    asked, proof = (content.get("run_id"), content.get("proof")) if type(content) is dict else (None, None)
    try:
        admission.admit(stream.remote, proof if type(proof) is bytes else b"", "run")
    except NotAdmitted as fault:
        if fault.told:
            with contextlib.suppress(PeerFault):
                await _send_last(stream, make_refusal(fault.told))
        raise
    return asked.encode() if type(asked) is str else b""


async def _send_last(stream: Stream, frame: bytes) -> None:
    """Send the last frame, and wait until the remote has read and closed, because libp2p has no half-close."""
    await stream.send(frame)
    with contextlib.suppress(PeerFault):
        await stream.receive(1)

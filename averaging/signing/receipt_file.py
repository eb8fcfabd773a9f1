"""Signed commits as a file that anyone can keep and check: JSON lines, one receipt each. Pure.

A receipt contains the signed bytes and a readable copy of their content. A checker trusts only the bytes and compares
the copy with them. The receipt also contains the run id and manifest hash, which are needed to check a signature, and
the sizes of the model's fragments, which are needed to count tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from averaging.signing.commit_credit import CreditedRound, round_of
from averaging.signing.round_signatures import Checker, Scope, Verify
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.messages import Commit
from dht.ground.errors import PeerFault
from dht.ground.fields import pack
from dht.ground.host import PeerId

MAX_LINE_BYTES: Final = 256 * 1024
"""The largest commit takes 215 kB in base64, and its readable fields 30 kB."""
MAX_FRAGMENTS: Final = 4096
MAX_PARAMETERS: Final = 2**44
KIND: Final = "murmuration receipt 1"


class ReceiptFault(ValueError):
    """A line is not a receipt, or a receipt was changed. The text says which line and why."""


@dataclass(frozen=True, slots=True)
class RunFrame:
    """Fields that the receipts of one run under one manifest share."""

    run_id: str
    manifest_hash: bytes
    fragment_sizes: tuple[int, ...]

    @property
    def limits(self) -> Limits:
        """Limits of the frames in receipts, which carry no payload."""
        return Limits(self.fragment_sizes, 0)


def commit_of(frame: bytes, run: RunFrame, verify: Verify) -> Commit:
    """Return the commit in a frame, after checking all signatures.

    Raises:
        ReceiptFault: the frame is not a commit, or its leader or a reducer did not sign it for this run and manifest.
    """
    commit = _commit_in(frame, run)
    if objection := Checker(Scope(run.run_id, run.manifest_hash), verify).objection(commit):
        raise ReceiptFault(f"{objection}, for run {run.run_id} and its manifest {run.manifest_hash.hex()[:12]}")
    return commit


def line_of(frame: bytes, run: RunFrame) -> str:
    """Return one receipt as a line of a file, without the line end.

    Raises:
        ReceiptFault: the frame is not a commit of this run's model.
    """
    commit = _commit_in(frame, run)
    fields = {
        "kind": KIND,
        "run_id": run.run_id,
        "manifest_hash": run.manifest_hash.hex(),
        "fragment_sizes": list(run.fragment_sizes),
        **_readable(commit),
        "commit": base64.b64encode(frame).decode("ascii"),
    }
    return json.dumps(fields, separators=(",", ":"))


def read_line(line: str, verify: Verify) -> tuple[RunFrame, Commit]:
    """Return the content of one receipt, completely checked.

    Raises:
        ReceiptFault: the line is not a receipt, or was changed.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ReceiptFault(f"it has {len(line)} characters; expected at most {MAX_LINE_BYTES}")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ReceiptFault(f"it is not JSON ({type(error).__name__}); expected one receipt per line") from error
    if type(found) is not dict or found.get("kind") != KIND:
        raise ReceiptFault(f'it is not a receipt; expected an object of kind "{KIND}"')
    run = _run_frame(found)
    text = found.get("commit")
    try:
        frame = base64.b64decode(text, validate=True) if type(text) is str else b""
    except ValueError as error:
        raise ReceiptFault('its "commit" is not base64') from error
    commit = commit_of(frame, run, verify)
    for name, value in _readable(commit).items():
        if found.get(name) != value:
            told = str(found.get(name))[:60]
            raise ReceiptFault(f'its field "{name}" is {told}; the signed bytes contain {str(value)[:60]}')
    return run, commit


@dataclass(frozen=True, slots=True)
class Receipts:
    """Content of a file of receipts."""

    run_id: str
    rounds: tuple[CreditedRound, ...]
    num_parameters: int


def read_receipts(lines: Iterable[str], verify: Verify, run_id: str = "") -> Receipts:
    """Read a whole file, skipping empty lines.

    Args:
        run_id: the run of all receipts; empty: any one run.

    Raises:
        ReceiptFault: a line is malformed or belongs to another run or model, or the file holds no receipt.
    """
    rounds: list[CreditedRound] = []
    sizes: tuple[int, ...] = ()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            run, commit = read_line(line, verify)
            if run_id and run.run_id != run_id:
                raise ReceiptFault(f"it belongs to run {run.run_id}; expected {run_id}")
            if sizes and run.fragment_sizes != sizes:
                raise ReceiptFault(
                    "its fragment sizes differ from those of earlier lines; expected receipts of one model"
                )
        except ReceiptFault as fault:
            raise ReceiptFault(f"line {number}: {fault}") from fault
        run_id, sizes = run.run_id, run.fragment_sizes
        rounds.append(round_of(commit, sum(sizes)))
    if not rounds:
        raise ReceiptFault("it contains no receipt; expected one JSON object per line")
    return Receipts(run_id, tuple(rounds), sum(sizes))


def _commit_in(frame: bytes, run: RunFrame) -> Commit:
    try:
        commit, _ = frames.decode(frame, PeerId(""), run.limits)
    except PeerFault as fault:
        raise ReceiptFault(f"its bytes are not a signed commit: {fault.what}") from fault
    if not isinstance(commit, Commit):
        raise ReceiptFault(f"its bytes are a {commit.KIND}; expected a commit")
    return commit


def _readable(commit: Commit) -> dict[str, Any]:
    tokens = commit.tokens_averaged
    return {
        "fragment": commit.fragment,
        "version": commit.version,
        "leader": commit.leader,
        "tokens": commit.tokens,
        "contributors": {commit.roster[index].peer_id: tokens[index] for index in commit.included},
    }


def _run_frame(found: dict[str, Any]) -> RunFrame:
    run_id, manifest_hash, sizes = found.get("run_id"), found.get("manifest_hash"), found.get("fragment_sizes")
    if type(run_id) is not str or not 0 < len(run_id) <= 80 or not run_id.isprintable():
        raise ReceiptFault('its "run_id" is not a run id')
    try:
        digest = bytes.fromhex(manifest_hash) if type(manifest_hash) is str else b""
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ReceiptFault('its "manifest_hash" is not a hash; expected 64 hexadecimal digits')
    if type(sizes) is not list or not 0 < len(sizes) <= MAX_FRAGMENTS or not all(_is_size(size) for size in sizes):
        raise ReceiptFault(
            'its "fragment_sizes" is not a list of sizes; expected the number of values of each fragment'
        )
    return RunFrame(run_id, digest, tuple(sizes))


def _is_size(size: object) -> bool:
    return type(size) is int and 0 < size <= MAX_PARAMETERS


def receipt_of(run: RunFrame, frame: bytes) -> bytes:
    """Return the bytes that a collector stores for a commit: the signed bytes, and the data to check them."""
    return pack([run.manifest_hash, list(run.fragment_sizes), frame])


def open_receipt(run_id: str, receipt: bytes) -> tuple[RunFrame, bytes]:
    """Return (run frame, signed bytes) of a receipt made by `receipt_of`.

    Raises:
        ReceiptFault: the bytes are not such a receipt.
    """
    try:
        items = msgpack.unpackb(receipt, raw=False, max_map_len=0, max_ext_len=0, max_array_len=MAX_FRAGMENTS)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise ReceiptFault(f"bytes that are not a receipt ({type(error).__name__})") from error
    match items:
        case [bytes(manifest_hash), [*sizes], bytes(frame)] if (
            len(manifest_hash) == 32 and sizes and all(_is_size(size) for size in sizes)
        ):
            return RunFrame(run_id, manifest_hash, tuple(sizes)), frame
    raise ReceiptFault("bytes that are not a receipt; expected manifest hash, fragment sizes and signed bytes")

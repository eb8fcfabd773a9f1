"""The signed commits that lead to a checkpoint's anchor, stored in the file of each fragment.

Signed commits decide between two sides of a fork. So a peer that lost its commits on a restart would yield to a peer
with only a few. Commits that prove nothing are dropped without affecting the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgpack
import numpy as np

from averaging.arrays import U8
from averaging.signing.commit_chains import newest_run
from averaging.signing.commit_log import MAX_LOGGED_BYTES, MAX_LOGGED_COMMITS
from averaging.signing.round_signatures import Checker
from averaging.wire import frames as wire
from averaging.wire.field_checks import Limits
from averaging.wire.messages import Commit
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.ground.regular_files import read_regular

_CHECK_BYTES = 32


def packed_commits(frames: Sequence[bytes]) -> U8:
    """Return the frames, oldest first, as one array of bytes."""
    return np.frombuffer(msgpack.packb(list(frames), use_bin_type=True), np.uint8)


def earlier_commits(folder: Path, fragment: int) -> U8 | None:
    """Return the commits in a separate file of format 4, in the form of `packed_commits`; None if there is no such
    file.

    The file is a SHA-256 followed by msgpack [fragment, version, digest of the anchor, [frame, ...]].

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / f"commits-{fragment:04d}.bin"
    try:
        data = read_regular(path, 2 * MAX_LOGGED_BYTES)
        check, body = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
        if hashlib.sha256(body).digest() != check:
            raise ValueError("it does not match its SHA-256")
        *_, frames = msgpack.unpackb(body, max_array_len=MAX_LOGGED_COMMITS)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"{path.name} is damaged ({error})") from error
    return packed_commits(frames)


def unpacked_commits(
    data: bytes, fragment: int, version: int, sizes: Sequence[int], checker: Checker
) -> tuple[Commit, ...]:
    """Return the commits that lead to `version` of a fragment, oldest first; commits before a gap are left out.

    Args:
        sizes: numbers of values of all fragments.
        checker: checks this run's signatures.

    Raises:
        ValueError: `data` contains anything but valid commits; the message gives the reason.
    """
    try:
        frames = msgpack.unpackb(
            data, raw=False, max_map_len=0, max_ext_len=0, max_str_len=0, max_array_len=MAX_LOGGED_COMMITS
        )
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"they are damaged or from a different version ({type(error).__name__})") from error
    if type(frames) is not list or not all(type(frame) is bytes for frame in frames):
        raise ValueError("they are from a different version; expected a list of frames")
    commits = newest_run([_decoded(frame, sizes) for frame in frames])
    if any(commit.fragment != fragment for commit in commits):
        raise ValueError(f"some belong to another fragment; expected commits of fragment {fragment}")
    if commits and commits[-1].version + 1 != version:
        raise ValueError(f"they lead to version {commits[-1].version + 1}; expected version {version}")
    for commit in commits:
        if objection := checker.objection(commit):
            raise ValueError(f"one of them proves nothing: {objection}")
    return commits


def _decoded(frame: bytes, sizes: Sequence[int]) -> Commit:
    try:
        commit, _ = wire.decode(frame, PeerId(""), Limits(tuple(sizes), 0))
    except PeerFault as fault:
        raise ValueError(f"some of the bytes are not a commit: {fault.what}") from fault
    if not isinstance(commit, Commit):
        raise ValueError(f"one of them is a {commit.KIND}; expected only commits")
    return commit

"""The signed commits that lead to a checkpoint's anchors, in a file beside each fragment.

Between two sides of a fork signed commits decide. So a peer that forgot its own on a restart would give in to a peer
with a few. The file is not named in `checkpoint.json`. A fault in it costs the commits and never the checkpoint, and
software that does not know it passes it by. At most about a MiB per fragment is written each time.

    SHA-256 of all that follows, 32 bytes
    msgpack [fragment, version, digest of the anchor, [frame, ...]]    frames oldest first, as in `["log", ...]`
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgpack

from averaging.signing.commit_chains import newest_run
from averaging.signing.commit_log import MAX_LOGGED_BYTES, MAX_LOGGED_COMMITS
from averaging.signing.round_signatures import Checker
from averaging.wire import frames as wire
from averaging.wire.field_checks import MAX_HEADER_BYTES, Limits
from averaging.wire.messages import KEPT_COMMITS, Commit
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.ground.regular_files import read_regular
from peer.checkpoint.checked_files import OpenFile, open_new

MAX_COMMITS_FILE_BYTES = MAX_LOGGED_BYTES + KEPT_COMMITS * (MAX_HEADER_BYTES + 16) + 16 * MAX_LOGGED_COMMITS + 256
"""A whole log: the newest frames stay in it whatever they take. The rest is what stands around the frames."""

_CHECK_BYTES = 32


class OtherAnchorError(ValueError):
    """The commits are well and lead to another anchor than the one that is here, such as an earlier one."""


def write_commits(
    folder: Path, fragment: int, version: int, digest: bytes, frames: Sequence[bytes], open_file: OpenFile = open_new
) -> None:
    """Write the commits that lead to the anchor of this version and digest; nothing is synced yet. Raises OSError."""
    body = msgpack.packb([fragment, version, digest, list(frames)], use_bin_type=True)
    with open_file(commits_path(folder, fragment)) as file:
        file.write(hashlib.sha256(body).digest() + body)


def read_commits(
    folder: Path, fragment: int, version: int, digest: bytes, sizes: Sequence[int], checker: Checker
) -> tuple[Commit, ...]:
    """The commits that lead to the anchor of this version and digest, oldest first; none where no file is.

    Args:
        sizes: of all fragments, in values.
        checker: of this run's signatures.

    Raises:
        ValueError: the file is damaged, of another run or anchor, or was changed; the text says what is wrong.
    """
    path = commits_path(folder, fragment)
    try:
        data = read_regular(path, MAX_COMMITS_FILE_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error
    frames = _frames_in(data, path.name, (fragment, version, digest))
    commits = newest_run([_decoded(frame, sizes, path.name) for frame in frames])
    if any(commit.fragment != fragment for commit in commits):
        raise ValueError(f"{path.name} has commits of another fragment; expected those of fragment {fragment}")
    if commits and commits[-1].version + 1 != version:
        led = commits[-1].version + 1
        raise ValueError(f"the commits in {path.name} lead to version {led}; expected version {version}")
    for commit in commits:
        if objection := checker.objection(commit):
            raise ValueError(f"{path.name} has a commit that proves nothing: {objection}")
    return commits


def commits_path(folder: Path, fragment: int) -> Path:
    """Where the commits of a fragment are, in the folder of a checkpoint."""
    return folder / f"commits-{fragment:04d}.bin"


def _frames_in(data: bytes, name: str, expected: tuple[int, int, bytes]) -> list[bytes]:
    check, body = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
    if hashlib.sha256(body).digest() != check:
        raise ValueError(f"{name} is damaged: it does not have its SHA-256")
    try:
        found = msgpack.unpackb(
            body, raw=False, max_map_len=0, max_ext_len=0, max_str_len=0, max_array_len=MAX_LOGGED_COMMITS
        )
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"{name} is damaged or of another version ({type(error).__name__})") from error
    match found:
        case [int(fragment), int(version), bytes(digest), [*frames]] if all(type(frame) is bytes for frame in frames):
            if (fragment, version, digest) != expected:
                told = f"version {version} of fragment {fragment}"
                raise OtherAnchorError(
                    f"{name} leads to {told}, not to the anchor of version {expected[1]} that is here"
                )
            return frames
    raise ValueError(f"{name} is of another version; expected an anchor and commits")


def _decoded(frame: bytes, sizes: Sequence[int], name: str) -> Commit:
    try:
        commit, _ = wire.decode(frame, PeerId(""), Limits(tuple(sizes), 0))
    except PeerFault as fault:
        raise ValueError(f"{name} has bytes that are no commit: {fault.what}") from fault
    if not isinstance(commit, Commit):
        raise ValueError(f"{name} has a {commit.KIND}; expected commits")
    return commit

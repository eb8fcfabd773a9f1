"""The error tree.

    MurmurationError
    ├── PeerFault        a remote misbehaved; names its PeerId; never escapes a round
    │   └── PeerUnreachable   the remote could not be reached or stopped answering
    └── LocalFault       this peer cannot continue; the message tells its owner what to do (exit code 1)
        ├── UsageFault        a flag, a file or a value in a file is wrong (exit code 2)
        ├── NobodyReachable   no member of the run answered in time (exit code 3)
        ├── Incompatible      this peer cannot take part in this run as it is (exit code 4)
        ├── DeviceFault       the compute device is missing or too small (exit code 5)
        └── DaemonFault       the network daemon died or does not answer: try again (exit code 1)

Each message states the received value, the expected value and the remedy.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from dht.ground.fields import printable

EXIT_INTERRUPTED = 130
"""Exit code of a program that Ctrl+C ended (128 + SIGINT), as shells report it."""


class InterruptionTold(KeyboardInterrupt):
    """Ctrl+C was pressed, and the terminal already shows what happened to the work."""


class MurmurationError(Exception):
    """Base class of all errors that Murmuration raises deliberately."""


class PeerFault(MurmurationError):
    """A remote peer sent something wrong. The local peer continues without it."""

    def __init__(self, peer_id: str, what: str) -> None:
        # The text may quote the remote, and appears in logs, events and sentences of one line.
        what = printable(what)
        super().__init__(f"peer {printable(peer_id[-8:]) if peer_id else '(unknown)'}: {what}")
        self.peer_id = peer_id
        self.what = what


class PeerUnreachable(PeerFault):
    """A remote peer could not be dialled, closed the stream, or missed a deadline.

    Attributes:
        reason: the cause alone, without the attempt and the next step; the whole text if nothing shorter is known.
    """

    def __init__(self, peer_id: str, what: str, reason: str = "") -> None:
        super().__init__(peer_id, what)
        self.reason = printable(reason) or self.what


class LocalFault(MurmurationError):
    """This peer must stop. The message states the cause and what its owner can do."""

    exit_code = 1


class UsageFault(LocalFault):
    """A flag, a file or a value in a file is wrong."""

    exit_code = 2


class NobodyReachable(LocalFault):
    """No member of the run answered before the join timeout."""

    exit_code = 3


class Incompatible(LocalFault):
    """This peer cannot take part: the software or model does not match, it is not admitted, or the run has ended."""

    exit_code = 4


class DeviceFault(LocalFault):
    """The chosen compute device is missing or too small."""

    exit_code = 5


class DaemonFault(LocalFault):
    """The network daemon died or does not answer. Another try usually succeeds."""


def words_of(error: BaseException, otherwise: str = "") -> str:
    """Return the text of an exception or, if it has none (like many timeouts), `otherwise` or its type's name."""
    return str(error) or otherwise or type(error).__name__


@contextlib.contextmanager
def reading(what: object, expected: str = "a readable file") -> Iterator[None]:
    """Context for reading a file that the user chose; `what` and `expected` are parts of the error sentence.

    Raises:
        UsageFault: the file cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise UsageFault(f"{what} cannot be read ({error.strerror or error}); expected {expected}") from error


def unwritable(path: object, error: OSError, advice: str = "choose another place for it") -> LocalFault:
    """Return the error sentence for a file or folder of this machine that cannot be created or written."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        what = "is a file" if Path(str(path)).is_file() else "is not a folder, or is not inside one"
        return UsageFault(f"{path} {what}; expected a writable folder; {advice}")
    free = "free some space, or " if error.errno == errno.ENOSPC else ""
    return LocalFault(
        f"{path} cannot be written: {error.strerror or error}; expected a writable folder with free space; "
        f"{free}{advice}"
    )


@contextlib.contextmanager
def writing(path: object, advice: str = "choose another place for it") -> Iterator[None]:
    """Context for creating or writing a file or folder of this machine.

    Raises:
        LocalFault: the error of `unwritable`.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, advice) from error

"""The end of a command: its exit code, and one sentence instead of a traceback."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from dht.ground.errors import EXIT_INTERRUPTED, InterruptionTold, LocalFault, MurmurationError, UsageFault
from peer.console.notices import say
from peer.console.plain_output import plain_output
from peer.import_path import PACKAGES

_REFUSED_BY_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
"""A full or broken disk or output, limits on open files, no memory: problems that this software cannot solve."""
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
"""Errors for a typed path that cannot be a path."""


_BEGINNING = re.compile(
    r"(?:the|this|these|a|an|no|none|nobody|nothing|all|another|there|you|cannot|asked|waited|interrupted|members)"
    r"(?:\.?\Z|\.? )"
    r"|(?:run|port|user|process|member|fragment|rank|revision|invite|parameter|optimizer) ['0-9]"
)
"""Matches a sentence that begins with a common word instead of the name of a file or field."""


def exits_with_sentence(command: Callable[..., int | None]) -> Callable[..., None]:
    """Turn an exception of a command into one sentence on standard error and an exit code."""

    @functools.wraps(command)
    def reported(*positional: Any, **named: Any) -> None:
        with plain_output():
            raise typer.Exit(
                code_of(lambda: command(*positional, **named), list(_typed([*positional, *named.values()])))
            )

    def code_of(run: Callable[[], int | None], typed: list[str]) -> int:
        began = time.time()
        try:
            with _terminable():
                code = run() or 0
            sys.stdout.flush()
        except MurmurationError as error:
            say(in_house_style(str(error), typed))
            code = error.exit_code if isinstance(error, LocalFault) else 1
        except InterruptionTold:
            code = EXIT_INTERRUPTED
        except KeyboardInterrupt:
            _say("interrupted.")
            code = EXIT_INTERRUPTED
        except BrokenPipeError:
            # The reader (`| head`) has closed the pipe; without this, the interpreter prints an error when it ends.
            _drop_output()
            code = 1
        except OSError as error:
            if _is_nowhere():
                _say("the current folder no longer exists; expected an existing folder; change to another folder.")
                return LocalFault.exit_code
            if error.errno in _NO_PATH:
                _say(f"{str(error.filename)[:80]!r}: {error.strerror}; expected the path of a file or folder.")
                return UsageFault.exit_code
            if isinstance(error, PermissionError) and error.filename:
                _say(
                    f"{error.filename}: {error.strerror}; expected a path that you may read and write; choose another "
                    "path."
                )
                return LocalFault.exit_code
            if error.errno not in _REFUSED_BY_THE_MACHINE:
                _say(_bug(error, began))
            else:
                what = error.filename or "a file or the output"
                _say(f"this machine refused {what}: {error.strerror}; expected free disk space; free some, and retry.")
            _drop_output()
            code = 1
        except Exception as error:  # noqa: BLE001 (a bug: the user gets a file to report instead of a long traceback)
            # pydantic wraps KeyboardInterrupt in its own error if the signal arrives while a class is created.
            was_interrupted = KeyboardInterrupt.__name__ in str(error)
            _say("interrupted." if was_interrupted else _bug(error, began))
            code = EXIT_INTERRUPTED if was_interrupted else 1
        return code

    return reported


def _is_nowhere() -> bool:
    """Return whether the working folder was deleted, so that relative paths no longer exist."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl+C does; otherwise processes that the command started would keep running.

    The handler is set before slow imports, because the first process of a container receives no SIGTERM without a
    handler.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _bug(error: Exception, began: float) -> str:
    if (path := replaced_since(began)) is not None:
        return (
            f"this software was replaced while the command ran ({path} is a different file now), and a part that it "
            f"needed ({type(error).__name__}) is gone; expected the version that was started; run the command again."
        )
    return f"this is a bug ({type(error).__name__}); please report it with the file {_write_traceback(error)}."


def replaced_since(began: float) -> str | None:
    """Return a file of our loaded code that was removed, or replaced after `began` (unix seconds), as `pip` does."""
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] not in PACKAGES or not path:
            continue
        try:
            if os.stat(path).st_ctime > began:
                return str(path)
        except FileNotFoundError:
            return str(path)
        except OSError:
            continue  # the disk does not answer
    return None


def _drop_output() -> None:
    """Discard all remaining output, because the interpreter would otherwise try to write it again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_traceback(error: Exception) -> str:
    from peer.user_folders import user_data_dir_here

    text = "".join(traceback.format_exception(error))
    for place in (user_data_dir_here, lambda: Path(tempfile.gettempdir())):
        try:
            folder = place()
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(dir=folder, prefix="crash-", suffix=".txt", text=True)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except (OSError, UsageFault):
            continue  # no home folder, a full disk
        return path
    return "that could not be written; here it is instead:\n" + text


def _typed(values: Iterable[Any]) -> Iterator[str]:
    """Yield each text or path among a command's values, first unchanged, then split at `:` and `,`."""
    for value in values:
        if isinstance(value, str | Path):
            yield from filter(None, (str(value), *re.split("[:,]", str(value))))
        elif isinstance(value, list | tuple):
            yield from _typed(value)
        elif isinstance(choices := getattr(value, "obj", None), dict):  # of a context
            yield from _typed(choices.values())


def in_house_style(text: str, typed: Iterable[str] = ()) -> str:
    """Return a message as a sentence with a full stop, and a capital unless it begins with a name, a flag or a file.

    Messages are composed of parts, so the beginning of one message may be in the middle of another.

    Args:
        typed: texts of the command line; a message that begins with one of them keeps its first letter.
    """
    if _BEGINNING.match(text) and not text.startswith(tuple(typed)):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."


def _say(sentence: str) -> None:
    say(in_house_style(sentence))

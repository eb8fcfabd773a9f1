"""How a command ends: its exit code, and one sentence in place of a traceback."""

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
"""A full or broken disk or output, limits on open files, no memory: nothing that this software can do about."""
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
"""Of what somebody typed as one."""


_BEGINNING = re.compile(
    r"(?:the|this|these|a|an|no|none|nobody|nothing|all|another|there|you|cannot|asked|waited|interrupted|members)"
    r"(?:\.?\Z|\.? )"
    r"|(?:run|port|user|process|member|fragment|rank|revision|invite|parameter|optimizer) ['0-9]"
)
"""A word of a sentence, and not the name of somebody's file or field."""


def exits_with_sentence(command: Callable[..., int | None]) -> Callable[..., None]:
    """Turn what a command raises into one sentence on standard error and an exit code."""

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
            # The reader (`| head`) has gone; without this the interpreter complains once more when it ends.
            _drop_output()
            code = 1
        except OSError as error:
            if _is_nowhere():
                _say("the current folder no longer exists; expected an existing folder; change to another one.")
                return LocalFault.exit_code
            if error.errno in _NO_PATH:
                _say(f"{str(error.filename)[:80]!r}: {error.strerror}; expected the path of a file or folder.")
                return UsageFault.exit_code
            if isinstance(error, PermissionError) and error.filename:
                _say(f"{error.filename}: {error.strerror}; expected what you may read and write; choose another place.")
                return LocalFault.exit_code
            if error.errno not in _REFUSED_BY_THE_MACHINE:
                _say(_bug(error, began))
            else:
                what = error.filename or "a file or the output"
                _say(f"this machine refused {what}: {error.strerror}; expected free disk space; free some, and retry.")
            _drop_output()
            code = 1
        except Exception as error:  # noqa: BLE001 (a bug: its owner gets a file to report instead of a screenful)
            # pydantic has it in an error of its own when it comes while a class is made.
            was_interrupted = KeyboardInterrupt.__name__ in str(error)
            _say("interrupted." if was_interrupted else _bug(error, began))
            code = EXIT_INTERRUPTED if was_interrupted else 1
        return code

    return reported


def _is_nowhere() -> bool:
    """Whether the working folder was deleted: relative paths, and those made absolute, lead nowhere then."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl+C does, cleaning up; without this it would leave what it has started.

    Set before anything heavy is imported: as the first process of a container a program gets no SIGTERM until then.
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
            f"this software was replaced while the command ran ({path} is another file now), and a part that it needed "
            f"({type(error).__name__}) is gone; expected the version that was started; run the command again."
        )
    return f"this is a bug ({type(error).__name__}); please report it with the file {_write_traceback(error)}."


def replaced_since(began: float) -> str | None:
    """A file of our loaded code that is gone, or was written after `began` (unix seconds), as `pip install` does."""
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
            continue  # a disk that does not answer tells nothing
    return None


def _drop_output() -> None:
    """What is still to be written goes nowhere: the interpreter would try once more when it ends."""
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
    """Texts and paths among the values of a command, whole and in the parts that `:` and `,` make of them."""
    for value in values:
        if isinstance(value, str | Path):
            yield from filter(None, (str(value), *re.split("[:,]", str(value))))
        elif isinstance(value, list | tuple):
            yield from _typed(value)
        elif isinstance(choices := getattr(value, "obj", None), dict):  # of a context
            yield from _typed(choices.values())


def in_house_style(text: str, typed: Iterable[str] = ()) -> str:
    """A message as a sentence: with a capital, unless it begins with a name, a flag or a file, and with a full stop.

    Messages are put together of parts, so that the beginning of one may stand inside another.

    Args:
        typed: texts of the command line; a message that begins with one keeps it as it is.
    """
    if _BEGINNING.match(text) and not text.startswith(tuple(typed)):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."


def _say(sentence: str) -> None:
    say(in_house_style(sentence))

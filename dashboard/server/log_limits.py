"""Limit log lines caused by strangers: one short line for each kind and minute, with their number."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

from dht.ground.bounds import Newest

QUIET_SECONDS: Final = 60.0
MAX_KINDS: Final = 256
MAX_REASON_LENGTH: Final = 100


class OncePerMinute(logging.Filter):
    """Filter for a logger: passes the first line of each kind, and after a minute the next one, with the number in
    between.

    A kind is the text without its arguments, and the type of the exception. A request that is not HTTP is logged
    without a traceback; errors of this software keep theirs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen = Newest[tuple[str, str], tuple[float, int]](MAX_KINDS)
        """By kind: when a line last passed, and how many were dropped since."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        kind = str(record.msg).partition("\n")[0], type(error).__name__
        at, num_more = self._seen.get(kind, (-QUIET_SECONDS, 0))
        if 0 <= record.created - at < QUIET_SECONDS:
            self._seen[kind] = at, num_more + 1
            return False
        self._seen[kind] = record.created, 0
        if isinstance(error, HttpProcessingError):
            remote = record.args[0] if isinstance(record.args, tuple) and record.args else "somebody"
            reason = " ".join(str(error.message).split())[:MAX_REASON_LENGTH]
            record.msg, record.args = "%s sent bytes that are not an HTTP request: %r", (remote, reason)
            record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
        elif isinstance(error, OSError):
            record.msg, record.args, record.exc_info = "%s: %s", (kind[0], error.strerror or error), None
        if num_more:
            record.msg, record.args = f"%s (and {num_more} more like it before)", (record.getMessage(),)
        return True

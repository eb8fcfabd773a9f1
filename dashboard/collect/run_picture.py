"""The run's picture, fetched from members: a file of the run whose digest the owner signed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from dashboard.history_facts import Picture
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.host import Host, PeerId
from dht.ground.regular_files import read_regular
from dht.observer.network import ObserverEntry
from dht.records.signed_manifest import RunRecord

MAX_BYTES: Final = 512 * 1024
"""As a manifest allows; a page holds no more of it."""
PATIENCE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


def picture_of(content: bytes) -> Picture | None:
    """What a browser may be given; None: it begins like no PNG, JPEG or WebP.

    The type is told by the content, not by the name, and browsers are told to believe it (`nosniff`).
    """
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        content_type = "image/png"
    elif content.startswith(b"\xff\xd8\xff"):
        content_type = "image/jpeg"
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        content_type = "image/webp"
    else:
        return None
    return Picture(content, content_type, hashlib.sha256(content).hexdigest()[:12])


async def fetch_picture(
    host: Host,
    record: RunRecord,
    name: str,
    donors: Callable[[], Awaitable[Sequence[PeerId]]],
    entry: ObserverEntry | None,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Picture | None:
    """The picture called `name` among the run's files, as soon as a member gives it; None: it is none.

    Raises:
        OSError: there is no room for it.
    """
    # It loads numpy and the kernels.
    from peer.observe.observer import fetch_run_file

    with tempfile.TemporaryDirectory(prefix="murmuration-picture-") as folder:
        while True:
            try:
                path = await fetch_run_file(host, record, name, Path(folder), donors, PATIENCE_SECONDS, entry)
                return picture_of(await asyncio.to_thread(read_regular, path, MAX_BYTES))
            except (PeerFault, LocalFault) as fault:
                log.info("no picture yet: %s", fault)
            await wait(RETRY_SECONDS)

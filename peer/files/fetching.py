"""Fetch the files of a run from its members. A member that sends wrong data is not asked again; others are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from averaging.codec.digests import digest_of
from averaging.lanes.handshake import HandshakePolicy
from averaging.transfer.client import fetch_file_header
from averaging.transfer.many_donors import Transfer
from averaging.wire.file_chunks import num_file_chunks
from dht.ground.compute import Compute
from dht.ground.errors import NobodyReachable, PeerFault, PeerUnreachable
from dht.ground.host import Host, PeerId
from dht.ground.quantities import bytes_text, plural, short_peer
from dht.ground.tasks import in_turn
from peer.config.allowed_files import FileSection
from peer.config.manifest import RunManifest
from peer.files.checked_folder import files_folder, missing_files, objection_to
from peer.files.partial_file import FileDraft

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 10.0
"""Time between two rounds of requests to all members: one that has the files may just be starting."""
HEADER_SECONDS = 2.0
"""Wait before another member is asked for a file's chunk digests: the response is short and ready at once."""
MAX_REASONS_SHOWN = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchedFiles:
    """The number of fetched bytes, and the donors, in order of the bytes that they sent."""

    names: tuple[str, ...]
    num_bytes: int
    donors: tuple[PeerId, ...]


@dataclass(eq=False)
class FileFetcher:
    """Fetches the files of a run into a data folder.

    Attributes:
        donors: returns the members that may have the files now; called again and again.
        patience_seconds: the fetch is abandoned after this long without a new chunk.
        compute: runs the reading and checking of files.
        on_bytes: called with (arrived, all) bytes of the missing files.
        on_waiting: called with (reason, seconds) while no member sends data.
    """

    host: Host
    handshake_policy: HandshakePolicy
    data_dir: Path
    manifest: RunManifest
    donors: Callable[[], Awaitable[Sequence[PeerId]]]
    patience_seconds: float
    compute: Compute
    on_bytes: Callable[[int, int], None] = lambda arrived, total: None
    on_waiting: Callable[[str, float], None] = lambda reason, seconds: None

    def __post_init__(self) -> None:
        self._folder = files_folder(self.data_dir, self.manifest)
        self._spoilt: dict[str, str] = {}
        self._total_bytes = 0
        self._arrived_bytes = 0
        self._moved_at = 0.0
        self._given: Counter[PeerId] = Counter()
        self._wrong: dict[PeerId, str] = {}
        self._silent: dict[PeerId, str] = {}

    async def run(self) -> FetchedFiles:
        """Fetch every file. Files that are there already are only checked.

        Raises:
            NobodyReachable: no member sent one of the files; the message names the file and the reason.
            LocalFault: the folder cannot be written, the disk is full, or the manifest contradicts itself.
        """
        loop = asyncio.get_running_loop()
        missing = await self.compute(partial(missing_files, self.data_dir, self.manifest))
        here = [(file, self._folder / file.name) for file in missing if (self._folder / file.name).exists()]
        self._spoilt = {file.name: objection_to(path, file) for file, path in here}
        self._total_bytes = sum(file.bytes for file in missing)
        began = self._moved_at = loop.time()
        names, pause = tuple(file.name for file in missing), FIRST_PAUSE_SECONDS
        while missing:
            donors = [name for name in await self.donors() if name not in self._wrong]
            self._silent = {name: why for name, why in self._silent.items() if name in donors}
            for file in list(missing):
                if await self._fetch(file, donors):
                    missing.remove(file)
            if not missing:
                break
            if loop.time() - self._moved_at >= self.patience_seconds:
                raise self._given_up(missing[0], donors)
            self.on_waiting(self._reason(missing[0], donors), loop.time() - began)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        givers = sorted(self._given, key=lambda donor: (-self._given[donor], donor))
        return FetchedFiles(names, self._total_bytes, tuple(givers))

    async def _fetch(self, file: FileSection, donors: Sequence[PeerId]) -> bool:
        """Fetch one file, and return whether it is complete now."""
        donors = [donor for donor in donors if donor not in self._wrong]
        digests = await self._chunk_digests(file, donors)
        if digests is None:
            return False
        before = self._arrived_bytes

        def count(num_bytes: int) -> None:
            self._arrived_bytes += num_bytes
            self.on_bytes(self._arrived_bytes, self._total_bytes)

        draft = FileDraft(self._folder, file, digests)
        transfer = Transfer(self.host, self.handshake_policy, draft, count)
        await transfer.take_kept(draft.kept())
        is_whole = transfer.is_complete or await transfer.run(donors)
        if transfer.given_bytes:
            self._moved_at = asyncio.get_running_loop().time()
        self._given.update(transfer.given_bytes)
        for donor, fault in transfer.faults.items():
            self._note(donor, fault)
        if not is_whole:
            self._arrived_bytes = before  # received chunks are kept, and counted again next time
            return False
        await self.compute(draft.finish)
        return True

    async def _chunk_digests(self, file: FileSection, donors: Sequence[PeerId]) -> Sequence[bytes] | None:
        """Return the digests of a file's chunks: for one chunk its own digest, for several a list that a
        member sends.
        """
        digest = bytes.fromhex(file.digest)
        if num_file_chunks(file.bytes) == 1:
            return (digest,)
        calls = [partial(self._chunk_digests_of, donor, file, digest) for donor in donors]
        async with contextlib.aclosing(in_turn(calls, HEADER_SECONDS)) as answers:
            async for found in answers:
                if found is not None:
                    return found
        return None

    async def _chunk_digests_of(self, donor: PeerId, file: FileSection, digest: bytes) -> Sequence[bytes] | None:
        try:
            num_chunks = num_file_chunks(file.bytes)
            found = await fetch_file_header(self.host, self.handshake_policy, donor, digest, num_chunks)
            if found is not None and digest_of(b"".join(found)) != digest:
                raise PeerFault(donor, f"sent wrong digests for the chunks of the file {file.name}")
        except PeerFault as fault:
            self._note(donor, fault)
            return None
        return found

    def _note(self, donor: PeerId, fault: PeerFault) -> None:
        if isinstance(fault, PeerUnreachable):
            self._silent[donor] = fault.what
            return
        log.warning("%s %s; this peer does not ask it for files of the run again", short_peer(donor), fault.what)
        self._wrong[donor] = fault.what

    def _reason(self, file: FileSection, donors: Sequence[PeerId]) -> str:
        num_asked = len({*donors, *self._wrong})
        here = f"; the copy in {self._folder} {self._spoilt[file.name]}" if file.name in self._spoilt else ""
        if not num_asked:
            return f"no member is online that could send the file {file.name} of the run{here}"
        return f"none of {plural(num_asked, 'member')} sent the file {file.name} of the run{self._why()}{here}"

    def _why(self) -> str:
        reasons = [f"{short_peer(name)} {what}" for name, what in (self._wrong | self._silent).items()]
        more = f"; and {len(reasons) - MAX_REASONS_SHOWN} more" if len(reasons) > MAX_REASONS_SHOWN else ""
        return f" ({'; '.join(reasons[:MAX_REASONS_SHOWN])}{more})" if reasons else ""

    def _given_up(self, file: FileSection, donors: Sequence[PeerId]) -> NobodyReachable:
        return NobodyReachable(
            f"{self._reason(file, donors)}; expected a member that has it ({bytes_text(file.bytes)}, BLAKE3 "
            f"{file.digest[:16]}...), or the file in {self._folder}; try again while the seed of the run's owner is "
            "up"
        )

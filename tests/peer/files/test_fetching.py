"""A newcomer fetches the files of a run: from many members, beside hostile ones, and again after it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from averaging.codec.digests import digest_of
from averaging.lanes.handshake import greet_incoming
from averaging.transfer.many_donors import DONORS_AT_ONCE
from averaging.transfer.messages import FRAME_SECONDS, STATE_PROTOCOL, unpack
from averaging.transfer.server import StateServer
from averaging.wire.file_chunks import FILE_CHUNK_BYTES, file_chunk_lengths
from dht.ground.compute import compute_inline
from dht.ground.errors import LocalFault, NobodyReachable, PeerFault
from dht.ground.fields import pack
from dht.ground.host import PeerId, Stream
from peer.files.checked_folder import checked_folder, files_folder
from peer.files.fetching import FetchedFiles, FileFetcher
from peer.files.serving import ServedFiles, read_served
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.owner.new_run import create_run
from tests.kit.network.memory_networks import MIB, fixed_network, named, now
from tests.kit.rounds.donor_scene import RULE, UPLOAD
from tests.simulator.network.host import MemoryHost
from tests.simulator.network.lines import LineSettings
from tests.simulator.virtual_time import run_virtual

SMALL, LARGE = b"{}", os.urandom(9 * MIB + 7)
ME, HONEST, HOSTILE = named(1), named(2), named(3)
PATIENCE_SECONDS = 20.0

Play = Callable[["Scene"], Awaitable[None]]


class NoState:
    """`StateSource` of a member that has nothing yet."""

    async def snapshot(self, fragment: int) -> None:
        return None

    def digest_at(self, fragment: int, version: int) -> bytes:
        return b""

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        return ()


class Scene:
    """An owner's folder, members that serve it, and a newcomer."""

    def __init__(self, folder: Path) -> None:
        sources = folder / "sources"
        sources.mkdir(exist_ok=True)
        paths = [sources / "README.md", sources / "weights.safetensors"]
        for path, content in zip(paths, (SMALL, LARGE), strict=True):
            path.write_bytes(content)
        self.owner = folder / "owner"
        self.manifest = create_run("tiny", None, self.owner, replace=True, files=paths).manifest
        self.mine = folder / "mine"
        self.network = fixed_network(upload_bits_per_second=UPLOAD, download_bits_per_second=400e6)
        self.host = MemoryHost(self.network, ME)
        self.there: list[PeerId] = []
        self.waits: list[str] = []
        self.arrived: list[tuple[int, int]] = []

    def serve(self, name: PeerId, most_bits_per_second: float = float("inf")) -> ServedFiles:
        files = ServedFiles(read_served(self.owner, self.manifest))
        host = MemoryHost(self.network, name, LineSettings(UPLOAD))
        door = RunHandshakePolicy(RULE, name, "trainer")
        StateServer(
            *(host, door, NoState(), 1),  # type: ignore[arg-type]
            most_bits_per_second=lambda: most_bits_per_second,
            files=files,
        )
        self.there.append(name)
        return files

    def lie(self, name: PeerId, answer: Callable[[Stream, list[object]], Awaitable[None]]) -> list[str]:
        """A member that answers requests as it likes; returns the kinds that it was asked for."""
        asked: list[str] = []

        async def serve(stream: Stream) -> None:
            await greet_incoming(stream, RunHandshakePolicy(RULE, name, "trainer"))
            with contextlib.suppress(PeerFault):
                while (frame := await stream.receive(256)) != b"ok":
                    request = unpack(frame, stream.remote, 6)
                    asked.append(request[0])
                    await answer(stream, request)

        MemoryHost(self.network, name, LineSettings(UPLOAD)).handle(STATE_PROTOCOL, serve)
        self.there.append(name)
        return asked

    async def fetch(self) -> FetchedFiles:
        async def donors() -> Sequence[PeerId]:
            return self.there

        fetcher = FileFetcher(
            *(self.host, RunHandshakePolicy(RULE, ME, "trainer")),
            *(self.mine, self.manifest, donors, PATIENCE_SECONDS, compute_inline),
            on_bytes=lambda arrived, total: self.arrived.append((arrived, total)),
            on_waiting=lambda reason, seconds: self.waits.append(reason),
        )
        fetched = await fetcher.run()
        self.check()
        return fetched

    def check(self) -> None:
        """What was fetched is what the owner has, and nothing else."""
        folder = checked_folder(self.mine, self.manifest)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            "README.md": SMALL,
            "weights.safetensors": LARGE,
        }


def in_scene(folder: Path, play: Play) -> Scene:
    async def main() -> Scene:
        scene = Scene(folder)
        await play(scene)
        assert scene.network.handler_errors == []
        return scene

    return run_virtual(main())


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


# ------------------------------------------------------------------------------------------------------- honest members


def test_files_come_from_all_who_have_them_and_are_bit_identical(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.there.append(named(9))  # is not there at all
        for number in (2, 3, 4, 5):
            scene.serve(named(number))
        began = now()
        fetched = await scene.fetch()
        assert fetched.names == ("README.md", "weights.safetensors")
        assert len(fetched.donors) == 4
        total = len(SMALL) + len(LARGE)
        assert fetched.num_bytes == total
        assert scene.arrived[-1] == (total, total)
        assert now() - began < 8 * len(LARGE) / UPLOAD / 2
        # What is there is checked, and not fetched again.
        sent = [scene.network.sent_bytes(named(number)) for number in (2, 3, 4, 5)]
        assert (await scene.fetch()).names == ()
        assert [scene.network.sent_bytes(named(number)) for number in (2, 3, 4, 5)] == sent

    in_scene(tmp_path, play)


def test_a_killed_newcomer_fetches_only_what_is_missing(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.serve(HONEST)
        first = asyncio.ensure_future(scene.fetch())
        while sum(length for length, _ in scene.arrived[-1:]) < 5 * MIB:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        folder = files_folder(scene.mine, scene.manifest)
        assert names_in(folder) == {"README.md", ".weights.safetensors.part"}
        # A chunk that the disk lost comes again; the others do not.
        with (folder / ".weights.safetensors.part").open("r+b") as opened:
            opened.seek(MIB)
            opened.write(b"lost")
        sent = scene.network.sent_bytes(HONEST)
        await scene.fetch()
        assert 5 * MIB < scene.network.sent_bytes(HONEST) - sent < 6.5 * MIB

    in_scene(tmp_path, play)


def test_a_member_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        fetching = asyncio.ensure_future(scene.fetch())
        await asyncio.sleep(PATIENCE_SECONDS / 2)
        scene.serve(HONEST)
        assert (await fetching).donors == (HONEST,)
        assert set(scene.waits) == {"no member is online that could send the file README.md of the run"}

    in_scene(tmp_path, play)


def test_a_file_here_that_is_another_one_is_told_and_replaced(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        folder = files_folder(scene.mine, scene.manifest)
        folder.mkdir(parents=True)
        (folder / "README.md").write_bytes(SMALL + b"!")
        fetching = asyncio.ensure_future(scene.fetch())
        await asyncio.sleep(PATIENCE_SECONDS / 2)
        scene.serve(HONEST)
        await fetching
        there = f"; the copy in {folder} has {len(SMALL) + 1} bytes, not {len(SMALL)}"
        assert set(scene.waits) == {f"no member is online that could send the file README.md of the run{there}"}

    in_scene(tmp_path, play)


def test_a_file_that_changes_on_a_donors_disk_comes_from_others(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        damaged = scene.serve(HOSTILE)
        path = files_folder(scene.owner, scene.manifest) / "weights.safetensors"
        path.write_bytes(LARGE[:-1] + b"!")
        (digest,) = [bytes.fromhex(one.digest) for one in scene.manifest.files if one.name == "weights.safetensors"]
        with pytest.raises(NobodyReachable, match=r"none of 1 member sent the file weights.safetensors"):
            await scene.fetch()
        assert damaged.chunk_digests(digest) == ()
        path.write_bytes(LARGE)
        scene.serve(HONEST)
        await scene.fetch()

    in_scene(tmp_path, play)


def test_a_donor_keeps_to_its_rate(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.serve(HONEST, most_bits_per_second=UPLOAD / 4)
        began = now()
        await scene.fetch()
        assert now() - began > 8 * (len(LARGE) - FILE_CHUNK_BYTES) / (UPLOAD / 4)

    in_scene(tmp_path, play)


# ------------------------------------------------------------------------------------------------------ hostile members


def lengths_of(request: list[object]) -> list[int]:
    """Of the chunks that are asked for."""
    _, digest, first, count = request
    assert isinstance(first, int)
    assert isinstance(count, int)
    num_bytes = len(SMALL) if digest == digest_of(SMALL) else len(LARGE)
    return file_chunk_lengths(num_bytes)[first : first + count]


def true_digests() -> list[bytes]:
    return [digest_of(LARGE[start : start + FILE_CHUNK_BYTES]) for start in range(0, len(LARGE), FILE_CHUNK_BYTES)]


async def _header(stream: Stream, request: list[object]) -> bool:
    """Answer a request for the list of chunks truly, so that the lie is in the chunks."""
    if request[0] == "file-header":
        await stream.send(pack(["file-header", b"".join(true_digests())]))
        return True
    await stream.send(pack(["file-chunks"]))
    return False


async def wrong_bytes(stream: Stream, request: list[object]) -> None:
    if not await _header(stream, request):
        for length in lengths_of(request):
            await stream.send(bytes(length))


async def too_short(stream: Stream, request: list[object]) -> None:
    if not await _header(stream, request):
        await stream.send(b"x")


async def too_long(stream: Stream, request: list[object]) -> None:
    if not await _header(stream, request):
        await stream.send(bytes(FILE_CHUNK_BYTES + 1))


async def endless(stream: Stream, request: list[object]) -> None:
    if not await _header(stream, request):
        while True:
            await stream.send(bytes(FILE_CHUNK_BYTES))


async def silent(stream: Stream, request: list[object]) -> None:
    if not await _header(stream, request):
        await asyncio.sleep(10 * FRAME_SECONDS)


async def wrong_list(stream: Stream, request: list[object]) -> None:
    if request[0] == "file-header":
        await stream.send(pack(["file-header", bytes(32 * len(true_digests()))]))
    else:
        await stream.send(pack(["none"]))


async def long_list(stream: Stream, request: list[object]) -> None:
    await stream.send(pack(["file-header", bytes(10**6)]))


async def nonsense(stream: Stream, request: list[object]) -> None:
    await stream.send(b"\xc1\xff")


async def not_here(stream: Stream, request: list[object]) -> None:
    await stream.send(pack(["none"]))


async def always_busy(stream: Stream, request: list[object]) -> None:
    await stream.send(pack(["busy"]))


async def older(stream: Stream, request: list[object]) -> None:
    """A member that does not know the request: its handler ends the stream."""
    raise PeerFault(stream.remote, "sent a state request of unknown form")


LIES = (
    wrong_bytes,
    too_short,
    too_long,
    endless,
    silent,
    wrong_list,
    long_list,
    nonsense,
    not_here,
    always_busy,
    older,
)


@pytest.mark.parametrize("lie", LIES)
def test_beside_a_hostile_member_the_files_come_from_others(
    tmp_path: Path, lie: Callable[[Stream, list[object]], Awaitable[None]]
) -> None:
    async def play(scene: Scene) -> None:
        asked = scene.lie(HOSTILE, lie)
        scene.serve(HONEST)
        assert HOSTILE not in (await scene.fetch()).donors
        assert asked

    in_scene(tmp_path, play)


async def mute(stream: Stream, request: list[object]) -> None:
    await asyncio.sleep(10 * FRAME_SECONDS)


async def slowly_busy(stream: Stream, request: list[object]) -> None:
    await asyncio.sleep(FRAME_SECONDS - 1)
    await stream.send(pack(["busy" if request[0] == "file-chunks" else "none"]))


@pytest.mark.parametrize(("lie", "most_seconds"), [(always_busy, 10.0), (mute, 60.0), (slowly_busy, 60.0)])
def test_as_many_as_have_a_place_hold_a_newcomer_up_for_less_than_a_minute(
    tmp_path: Path, lie: Callable[[Stream, list[object]], Awaitable[None]], most_seconds: float
) -> None:
    """Busy and silent members are the first to be asked, for a list of chunks and for chunks of two files."""

    async def play(scene: Scene) -> None:
        for number in range(DONORS_AT_ONCE):
            scene.lie(named(10 + number), lie)
        scene.serve(HONEST)
        began = now()
        assert (await scene.fetch()).donors == (HONEST,)
        assert now() - began < 8 * len(LARGE) / UPLOAD + most_seconds

    in_scene(tmp_path, play)


@pytest.mark.parametrize("lie", LIES)
def test_among_hostile_members_alone_a_sentence_says_which_file_and_nothing_wrong_is_kept(
    tmp_path: Path, lie: Callable[[Stream, list[object]], Awaitable[None]]
) -> None:
    async def play(scene: Scene) -> None:
        scene.lie(HOSTILE, lie)
        with pytest.raises(NobodyReachable) as caught:
            await scene.fetch()
        said = str(caught.value)
        assert said.startswith("none of 1 member sent the file README.md of the run")
        folder = files_folder(scene.mine, scene.manifest)
        assert said.endswith(
            f"; expected a member that has it (2 B, BLAKE3 {digest_of(SMALL).hex()[:16]}...), or the file in {folder}; "
            "try again while the seed of the run's owner is up"
        )
        assert names_in(folder) == set()

    in_scene(tmp_path, play)


def test_a_liar_is_asked_once(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        asked = scene.lie(HOSTILE, wrong_bytes)
        with pytest.raises(NobodyReachable, match=r"\(.* sent a chunk of the file README.md that does not match"):
            await scene.fetch()
        assert asked == ["file-chunks"]

    in_scene(tmp_path, play)


# ------------------------------------------------------------------------------------------------------------ this side


def test_a_full_disk_is_said_and_what_has_come_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, num_written = os.open, 0

    def full_after_three(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        nonlocal num_written
        if str(path).endswith(".part") and flags & os.O_WRONLY:
            num_written += 1
            if num_written > 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, *args, **kwargs)

    async def play(scene: Scene) -> None:
        scene.serve(HONEST)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full_after_three)
            with pytest.raises(
                LocalFault, match=r"weights.safetensors cannot be written: No space left on device; .* are kept"
            ):
                await scene.fetch()
        sent = scene.network.sent_bytes(HONEST)
        await scene.fetch()
        assert scene.network.sent_bytes(HONEST) - sent < len(LARGE) - MIB

    in_scene(tmp_path, play)


def test_two_processes_may_fetch_into_one_folder(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.serve(HONEST)
        scene.serve(HOSTILE)
        await asyncio.gather(scene.fetch(), scene.fetch())

    in_scene(tmp_path, play)


def test_a_file_that_is_damaged_while_two_read_it_is_none_for_both(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        files = ServedFiles(read_served(scene.owner, scene.manifest))
        digest, (path, _) = next(iter(files.known.items()))
        path.write_bytes(b"other")
        assert [await files.chunk(digest, 0), await files.chunk(digest, 0)] == [b"", b""]

    in_scene(tmp_path, play)


def test_a_file_that_cannot_be_opened_for_a_moment_is_given_again_afterwards(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        faults = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

        async def compute(work: Callable[[], Any]) -> Any:
            if faults:
                raise faults.pop()
            return work()

        files = ServedFiles(read_served(scene.owner, scene.manifest), compute)
        digest = next(iter(files.known))
        assert [await files.chunk(digest, 0), await files.chunk(digest, 0)] == [b"", SMALL]

    in_scene(tmp_path, play)

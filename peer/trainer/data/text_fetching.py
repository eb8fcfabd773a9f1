"""Text that is tokenized during training: part by part, ahead of the loop, into shards in a cache folder.

A group is a part of the text (`documents.py`). Its shards stay in the cache, so no part is tokenized twice. When the
cache is full, the shards read longest ago are deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.quantities import plural
from dht.ground.regular_files import read_regular
from dht.records.data_reading import NUM_UNITS
from peer.config.data_source import HUB, LIBRARY
from peer.secret_files import make_secret_folder, write_secret
from peer.sources.hub_files import is_offline
from peer.trainer.data.context_blocks import GroupedStream, TokenStream, identity_of
from peer.trainer.data.document_packing import TokenizeOrder
from peer.trainer.data.fetching_within_disk_limit import Stock, patiently
from peer.trainer.data.loaded_tokenizer import token_dtype
from peer.trainer.data.shards import write_new
from peer.trainer.data.tokenize_pool import TokenizeWorker
from peer.trainer.data.tokenizing import TextTokenizer
from peer.trainer.text.documents import Complaints, FileRange, TextPart, files_of, parts_of
from peer.trainer.text.held_out import DIVISION, MOST_HELD_OUT, HeldOutRule, more_held_out
from peer.trainer.text.hub import hub_copy, hub_parts
from peer.trainer.text.source_files import FileTokens, OpenFiles, Tokens, library_files

SMALLEST_PART_BYTES, LARGEST_PART_BYTES = 1 << 20, 64 << 20
"""A part of 1 MiB is tokenized within 2 seconds, so training starts soon. Large data has one part per unit."""
MAX_HUB_PARTS = 4 * NUM_UNITS
"""Largest number of parts of a data set of the hub."""
COPY_PREFIX = "hub-copy-"
"""Prefix of the folder of a part that is being read; the process id follows."""
MAX_LIST_BYTES = 1 << 20
"""Size limit of the stored list of parts, 30 bytes each."""


@dataclass(frozen=True, slots=True)
class TextRules:
    """The text settings of a run.

    Attributes:
        min_held_out: number of held-out tokens that a measurement needs.
    """

    tokenizer: TextTokenizer
    text_field: str
    held_out_fraction: float
    vocab_size: int
    context: int
    min_held_out: int

    @property
    def identity(self) -> tuple[object, ...]:
        """All settings that determine the tokenized result."""
        return (self.tokenizer.digest, self.tokenizer.eos, self.text_field, self.held_out_fraction, DIVISION)


class SourceParts(NamedTuple):
    """A source of text, divided into parts.

    Attributes:
        identity: 32 bits that are the same for all peers with the same data; computed from names and lengths of files.
        state: 32 bits for the current files of this machine; when they change, the text is tokenized again.
        left_out: parts of the source that are not read, for people.
    """

    parts: list[TextPart]
    identity: int
    state: int
    left_out: Complaints


class TextStock:
    """Parts of a source as groups; implements `GroupFiles` for its `Stock`.

    Args:
        cache: folder for tokenized text; it also contains the folders of other data.
        note: receives sentences for the owner.
        limit_bytes: see `Stock`.
        is_own: the volunteer chose the source; see `hub_repository`.
    """

    def __init__(
        self,
        source: str,
        rules: TextRules,
        cache: Path,
        note: Callable[[str], None],
        limit_bytes: int | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        self._source = source
        self._is_own = is_own
        self._rules = rules
        self._is_far = source.startswith(HUB) and not is_offline()
        listed = partial(parts_of_source, source, cache, note, is_own=is_own)
        found = patiently(listed, note) if self._is_far else listed()
        self.parts = found.parts
        self._left_out = found.left_out
        if not self.parts:
            raise UsageFault(f"{source} contains no text{self._also()}; expected text to train on")
        self._cache = cache.absolute()  # the process that tokenizes has a different working directory
        self._keys = (found.identity, found.state)
        self._divide(HeldOutRule.of(rules.held_out_fraction))
        self._dtype = token_dtype(rules.tokenizer.vocab_size)
        self._suffix = "u16" if self._dtype.itemsize == 2 else "u32"
        self._note = note
        self._files = OpenFiles()
        self._lock = threading.Lock()
        self._worker: TokenizeWorker | None = None
        self._stock = Stock(self, note, limit_bytes)

    def _divide(self, rule: HeldOutRule) -> None:
        """Divide text by this rule from now on; text divided by an earlier rule is not read."""
        self._rule = rule
        identity, state = self._keys
        self.identity = identity_of(identity, *self._rules.identity, rule)
        self.folder = self._cache / f"{identity_of(self.identity, state):08x}"
        _remove_copies(self.folder)

    def open(self, group: int) -> tuple[str, Tokens] | None:
        """Return (name, training tokens) of a part; None if it is not tokenized yet."""
        facts = self._facts(group)
        return None if facts is None else self._tokens(facts["training"])

    @property
    def num_groups(self) -> int:
        return len(self.parts)

    @property
    def lasting_bytes(self) -> int:
        return 0  # held-out text is counted with its part

    def bytes_here(self, group: int) -> int | None:
        facts = self._facts(group)
        if facts is None:
            return None
        return sum(int(shard["tokens"]) * self._dtype.itemsize for shard in _shards_of(facts))

    def bytes_expected(self, group: int) -> int | None:
        return None

    def remove(self, group: int) -> None:
        facts = self._facts(group)
        with contextlib.suppress(OSError):
            self._facts_path(group).unlink(missing_ok=True)
            for shard in () if facts is None else _shards_of(facts):
                self._files.forget(self.folder / shard["name"])
                (self.folder / shard["name"]).unlink(missing_ok=True)

    def bring(self, group: int) -> None:
        """Tokenize a part, unless this was done before."""
        with self._lock:
            if self._facts(group) is not None:
                return
            for folder in (self._cache, self.folder):
                make_secret_folder(folder, "give another --data-dir")
            if self._worker is None:
                self._worker = TokenizeWorker(self._rules.tokenizer.path, None)
            training, held_out = (self.folder / f"{side}-{group:06d}.{self._suffix}" for side in ("part", "held"))
            rules = self._rules
            try:
                with self._part_here(group) as part:
                    answer = self._worker.tokenize(
                        TokenizeOrder(
                            part,
                            rules.text_field,
                            self._rule,
                            training,
                            held_out,
                            mode=0o600,  # the shard is a copy of the volunteer's own text
                        )
                    )
            except LocalFault:
                self._worker.close()
                self._worker = None
                raise
            write_secret(self._facts_path(group), json.dumps(answer))

    @contextlib.contextmanager
    def _part_here(self, group: int) -> Iterator[TextPart]:
        """Yield a part whose files are on this machine, copied from the hub if needed."""
        part = self.parts[group]
        if part.kind != "hf":
            yield part
            return
        ((source, number, num_parts, _),) = part.pieces
        copy = self.folder / f"{COPY_PREFIX}{os.getpid()}-{group:06d}"
        try:
            with hub_copy(source, number, num_parts, self._rules.text_field, copy, is_own=self._is_own) as found:
                yield found
        except LocalFault as fault:  # its message contains the path of the copy
            raise type(fault)(str(fault).replace(f"{copy}{os.sep}", f"{source}: ")) from fault

    def held_out(self) -> tuple[TokenStream, float | None]:
        """Tokenize as many of the first parts as needed, and return (their held-out text, its bytes per token).

        All peers with the same text tokenize the same parts, and measure on the same text.

        Raises:
            UsageFault: there is too little text.
            LocalFault: the text cannot be fetched.
        """
        if self._facts(0) is None:
            self._note(f"tokenizing the beginning of {self._source} ({plural(len(self.parts), 'part')} in total)")
        facts = self._beginning()
        if self._is_too_little(facts):
            facts = self._divided_anew(facts)
        for one in facts:
            self._left_out.counts.update(one["complaints"])
        documents = sum(one["documents"] for one in facts)
        found = [self._tokens(one["held_out"]) for one in facts if one["held_out"] is not None]
        if not documents and (lack := _lack_of(facts)):
            raise UsageFault(lack)
        if self._is_too_little(facts):
            raise UsageFault(
                f"{self._source} has {plural(documents, 'document')} and {plural(_num_tokens(facts), 'token')}"
                f"{self._also()}; expected at least {2 * (self._rules.context + 1)}: one context and a token to train "
                "on, and the same to measure the loss; give more text"
            )
        if self._left_out.text():
            self._note(f"left out or repaired at the beginning of {self._source}{self._also(': ')}")
        num_bytes = sum(one["held_out"]["text_bytes"] for one in facts if one["held_out"] is not None)
        stream = TokenStream(found, self._rules.vocab_size)
        return stream, num_bytes / stream.num_tokens if num_bytes else None

    def _beginning(self) -> list[dict[str, Any]]:
        """Tokenize and describe as many of the first parts as the measurement needs."""
        found: list[dict[str, Any]] = []
        is_told = False
        for group in range(len(self.parts)):
            brought = partial(self.bring, group)
            if self._is_far:
                patiently(brought, self._note)
            else:
                brought()
            self._stock.pin(group)
            facts = self._facts(group)
            if facts is not None:
                found.append(facts)
            if _num_tokens(found, "held_out") >= self._rules.min_held_out:
                break
            lack = _lack_of(found)
            if lack and not is_told and len(self.parts) > 1 and not any(one["documents"] for one in found):
                is_told = True
                self._note(f"there is no text so far: {lack}; reading on")
        return found

    def _is_too_little(self, facts: list[dict[str, Any]]) -> bool:
        """Return whether one side of the text has no complete block."""
        context = self._rules.context
        if _num_tokens(facts, "held_out") <= context:
            return True
        return len(facts) == len(self.parts) and not any(_num_tokens([one], "training") > context for one in facts)

    def _divided_anew(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Divide all parts by a rule that holds out enough, if there is one, and return their new descriptions."""
        num_tokens, num_needed = _num_tokens(facts), self._rules.context + 1
        smallest = [(fraction, size) for one in facts for fraction, size in one["smallest"]]
        num_short_bytes = sum(one["short_bytes"] for one in facts)
        # Tokens are not distributed evenly over the text.
        first_try = max(self._rules.held_out_fraction, 1.5 * num_needed / max(1, num_tokens))
        for share in sorted({min(first_try, MOST_HELD_OUT), MOST_HELD_OUT}):
            if num_tokens >= 2 * num_needed and self._is_too_little(facts):
                self._divide(more_held_out(share, num_short_bytes, smallest))
                facts = self._beginning()
        return facts

    def _also(self, before: str = "; left out or repaired: ") -> str:
        text = self._left_out.text()
        return f"{before}{text}" if text else ""

    def training(self) -> GroupedStream:
        """Return the stream to train on."""
        return GroupedStream(len(self.parts), self._rules.vocab_size, self.open, self.identity, self._stock)

    def close(self) -> None:
        """End the worker, and report no error about it."""
        self._stock.close()
        if self._worker is not None:
            self._worker.close()

    def _tokens(self, shard: dict[str, Any] | None) -> tuple[str, Tokens]:
        name = "" if shard is None else shard["name"]
        length = 0 if shard is None else shard["tokens"]
        return f"{self._source} ({name})", FileTokens(self._files, self.folder / name, self._dtype, 0, length)

    def _facts_path(self, group: int) -> Path:
        return self.folder / f"part-{group:06d}.json"

    def _facts(self, group: int) -> dict[str, Any] | None:
        try:
            facts: dict[str, Any] = json.loads(read_regular(self._facts_path(group), 1 << 16))
            for shard in _shards_of(facts):
                if (self.folder / shard["name"]).stat().st_size != shard["tokens"] * self._dtype.itemsize:
                    return None
        except (OSError, ValueError):
            return None
        return facts


def _num_tokens(facts: list[dict[str, Any]], *sides: str) -> int:
    """Return the number of tokens of all parts, on one side or both."""
    shards = (one[side] for one in facts for side in sides or ("training", "held_out"))
    return sum(int(shard["tokens"]) for shard in shards if shard is not None)


def _lack_of(facts: list[dict[str, Any]]) -> str:
    """Return a sentence about the first row without text; empty if every row has text."""
    return next((str(one["lack"]) for one in facts if one["lack"]), "")


def _remove_copies(folder: Path) -> None:
    """Remove the copies left behind by killed processes."""
    for copy in folder.glob(f"{COPY_PREFIX}*"):
        with contextlib.suppress(ValueError, PermissionError):
            try:
                os.kill(int(copy.name.removeprefix(COPY_PREFIX).partition("-")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(copy, ignore_errors=True)


def _shards_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    return [shard for shard in (facts["training"], facts["held_out"]) if shard is not None]


def parts_of_source(source: str, cache: Path, note: Callable[[str], None], *, is_own: bool = False) -> SourceParts:
    """Divide a text source of any kind.

    Args:
        cache: folder in which the list of the hub's parts is stored, for a start while the hub is unavailable.
        note: receives a sentence if the stored list is used.
        is_own: the volunteer chose the source; see `hub_repository`.

    Raises:
        UsageFault, LocalFault: the source cannot be read.
    """
    left_out = Complaints()
    if source.startswith(HUB):
        ranges = _hub_ranges(source, cache, note, is_own=is_own)
        identity = identity_of(source, len(ranges), ranges[:1])
        return SourceParts(
            [TextPart("hf", (FileRange(source, *each),)) for each in ranges], identity, identity, left_out
        )
    if source == LIBRARY:
        files = [("text", tokens.path) for _, tokens in library_files()]
    else:
        files = files_of([source], left_out)
    stats = [path.stat() for _, path in files]
    total = sum(stat.st_size for stat in stats)
    part_bytes = min(LARGEST_PART_BYTES, max(SMALLEST_PART_BYTES, total // NUM_UNITS))
    # Names without folders: the same files are in different folders on different machines.
    sizes = [(kind, path.name, stat.st_size) for (kind, path), stat in zip(files, stats, strict=True)]
    # The time of the last change of the inode, which no program can set back.
    changes = [(str(path), stat.st_size, stat.st_ctime_ns) for (_, path), stat in zip(files, stats, strict=True)]
    return SourceParts(
        parts_of(files, part_bytes, left_out), identity_of("mixed files", sizes), identity_of(changes), left_out
    )


def _hub_ranges(source: str, cache: Path, note: Callable[[str], None], *, is_own: bool) -> list[tuple[int, int]]:
    """Return `hub_parts`, or the last stored list while the hub is unavailable or offline mode is set."""
    # The library's cache may contain different files than the hub.
    paths = [cache / f"hub-{identity_of(source, way):08x}.json" for way in (is_offline(), False)]
    try:
        ranges = hub_parts(source, MAX_HUB_PARTS, is_own=is_own)
    except UsageFault:
        raise
    except LocalFault as fault:
        kept = next((ranges for ranges in map(_kept_ranges, paths) if ranges is not None), None)
        if kept is None:
            raise
        note(f"data cannot be fetched now: {fault}; continuing with the local data")
        return kept
    with contextlib.suppress(LocalFault):  # the same fault is reported when the text is stored
        write_new(paths[0], json.dumps(ranges).encode())
    return ranges


def _kept_ranges(path: Path) -> list[tuple[int, int]] | None:
    try:
        return [(int(start), int(stop)) for start, stop in json.loads(read_regular(path, MAX_LIST_BYTES))]
    except (OSError, ValueError, TypeError):
        return None

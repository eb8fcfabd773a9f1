"""`peer data prepare` and `peer data tokenizer`: turns text into shards or into a tokenizer."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dht.ground.errors import UsageFault, writing
from dht.ground.quantities import bytes_text, count_text, plural, seconds_text, share_text
from dht.ground.regular_files import read_regular
from peer.process_setup import usable_cores
from peer.trainer.data.document_packing import TokenizeOrder
from peer.trainer.data.shards import META_NAME, Meta, Shard, digest_of, write_meta, write_new
from peer.trainer.data.tokenize_pool import tokenize_all
from peer.trainer.data.tokenizing import TextTokenizer, load_tokenizer, make_tokenizer
from peer.trainer.text.documents import Complaints, TextPart, files_of, parts_of
from peer.trainer.text.held_out import DIVISION, HeldOutRule, more_held_out
from peer.trainer.text.limited_texts import limited_texts

PART_BYTES = 64 << 20
"""Bytes of text per shard: about 15 million tokens, 30 MB, which take half a minute at 10 Mbit/s."""
_STATE_NAME = ".prepare.jsonl"
_FLAGS = {
    "files": "FILES",
    "tokenizer": "--tokenizer",
    "eos": "--eos",
    "text_field": "--field",
    "held_out_fraction": "--held-out",
    "part_bytes": "--shard-megabytes",
    "division": "another version of this command",
}
"""The flag of each setting, for people."""
SIDES = ("training", "held_out")
MUCH_HELD_OUT = 0.2
"""Share of held-out tokens from which a sentence reports this share."""
_SHOWN_SECONDS = 1.0
_MAX_STATE_BYTES = 256 << 20


def prepare_data(
    sources: Sequence[str],
    tokenizer_path: Path,
    out: Path,
    *,
    text_field: str = "text",
    end: str | None = None,
    held_out_fraction: float = 0.01,
    num_processes: int | None = None,
    part_bytes: int = PART_BYTES,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> tuple[Meta, str]:
    """Write shards of tokens and their meta.json; return the meta.json and its digest.

    Finished parts of an interrupted call stay, and the same call resumes from them.

    Args:
        sources: files and folders; a prefix ``jsonl:``, ``parquet:`` or ``text:`` gives their format.
        held_out_fraction: share of the documents that is never trained on, chosen by their content.
        num_processes: None: one per core that this process may use.
        part_bytes: bytes of text per shard.

    Raises:
        UsageFault: a file is missing or invalid, or `out` contains other data.
        LocalFault: a library is missing, or the disk is full.
    """
    if (out / META_NAME).exists():
        raise UsageFault(
            f"{out / META_NAME} already exists; expected a folder without prepared data; choose another --out"
        )
    out = out.absolute()  # processes that write there have different working directories
    tokenizer = load_tokenizer(tokenizer_path, end)
    complaints = Complaints()
    files = files_of(sources, complaints)
    parts = parts_of(files, part_bytes, complaints)
    if not parts:
        names, also = ", ".join(map(str, sources)), complaints.text()
        raise UsageFault(
            f"{names}: there is no text to read{f' (left out: {also})' if also else ''}; expected files with text; "
            "give other files"
        )
    settings = _settings(files, tokenizer, text_field, held_out_fraction, part_bytes)
    with _alone_in(out):
        done = _begin(out, settings)
        num_processes = num_processes or usable_cores()
        suffix = "u16" if tokenizer.dtype.itemsize == 2 else "u32"
        orders = [
            TokenizeOrder(
                part,
                text_field,
                HeldOutRule.of(held_out_fraction),
                out / f"part-{number:05d}.{suffix}",
                out / f"held-{number:05d}.{suffix}",
            )
            for number, part in enumerate(parts)
        ]
        if done:
            say(f"already done: {len(done)} of {plural(len(parts), 'part')}")
        progress = _Progress(len(parts), done, say)
        try:
            with writing(out), (out / _STATE_NAME).open("a", encoding="utf-8") as state:

                def finish(wanted: list[tuple[int, TokenizeOrder]], **more: bool) -> None:
                    for number, answer in tokenize_all(wanted, tokenizer.path, end, num_processes):
                        done[number] = answer
                        state.write(json.dumps({"number": number, **answer, **more}) + "\n")
                        state.flush()
                        progress.show()

                finish([(number, order) for number, order in enumerate(orders) if number not in done])
                if held_out_fraction and not all(any(one[side] for one in done.values()) for side in SIDES):
                    # With few documents, all may be on one side.
                    num_short_bytes = sum(one["short_bytes"] for one in done.values())
                    smallest = [(fraction, size) for one in done.values() for fraction, size in one["smallest"]]
                    rule = more_held_out(held_out_fraction, num_short_bytes, smallest)
                    finish([(number, replace(order, rule=rule)) for number, order in enumerate(orders)], again=True)
        except UsageFault:
            if not done:
                # No finished work is lost, and the user may give the same folder with the right field.
                (out / _STATE_NAME).unlink(missing_ok=True)
            raise
        finally:
            # The first worker that fails ends the others in the middle of their parts.
            with writing(out):
                _remove_drafts(out)
        for answer in done.values():
            complaints.counts.update(answer["complaints"])
        if complaints.text():
            say(f"left out or repaired: {complaints.text()}")
        try:
            meta = _meta_of(done, tokenizer, held_out_fraction)
        except UsageFault:
            # A call with different files may use this folder.
            for answer in done.values():
                for shard in filter(None, (answer["training"], answer["held_out"])):
                    (out / shard["name"]).unlink(missing_ok=True)
            (out / _STATE_NAME).unlink(missing_ok=True)
            raise
        digest = write_meta(out, meta)
        (out / _STATE_NAME).unlink(missing_ok=True)
        held, trained = (sum(shard.tokens for shard in side) for side in (meta.held_out, meta.training))
        if held > max(MUCH_HELD_OUT, 2 * held_out_fraction) * (held + trained):
            say(
                f"{share_text(held / (held + trained))} of the tokens are held out, and no peer trains on them, "
                "because a short document is held out completely; give more text"
            )
        return meta, digest


def train_tokenizer(
    sources: Sequence[str],
    vocab_size: int,
    out: Path,
    text_field: str = "text",
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    tell: Callable[[str], object] = lambda sentence: None,
    clock: Callable[[], float] = time.monotonic,
) -> TextTokenizer:
    """Train a tokenizer on these texts, write it, and return it.

    Args:
        say: receives a sentence about omitted text.
        tell: receives progress sentences, at most one in `_SHOWN_SECONDS` of `clock`.

    Raises:
        UsageFault: a file is missing or invalid.
        LocalFault: a library is missing, or the disk is full.
    """
    complaints = Complaints()
    parts = parts_of(files_of(sources, complaints), PART_BYTES, complaints)
    tell(f"reading {plural(len({path for part in parts for path, *_ in part.pieces}), 'file')}")
    texts = _told(_texts(parts, text_field, complaints), vocab_size, tell, clock)
    try:
        return make_tokenizer(texts, vocab_size, out)
    finally:  # also if there is no text at all, because the sentence gives the reason
        if complaints.text():
            say(f"left out or repaired: {complaints.text()}")


def _told(
    texts: Iterator[str], vocab_size: int, tell: Callable[[str], object], clock: Callable[[], float]
) -> Iterator[str]:
    """Yield the same texts, and report progress through `tell`, at the end with the next step."""
    shown, num_letters = clock(), 0
    for text in texts:
        num_letters += len(text)
        yield text
        if clock() - shown >= _SHOWN_SECONDS:
            shown = clock()
            tell(f"{count_text(num_letters)} letters read")
    if num_letters:
        tell(f"{count_text(num_letters)} letters read; choosing {vocab_size} tokens")


def _texts(parts: Sequence[TextPart], text_field: str, complaints: Complaints) -> Iterator[str]:
    is_empty = True
    for part in parts:
        for text in limited_texts(part, text_field, complaints):
            is_empty = False
            yield text
    if is_empty and complaints.lack:
        raise UsageFault(complaints.lack)


def _settings(
    files: Sequence[tuple[str, Path]], tokenizer: TextTokenizer, text_field: str, fraction: float, part_bytes: int
) -> dict[str, Any]:
    """Return the settings that must be equal for a call to resume an earlier one."""
    sizes = [(kind, str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for kind, path in files]
    return {
        "files": digest_of(json.dumps(sizes).encode()),
        "tokenizer": tokenizer.digest,
        "eos": tokenizer.eos,
        "text_field": text_field,
        "held_out_fraction": fraction,
        "part_bytes": part_bytes,
        "division": DIVISION,
    }


@contextlib.contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Lock the folder for one call. The system releases the lock however the call ends.

    Raises:
        UsageFault: another call holds the lock.
        LocalFault: the folder cannot be created.
    """
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # without locks the owner must run only one call at a time
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageFault(
                    f"another `peer data prepare` is writing to {out}; expected one at a time; wait until it ends, or "
                    "choose another --out"
                ) from error
        yield
    finally:
        os.close(descriptor)


def _begin(out: Path, settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the parts that an earlier call with the same settings has finished."""
    path = out / _STATE_NAME
    with writing(out):
        if not path.exists():
            write_new(path, (json.dumps(settings) + "\n").encode())
            return {}
        _remove_drafts(out)
        lines = read_regular(path, _MAX_STATE_BYTES).decode(errors="replace").splitlines()
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be incomplete
            rows.append(json.loads(line))
    if not rows or rows[0] != settings:
        before: dict[str, Any] = rows[0] if rows and isinstance(rows[0], dict) else {}
        names = [flag for name, flag in _FLAGS.items() if before.get(name) != settings.get(name)]
        raise UsageFault(
            f"{out} contains unfinished work with different files or settings ({', '.join(names)}); expected the files "
            "and settings of that work; choose another --out, or delete that folder"
        )
    done: dict[int, dict[str, Any]] = {}
    if any(row.get("again") for row in rows[1:]):
        return done  # the earlier call was stopped while it divided little text by a different rule
    for row in rows[1:]:
        shards = [row.get("training"), row.get("held_out")]
        if all(shard is None or (out / shard["name"]).exists() for shard in shards):
            done[row.pop("number")] = row
    return done


def _meta_of(done: dict[int, dict[str, Any]], tokenizer: TextTokenizer, fraction: float) -> Meta:
    shards = [
        Shard(**done[number][side], held_out=side == "held_out")
        for side in SIDES
        for number in sorted(done)
        if done[number][side] is not None
    ]
    if not any(not shard.held_out for shard in shards):
        lack = next((str(answer["lack"]) for answer in done.values() if answer["lack"]), "")
        raise UsageFault(
            lack or "these files contain no text to train on; expected text; only the empty folder was created"
        )
    return Meta(
        dtype="uint16" if tokenizer.dtype.itemsize == 2 else "uint32",
        tokenizer=tokenizer.digest,
        eos=tokenizer.eos,
        vocab_size=tokenizer.vocab_size,
        held_out_fraction=fraction,
        documents=sum(row["documents"] for row in done.values()),
        shards=tuple(shards),
    )


def _remove_drafts(out: Path) -> None:
    """Delete the unfinished shards of workers that were killed."""
    for draft in out.glob(".*.u*.*"):
        draft.unlink()


class _Progress:
    def __init__(self, num_parts: int, done: dict[int, dict[str, Any]], say: Callable[[str], None]) -> None:
        self._num_parts, self._done, self._say = num_parts, done, say
        self._num_before = len(done)
        self._began = self._shown = time.monotonic()

    def show(self) -> None:
        now = time.monotonic()
        if now - self._shown < _SHOWN_SECONDS and len(self._done) < self._num_parts:
            return
        self._shown = now
        shards = [row[side] for row in self._done.values() for side in ("training", "held_out") if row[side]]
        num_new = len(self._done) - self._num_before
        left = (now - self._began) / max(1, num_new) * (self._num_parts - len(self._done))
        text = bytes_text(sum(shard["text_bytes"] for shard in shards))
        tokens = count_text(sum(shard["tokens"] for shard in shards))
        ending = f", about {seconds_text(max(1.0, left))} left" if len(self._done) < self._num_parts else ""
        self._say(f"{len(self._done)} of {plural(self._num_parts, 'part')}: {text} of text, {tokens} tokens{ending}")

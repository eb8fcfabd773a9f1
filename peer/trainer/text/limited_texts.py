"""Reads the texts of a part in a child process with limits, because a small Parquet file can expand to unlimited
memory.

A JSON row can take twenty times its length. Workers that tokenize have such limits themselves; this module is for code
that reads text in the main process. The child calls `prepare` (through `peer.limited_child.process`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from dht.ground.errors import LocalFault
from dht.ground.fields import printable
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.trainer.text.documents import MAX_ROW_BYTES, Complaints, FileRange, TextPart, documents

LIMITS = ChildLimits(memory_bytes=2 << 30, seconds=120.0, answer_bytes=8 * MAX_ROW_BYTES)
_ANSWER_CHARACTERS = 1 << 20
"""Approximate number of characters in one answer; its last text may exceed it."""


def limited_texts(part: TextPart, text_field: str, complaints: Complaints) -> Iterator[str]:
    """Yield the documents of a part.

    Raises:
        UsageFault: a file cannot be read.
        LocalFault: a library is missing, or a file exceeded `LIMITS`.
    """
    if part.kind == "text":  # text is read in pieces of bounded length
        yield from (segment.text for segment in documents(part, text_field, complaints))
        return
    question: dict[str, Any] = {
        "kind": part.kind,
        "pieces": [list(piece) for piece in part.pieces],
        "field": text_field,
    }
    what = f"{part.pieces[0].path} and others" if len(part.pieces) > 1 else part.pieces[0].path
    with contextlib.closing(LimitedChild(__name__, {}, LIMITS, what, "leave out that file")) as child:
        fields: dict[str, Any] = {}
        while "counts" not in fields:
            fields, body = child.ask(question)
            yield from _checked_texts(body, what)
            question = {}
        counts, lack = fields["counts"], fields.get("lack")
        are_counts = isinstance(counts, dict) and all(type(count) is int and count >= 0 for count in counts.values())
        if not are_counts or not isinstance(lack, str):
            raise _no_texts(what)
        complaints.add({printable(name): count for name, count in counts.items()}, printable(lack))


def _checked_texts(body: bytes, what: str) -> list[str]:
    try:
        texts = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _no_texts(what) from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _no_texts(what)
    return texts


def _no_texts(what: str) -> LocalFault:
    return LocalFault(f"the process that reads {what} returned no texts; expected texts; leave out that file")


def prepare(setup: dict[str, Any]) -> Any:
    """Answer the questions of `limited_texts`."""
    texts: Iterator[str] = iter(())
    complaints = Complaints()

    def answer(question: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        nonlocal texts
        if question:
            part = TextPart(question["kind"], tuple(FileRange(*piece) for piece in question["pieces"]))
            texts = (segment.text for segment in documents(part, question["field"], complaints))
        batch: list[str] = []
        num_characters = 0
        for text in texts:
            batch.append(text)
            num_characters += len(text)
            if num_characters >= _ANSWER_CHARACTERS:
                return {}, json.dumps(batch, ensure_ascii=False).encode()
        found = {"counts": dict(complaints.counts), "lack": complaints.lack}
        return found, json.dumps(batch, ensure_ascii=False).encode()

    return answer

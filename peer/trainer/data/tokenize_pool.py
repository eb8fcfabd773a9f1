"""Worker processes that tokenize one part at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from dht.ground.errors import LocalFault
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.trainer.data.document_packing import ORDERS, TokenizeOrder
from peer.trainer.data.tokenizing import ADVICE, tokenizer_content

_WORKER = "peer.trainer.data.document_packing"
LIMITS = ChildLimits(memory_bytes=2 << 30, seconds=120.0)
"""Limits for `BATCH_CHARACTERS` of text, which take 0.1 GB and 1 to 2 seconds, and for the rows around them."""


class TokenizeWorker:
    """A child process that tokenizes, with limits for each batch of text. The caller must `close` it.

    Args:
        end: see `peer.trainer.data.tokenizing.OpenTokenizer`.
    """

    def __init__(self, tokenizer: Path, end: str | None) -> None:
        self._tokenizer, self._end = tokenizer, end
        self._child = LimitedChild(_WORKER, {}, LIMITS, f"text with {tokenizer}", ADVICE)
        self._is_loaded = False

    def tokenize(self, order: TokenizeOrder) -> dict[str, Any]:
        """Return the result of `steps_of`.

        Raises:
            UsageFault: see `steps_of`; also if the tokenizer cannot be used.
            LocalFault: see `steps_of`; also if the process has ended.
        """
        # The child has a different working directory.
        order = replace(order, training=order.training.absolute(), held_out=order.held_out.absolute())
        try:
            if not self._is_loaded:
                file, content, end = tokenizer_content(self._tokenizer, self._end)
                self._child.ask({"tokenizer": str(file), "end": end}, content)
                self._is_loaded = True
            question: dict[str, Any] = {"order": ORDERS.dump_python(order, mode="json")}
            while "part" not in (answer := self._child.ask(question)[0]):
                question = {}
        except ValueError as error:
            raise LocalFault("the tokenizing process has ended; expected an answer; try again") from error
        return _checked(answer["part"], order)

    def close(self) -> None:
        """End the child at once; only its unfinished part is lost."""
        self._child.close()


def _checked(facts: Any, order: TokenizeOrder) -> dict[str, Any]:
    """Check that the facts of a part describe the files of `order`, and return them."""
    if not isinstance(facts, dict):
        raise LocalFault("the tokenizing process returned no result; expected the facts about its part; try again")
    for side, path in (("training", order.training), ("held_out", order.held_out)):
        shard = facts.get(side)
        if shard is not None and (
            not isinstance(shard, dict)
            or shard.get("name") != path.name
            or not all(
                type(shard.get(name)) is int and shard[name] >= 0 for name in ("tokens", "text_bytes", "largest")
            )
        ):
            raise LocalFault(f"the tokenizing process described no file {path.name}; expected its length; try again")
    return facts


def tokenize_all(
    orders: Iterable[tuple[int, TokenizeOrder]], tokenizer: Path, end: str | None, num_processes: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, result of `steps_of`) for each order as it finishes.

    Raises:
        UsageFault, LocalFault: the first fault of a worker; the other workers are ended.
    """
    wanted = list(orders)
    workers = [TokenizeWorker(tokenizer, end) for _ in range(min(num_processes, len(wanted)))]
    idle: queue.SimpleQueue[TokenizeWorker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def work(number: int, order: TokenizeOrder) -> tuple[int, dict[str, Any]]:
        worker = idle.get()
        try:
            return number, worker.tokenize(order)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(max(1, len(workers)))
    try:
        for done in as_completed([threads.submit(work, *order) for order in wanted]):
            yield done.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()
        threads.shutdown()

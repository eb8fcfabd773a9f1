"""Worker processes that tokenize, one part each at a time."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from dht.errors import LocalFault, UsageFault
from peer.import_path import python_command, python_environment
from peer.trainer.data.document_packing import ORDERS, TokenizeOrder

_WORKER = "peer.trainer.data.document_packing"


class TokenizeWorker:
    """One worker process. `close` it."""

    def __init__(self, tokenizer: Path | None, end: str | None) -> None:
        one_thread = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            python_command(_WORKER, str(tokenizer or ""), end or ""),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**python_environment(), **one_thread},
            start_new_session=True,  # Ctrl+C is its owner's to deal with
        )

    def tokenize(self, order: TokenizeOrder) -> dict[str, Any]:
        """What `tokenize_part` says.

        Raises:
            UsageFault, LocalFault: as there, or the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(ValueError):  # closed meanwhile
            with contextlib.suppress(OSError):  # what it said before it ended is read below
                self._process.stdin.write(ORDERS.dump_json(order) + b"\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise LocalFault(
                f"the process that tokenizes {how}; expected it to answer; is there enough memory? What is done stays "
                "done"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise (UsageFault if answer["code"] == UsageFault.exit_code else LocalFault)(answer["error"])
        return answer

    def close(self) -> None:
        """End it at once; what it was at is lost, and nothing else."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def tokenize_all(
    orders: Iterable[tuple[int, TokenizeOrder]], tokenizer: Path | None, end: str | None, num_processes: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, what `tokenize_part` says) of each order, as they are done.

    Raises:
        UsageFault, LocalFault: the first that a worker said; the others are ended.
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

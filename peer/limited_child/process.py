"""Entry point of a child: `python -m peer.limited_child.process MODULE MEMORY_BYTES SECONDS`.

The process confines itself before it imports MODULE, one of ours. Standard output is for answers; libraries print to
standard error. Exceptions of a library become answers, those of Rust (`PanicException`, a BaseException) too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from dht.ground.errors import LocalFault
from peer.limited_child.confinement import limit_memory, limit_process, limit_processor, refuse_network
from peer.limited_child.frames import Frame, frame_bytes, read_frame

LEFT_OUT = ("scipy", "sklearn", "pandas", "accelerate")
"""Libraries that transformers and others load if installed, and that no module of ours needs: loading them is a
tenth of a child's start."""

_MOST_BYTES = 1 << 40
"""Bytes of a question: the parent is trusted."""

Answer = Callable[[dict[str, Any], bytes], dict[str, Any] | Frame]
"""The function that `prepare` of a module returns; called with a question and its body."""


def main() -> None:
    module_name, memory_bytes, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    refuse_network()
    limit_process()
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    arrived: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(questions, arrived, os.getcwd()), daemon=True).start()

    def send(fields: dict[str, Any], body: bytes = b"") -> None:
        answers.write(frame_bytes(fields, body))
        answers.flush()

    sys.modules.update(dict.fromkeys(LEFT_OUT))  # type: ignore[arg-type]  # None: there is no such library
    # Modules stay until the process ends, and looking through them for garbage is a fifth of a start with torch.
    gc.disable()
    module = importlib.import_module(module_name)
    gc.freeze()
    gc.enable()
    limit_memory(memory_bytes)
    send({"is_ready": True})
    answer: Answer | None = None
    while True:
        question, body = arrived.get()
        limit_processor(seconds)
        try:
            if answer is None:
                answer = module.prepare(question)
                send({"answer": {}})
                continue
            result = answer(question, body)
            fields, further = result if isinstance(result, tuple) else (result, b"")
            send({"answer": fields}, further)
        except BaseException as error:  # noqa: BLE001  a library's own
            send({"fault": _sentence(error), "kind": type(error).__name__})


def _receive(questions: BinaryIO, arrived: queue.SimpleQueue[Frame], folder: str) -> None:
    """Queue the questions. When the parent has ended, delete this process's working folder, and end it at once."""
    with contextlib.suppress(OSError):
        while (frame := read_frame(questions.read, _MOST_BYTES)) is not None:
            arrived.put(frame)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _sentence(error: BaseException) -> str:
    if isinstance(error, LocalFault):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main()

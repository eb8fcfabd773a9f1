"""Entry point of a child: `python -m peer.limited_child.process MODULE MEMORY_BYTES SECONDS`.

The process confines itself before it imports MODULE, one of ours. Standard output is for answers; libraries print to
standard error. Exceptions of a library become answers, those of Rust (`PanicException`, a BaseException) too.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from dht.ground.errors import LocalFault
from peer.limited_child.confinement import limit_memory, limit_process, limit_processor, refuse_network
from peer.limited_child.frames import Frame
from peer.limited_child.parent_link import ParentLink

LEFT_OUT = ("scipy", "sklearn", "pandas", "accelerate")
"""Libraries that transformers and others load if installed, and that no module of ours needs: loading them is a
tenth of a child's start."""

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
    parent = ParentLink(questions, answers, os.getcwd())
    sys.modules.update(dict.fromkeys(LEFT_OUT))  # type: ignore[arg-type]  # None: there is no such library
    # Modules stay until the process ends, and looking through them for garbage is a fifth of a start with torch.
    gc.disable()
    module = importlib.import_module(module_name)
    gc.freeze()
    gc.enable()
    limit_memory(memory_bytes)
    parent.send({"is_ready": True})
    answer: Answer | None = None
    while True:
        question, body = parent.next_frame()
        limit_processor(seconds)
        try:
            if answer is None:
                answer = module.prepare(question, parent)
                parent.send({"answer": {}})
                continue
            result = answer(question, body)
            fields, further = result if isinstance(result, tuple) else (result, b"")
            parent.send({"answer": fields}, further)
        except BaseException as error:  # noqa: BLE001  a library's own
            parent.send({"fault": _sentence(error), "kind": type(error).__name__})


def _sentence(error: BaseException) -> str:
    if isinstance(error, LocalFault):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main()

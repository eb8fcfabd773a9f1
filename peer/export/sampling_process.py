"""The process that has a run's model write for a page that loads no torch itself: an order in, an answer out.

The order is JSON in the first argument, the answer one JSON object on standard output: `versions`, `tokens` and `texts`
(prompt and what follows it), or `problem`, a sentence, and whether it `lasts` as long as the run's manifest does. It
runs at a low priority, and ends when its standard input does, which is when its parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from dht.ground.errors import Incompatible
from peer.child_process import end_own_group, end_with_parent, reason_of, taken_stream
from peer.export.model_source import RunSource
from peer.export.opened_model import open_model
from peer.export.sample import written
from peer.process_setup import usable_cores

NICENESS = 10
"""A tenth of the processor beside somebody who computes: a sample may take minutes. The lowest priority, 19, gets a
seventieth, and a sample of a two-minute demo would never come."""


def answer_to(
    run_id: str,
    peers: list[str],
    timeout_seconds: float,
    observer_folder: str,
    prompts: list[str],
    base: str,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """What the newest anchors of the run write; the same for the same anchors, prompts and seed.

    Args:
        observer_folder: see `RunSource`.
        prompts: each is written on; an empty one lets the model begin.
        base: folder with the weights that an adapter stands on, or empty.
        max_tokens: of each text, the prompt not counted.

    Raises:
        LocalFault: the model cannot be had, or does not write; the sentence says why.
    """
    source = RunSource(run_id, tuple(peers), timeout_seconds, Path(observer_folder))
    opened = open_model(source, Path(base) if base else None)
    texts = []
    for place, prompt in enumerate(prompts):
        # With one seed for all, a young model would write the same after each of them.
        begin, *rest = written(opened, opened.model, prompt, max_tokens, temperature, seed + place)
        texts.append({"prompt": begin, "text": "".join(rest)})
    return {"versions": list(opened.versions), "tokens": opened.tokens, "texts": texts}


def main() -> int:
    """Entry point: `python -m peer.export.sampling_process ORDER`, ORDER in JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl+C is for the page, which then ends this
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)
    end_with_parent(sys.stdin.buffer, end_own_group)  # with the daemon that it started
    stream = taken_stream(1)
    torch.set_num_threads(max(1, usable_cores() // 2))
    try:
        answer = answer_to(**json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001  a library's own: it must not end the page's log in a traceback
        answer = {"problem": reason_of(error), "lasts": isinstance(error, Incompatible)}
    json.dump(answer, stream)
    stream.flush()
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)

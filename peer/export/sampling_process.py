"""The process in which a run's model generates text for a page that loads no torch: an order in, an answer out.

The order is JSON in the first argument; the answer is one JSON object on standard output: `versions`, `tokens` and
`texts` (each prompt and its continuation), or `problem`, a sentence, and whether it `lasts` as long as the run's
manifest. The process runs at a low priority, and ends when its standard input closes, that is, when its parent is gone.
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
from peer.export.opened_model import open_model
from peer.export.sample import written
from peer.observe.run_and_address import Target
from peer.process_setup import usable_cores

NICENESS = 10
"""A tenth of the processor beside another computation: a sample may take minutes. The lowest priority, 19, gets a
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
    """Return the texts that the run's newest anchors generate; the same for the same anchors, prompts and seed.

    Args:
        observer_folder: see `Target`.
        prompts: each is continued; for an empty prompt the model begins the text.
        base: folder with the weights under an adapter, or empty.
        max_tokens: length of each text without the prompt.

    Raises:
        LocalFault: the model cannot be obtained, or does not generate text; the message gives the reason.
    """
    source = Target(run_id, peers, Path(observer_folder), timeout_seconds=timeout_seconds)
    opened = open_model(source, Path(base) if base else None)
    texts = []
    for place, prompt in enumerate(prompts):
        # With one seed for all prompts, a young model would write the same after each.
        begin, *rest = written(opened, opened.model, prompt, max_tokens, temperature, seed + place)
        texts.append({"prompt": begin, "text": "".join(rest)})
    return {"versions": list(opened.versions), "tokens": opened.tokens, "texts": texts}


def main() -> int:
    """Entry point: `python -m peer.export.sampling_process ORDER`, ORDER in JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl+C is for the page, which then ends this process
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)
    end_with_parent(sys.stdin.buffer, end_own_group)  # also ends the daemon that it started
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

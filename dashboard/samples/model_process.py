"""The process with the model: started with an order, read up to a limit, ended with all its children."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from dashboard.samples.answer_check import MAX_ANSWER_BYTES, NoAnswer
from dashboard.samples.sample_schedule import MAX_TOKENS, SEED, TEMPERATURE
from dht.ground.errors import LocalFault
from peer.child_process import PIPE, ChildProcess
from peer.import_path import python_command

MODULE: Final = "peer.export.sampling_process"
SECONDS: Final = 1800.0
"""Time for a model of some billion parameters at a low priority; then the process is ended."""
FIND_SECONDS: Final = 30.0
"""Time for the process to find a member with a state."""


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """Order for the process; `peer.export.sampling_process` has the same fields."""

    run_id: str
    peers: tuple[str, ...]
    observer_folder: str
    prompts: tuple[str, ...]
    base: str = ""
    timeout_seconds: float = FIND_SECONDS
    max_tokens: int = MAX_TOKENS
    temperature: float = TEMPERATURE
    seed: int = SEED


async def ask(order: SampleOrder, seconds: float = SECONDS) -> bytes:
    """Return the answer of the process to `order`.

    Raises:
        NoAnswer: the process could not be started, ended without an answer, or took longer than `seconds`.
    """
    return await answer_of(python_command(MODULE, json.dumps(asdict(order))), seconds)


async def answer_of(command: Sequence[str], seconds: float) -> bytes:
    """Return the standard output of `command`. No process is left behind in any case.

    Raises:
        NoAnswer: see `ask`.
    """
    try:
        process = ChildProcess(command, "to let the model write", output=PIPE)
        try:
            return await asyncio.to_thread(process.answer, MAX_ANSWER_BYTES, seconds)
        finally:
            process.kill()
    except LocalFault as fault:
        raise NoAnswer(str(fault)) from fault

"""The process with the model: started with an order, read up to a limit, ended with all its children."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final

from dashboard.samples.answer_check import MAX_ANSWER_BYTES, NoAnswer
from dashboard.samples.sample_schedule import MAX_TOKENS, SEED, TEMPERATURE, SamplePlan
from dht.ground.errors import LocalFault
from peer.child_process import PIPE, ChildProcess
from peer.import_path import python_command

MODULE: Final = "peer.export.sampling_process"
SECONDS: Final = 1800.0
"""Time for a model of some billion parameters at a low priority; then the process is ended."""
FIND_SECONDS: Final = 30.0
"""Time for the process to find a member with a state."""


async def ask(
    run_id: str, peers: Sequence[str], observer_folder: str, plan: SamplePlan, seconds: float = SECONDS
) -> bytes:
    """Return the answer of the process: the texts of the run's model for the prompts of the plan.

    Raises:
        NoAnswer: the process could not be started, ended without an answer, or took longer than `seconds`.
    """
    order = {
        "run_id": run_id,
        "peers": list(peers),
        "observer_folder": observer_folder,
        "prompts": plan.prompts,
        "base": plan.base,
        "timeout_seconds": FIND_SECONDS,
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "seed": SEED,
    }
    return await answer_of(python_command(MODULE, json.dumps(order)), seconds)


async def answer_of(command: Sequence[str], seconds: float) -> bytes:
    """Return the standard output of `command`. No process is left behind in any case.

    Raises:
        NoAnswer: see `ask`.
    """
    try:
        process = ChildProcess(command, "for samples of the model", output=PIPE)
        try:
            return await asyncio.to_thread(process.answer, MAX_ANSWER_BYTES, seconds)
        finally:
            process.kill()
    except LocalFault as fault:
        raise NoAnswer(str(fault)) from fault

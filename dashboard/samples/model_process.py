"""The process that has the model: started with an order, read up to a bound, ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from dashboard.samples.answer_check import MAX_ANSWER_BYTES
from dashboard.samples.sample_schedule import MAX_TOKENS, SEED, TEMPERATURE
from peer.import_path import python_command, python_environment

MODULE: Final = "peer.export.sampling_process"
SECONDS: Final = 1800.0
"""For a model of some billion parameters at a low priority; then it is ended."""
FIND_SECONDS: Final = 30.0
"""For the process to find a member that has a state."""


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """What the process is told; see `peer.export.sampling_process`, which has the same fields."""

    run_id: str
    peers: tuple[str, ...]
    observer_folder: str
    prompts: tuple[str, ...]
    base: str = ""
    timeout_seconds: float = FIND_SECONDS
    max_tokens: int = MAX_TOKENS
    temperature: float = TEMPERATURE
    seed: int = SEED


class NoAnswer(Exception):
    """The process gave none; the text says why."""


async def ask(order: SampleOrder, seconds: float = SECONDS) -> bytes:
    """What the process answers to `order`.

    Raises:
        NoAnswer: it could not be started, ended without an answer, or took longer than `seconds`.
    """
    return await answer_of(python_command(MODULE, json.dumps(asdict(order))), seconds)


async def answer_of(command: Sequence[str], seconds: float) -> bytes:
    """What `command` writes on its standard output; whatever happens, nothing of it is left behind.

    Raises:
        NoAnswer: see `ask`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,  # it ends when this does
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=python_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"its process cannot be started ({error.strerror or error})") from error
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            answer = await process.stdout.read(MAX_ANSWER_BYTES + 1)
            while len(answer) <= MAX_ANSWER_BYTES and (more := await process.stdout.read(MAX_ANSWER_BYTES)):
                answer += more
            if len(answer) > MAX_ANSWER_BYTES:
                raise NoAnswer(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
            code = await process.wait()
    except TimeoutError as error:
        raise NoAnswer(f"its process took longer than {seconds:.0f} s and was ended") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            # The whole group: a daemon of it may be left.
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if not answer:
        what = f"signal {-code}" if code < 0 else f"code {code}"
        raise NoAnswer(f"its process ended with {what} and said nothing; there may be too little memory")
    return answer

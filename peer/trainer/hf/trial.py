"""Tests whether a new run's model can be trained: one step at its full context, in a process with limits."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.hf_config import checked_config
from peer.config.manifest import RunManifest
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.trainer.hf.library_modules import tasks_of

CHILD: Final = "peer.trainer.hf.trial_child"
LEAST_MEMORY_BYTES: Final = 2 << 30
SECONDS: Final = 240.0
"""Four times the duration of a step of `peer.trainer.hf.trial_child.MAX_FLOPS` on two cores of a laptop."""


def try_model(manifest: RunManifest, free_bytes: int | None) -> tuple[int, tuple[str, ...]]:
    """Make a step with a run's architecture and task.

    Args:
        free_bytes: memory of this machine, of which the trial may use half; None: unknown.

    Returns:
        the longest context that can be trained, at most the manifest's, and sentences for the owner.

    Raises:
        Incompatible: the model cannot be trained for this task.
        LocalFault: no process can be started, or the process died.
    """
    section = manifest.model
    config, task = section.described
    limits = ChildLimits(max(LEAST_MEMORY_BYTES, (free_bytes or 0) // 2), SECONDS)
    question = {
        "config": config,
        "task": task,
        "context": section.context,
        "vocab_size": section.vocab_size,
        "mask_token": section.mask_token,
    }
    answer, is_whole = _answer(question, limits)
    context, error, sees_ahead = answer.get("context"), answer.get("error"), answer.get("sees_ahead")
    if type(context) is not int or not 0 < context <= section.context or not isinstance(error, str):
        raise LocalFault("the process that tries the model returned no context; expected a context; try again")
    if sees_ahead:
        raise _sees_ahead(checked_config(config))
    return context, tuple(_notes(section.context, context, error, is_whole, sees_ahead))


def _answer(question: dict[str, Any], limits: ChildLimits) -> tuple[dict[str, Any], bool]:
    """Return the child's answer, and whether the child made a step of the whole model."""
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(_started(limits))
        try:
            if answer := child.ask(question | {"is_whole": True})[0]:
                return answer, True
        except (UsageFault, Incompatible):
            raise
        except LocalFault:
            # The step exceeded the time or memory limit. If no process can be started, the next attempt reports it.
            child.close()
            child = stack.enter_context(_started(limits))
        return child.ask(question | {"is_whole": False})[0], False


def _started(limits: ChildLimits) -> LimitedChild:
    advice = "choose another model, or a smaller model.context"
    return LimitedChild(CHILD, {"memory_bytes": limits.memory_bytes}, limits, "the model's config", advice)


def _sees_ahead(fields: dict[str, Any]) -> Incompatible:
    model_type = fields["model_type"]
    how = "choose another model"
    if "masked-lm" in tasks_of(model_type):
        how = 'give --task masked-lm, or write "is_decoder": true into its config.json'
    return Incompatible(
        f"the architecture {model_type!r} sees the token that it should predict, so it learns nothing with causal-lm; "
        f"expected an architecture that only reads forwards; {how}"
    )


def _notes(asked: int, context: int, error: str, is_whole: bool, sees_ahead: Any) -> list[str]:
    notes = []
    if context < asked:
        notes.append(f"The context is {context:,}: with {asked:,} tokens the model fails ({error}).")
    if not is_whole:
        checked = "" if sees_ahead is False else " The trial did not check whether it only reads forwards."
        notes.append(
            f"The model is too large for a trial on this machine: its shapes and positions fit a context of "
            f"{context:,}, but no step was made.{checked}"
        )
    return notes

"""Whether a new run's model can be trained: shapes and positions at its full context, in a process with limits."""

from __future__ import annotations

from typing import Any, Final

from dht.ground.errors import Incompatible, LocalFault
from peer.config.hf_config import checked_config
from peer.config.manifest import RunManifest
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.trainer.hf.library_modules import tasks_of

CHILD: Final = "peer.trainer.hf.trial_child"
LEAST_MEMORY_BYTES: Final = 2 << 30
SECONDS: Final = 120.0
"""A pass of two layers over a few tokens takes a second or two on a laptop, and starting the library up to a minute."""


def try_model(manifest: RunManifest, free_bytes: int | None) -> tuple[int, tuple[str, ...]]:
    """Try a run's architecture and task.

    Args:
        free_bytes: memory of this machine; half of it may be taken. None: not known.

    Returns:
        the longest context that can be trained, at most the manifest's, and sentences for the owner.

    Raises:
        Incompatible: the model cannot be trained so.
        LocalFault: no process can be started, or it died.
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
    advice = "choose another model, or a smaller model.context"
    with LimitedChild(CHILD, {}, limits, "the model's config", advice) as child:
        answer = child.ask(question)[0]
    context, sees_ahead = answer.get("context"), answer.get("sees_ahead")
    if type(context) is not int or not 0 < context <= section.context:
        raise LocalFault("the process that tries the model answered with no context; expected one; try again")
    if sees_ahead:
        raise _sees_ahead(checked_config(config))
    notes = []
    if context < section.context:
        notes.append(f"The context is {context:,}: the model has no more positions.")
    if sees_ahead is None:
        notes.append("Whether the model reads forwards alone was not checked: it is too large to be tried here.")
    return context, tuple(notes)


def _sees_ahead(fields: dict[str, Any]) -> Incompatible:
    model_type = fields["model_type"]
    how = "choose another model"
    if "masked-lm" in tasks_of(model_type):
        how = 'give --task masked-lm, or write "is_decoder": true into its config.json'
    return Incompatible(
        f"the architecture {model_type!r} sees the token that it shall predict, so under causal-lm it learns nothing; "
        f"expected one that reads forwards alone; {how}"
    )

"""Builds modules of transformers from a config text, in whatever process calls it.

A stranger's text comes here in a child with limits first: call `peer.trainer.hf.architecture` everywhere else.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from dht.ground.errors import Incompatible
from peer.config.hf_config import TASKS, checked_config
from peer.optional_libraries import needing

_HEADS = {
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
}
"""The library's tables of architectures that have a task's head; their classes are the library's own."""


def check_library() -> None:
    """Before the library is used.

    Raises:
        UsageFault: it is not installed.
    """
    with needing("an architecture of transformers", "transformers", "hf"):
        library()


def library_config(text: str) -> Any:
    """The library's config object of a config text.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: it does not know the architecture, or does not take these values.
    """
    check_library()
    fields = checked_config(text)
    transformers = library()
    model_type = fields.pop("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise Incompatible(
            f"the model is of the architecture {model_type!r}, which transformers {transformers.__version__} does not "
            "know; expected one of its own; install a newer transformers, or correct model_type"
        )
    try:
        # Caches of keys and values help generation alone.
        return transformers.AutoConfig.for_model(model_type, **{**fields, "use_cache": False})
    except MemoryError:
        raise
    except Exception as error:  # The library validates with classes of its own.
        raise refused(model_type, error) from error


def config_and_head(text: str, task: str) -> tuple[Any, Any]:
    """The library's config object and class for a task; of text and pictures the part for text, where that is built.

    Raises:
        UsageFault, Incompatible: as from `library_config` and `head_of`.
    """
    config = library_config(text)
    head = head_of(config.model_type, task)
    if head.config_class is config.sub_configs.get("text_config", config):
        config = config.get_text_config()
    return config, head


def library_module(text: str, task: str, device: torch.device) -> nn.Module:
    """A module of the library in training mode, initialised by the library.

    Args:
        text: config of a manifest, as `peer.config.hf_config.checked_config` takes it.
        task: one of `TASKS`.
        device: on torch's meta device nothing takes memory.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: it has no such architecture with such a head, or cannot build it with these values.
    """
    config, head = config_and_head(text, task)
    try:
        with device:
            module: nn.Module = head._from_config(config)
    except MemoryError:
        raise
    except Exception as error:
        # Sizes that do not fit each other come as whatever the architecture's code ran into.
        if "not enough memory" in str(error):
            raise
        raise refused(config.model_type, error) from error
    return module


def tasks_of(model_type: str) -> list[str]:
    """The tasks for which the library has a head of this architecture."""
    library()
    from transformers.models.auto import modeling_auto

    return [task for task in TASKS if model_type in getattr(modeling_auto, _HEADS[task])]


def head_of(model_type: str, task: str) -> Any:
    """The library's own class: never one that an auto class was taught or that a repository brings."""
    from transformers.models.auto import modeling_auto

    transformers = library()
    names = getattr(modeling_auto, _HEADS[task])
    if model_type not in names:
        known = ", ".join(tasks_of(model_type)) or "none of these tasks"
        raise Incompatible(
            f"transformers {transformers.__version__} has no head for {task} on the architecture {model_type!r}; "
            f"expected {known}; choose another task or architecture"
        )
    name = names[model_type]
    return getattr(transformers, name if isinstance(name, str) else name[0])


def library() -> Any:
    """Import transformers, without hints and bars."""
    import transformers as found

    transformers: Any = found
    # Its hints and bars are about its own command lines; what is wrong is raised.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    # peft loads it where it is installed. It names kernels that it lacks, and says at each step that it rounds.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return transformers


def refused(model_type: str, error: Exception) -> Incompatible:
    """The sentence for whatever the library raised about a config."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ImportError):
        expected = "the libraries that it needs; install them on every machine of the run"
    else:
        expected = "all values that it needs, which fit each other; complete or correct the config"
    return Incompatible(
        f"transformers cannot build the architecture {model_type!r} with this config ({text[:300]}); "
        f"expected {expected}"
    )

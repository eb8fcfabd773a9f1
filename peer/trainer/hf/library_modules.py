"""Builds modules of transformers from a config text, in the calling process.

An untrusted text is built in a child with limits first; other code calls `peer.trainer.hf.architecture`.
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
"""The library's tables of architectures with a head for each task; they contain only the library's own classes."""


def check_library() -> None:
    """Check that the library can be used.

    Raises:
        UsageFault: the library is not installed.
    """
    with needing("an architecture of transformers", "transformers", "hf"):
        library()


def library_config(text: str) -> Any:
    """Return the library's config object for a config text.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: the library does not know the architecture, or rejects these values.
    """
    check_library()
    fields = checked_config(text)
    transformers = library()
    model_type = fields.pop("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise Incompatible(
            f"the model has the architecture {model_type!r}, which transformers {transformers.__version__} does not "
            "support; expected an architecture of this library; install a newer transformers, or correct model_type"
        )
    try:
        # Caches of keys and values are useful only for generation.
        return transformers.AutoConfig.for_model(model_type, **{**fields, "use_cache": False})
    except MemoryError:
        raise
    except Exception as error:  # The library's validation raises its own classes.
        raise refused(model_type, error) from error


def config_and_head(text: str, task: str) -> tuple[Any, Any]:
    """Return the library's config object and class for a task; for models of text and images, the text part if it is
    built.

    Raises:
        UsageFault, Incompatible: see `library_config` and `head_of`.
    """
    config = library_config(text)
    head = head_of(config.model_type, task)
    if head.config_class is config.sub_configs.get("text_config", config):
        config = config.get_text_config()
    return config, head


def library_module(text: str, task: str, device: torch.device) -> nn.Module:
    """Build a module of the library in training mode, initialised by the library.

    Args:
        text: config of a manifest, as `peer.config.hf_config.checked_config` accepts it.
        task: one of `TASKS`.
        device: device of the module; on torch's meta device tensors take no memory.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: the library has no such architecture with such a head, or cannot build it with these values.
    """
    config, head = config_and_head(text, task)
    try:
        with device:
            module: nn.Module = head._from_config(config)
    except MemoryError:
        raise
    except Exception as error:
        # Contradictory sizes raise any exception of the architecture's code.
        if "not enough memory" in str(error):
            raise
        raise refused(config.model_type, error) from error
    return module


def tasks_of(model_type: str) -> list[str]:
    """Return the tasks for which the library has a head for this architecture."""
    library()
    from transformers.models.auto import modeling_auto

    return [task for task in TASKS if model_type in getattr(modeling_auto, _HEADS[task])]


def head_of(model_type: str, task: str) -> Any:
    """Return the library's own class, never a class registered with an auto class or loaded from a repository."""
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
    """Import transformers, without its hints and progress bars."""
    import transformers as found

    transformers: Any = found
    # Its hints and progress bars are meant for its own command line; errors are raised.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    # peft loads bitsandbytes if installed. Its log lists missing kernels, and reports rounding at each step.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return transformers


def refused(model_type: str, error: Exception) -> Incompatible:
    """Return the fault for an exception that the library raised about a config."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ImportError):
        expected = "the libraries that it needs; install them on every machine of the run"
    else:
        expected = "all values that it needs, without contradictions; complete or correct the config"
    return Incompatible(
        f"transformers cannot build the architecture {model_type!r} with this config ({text[:300]}); "
        f"expected {expected}"
    )

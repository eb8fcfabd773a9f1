"""Builds the model of a run that `peer join` trains, built-in or of transformers, with the run's initial parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import nn

from dht.ground.errors import Incompatible, UsageFault
from peer.config.manifest import RunManifest
from peer.config.model_section import AdapterSection
from peer.config.model_shapes import (
    Shapes,
    bare_name,
    layout_digest_of,
    layout_of,
    shared_buffers,
    tensor_shapes,
    trained_parameters,
)
from peer.trainer.hf.adapter import check_adapters, with_adapter
from peer.trainer.hf.architecture import Compressed, build_architecture, load_architecture
from peer.trainer.hf.initial_values import built_with_values
from peer.trainer.hf.library_modules import check_library
from peer.trainer.hf.task_losses import ForTask
from peer.trainer.model.gpt import build_model


def build_run_model(
    manifest: RunManifest, base: Path | None = None, *, compressed: Compressed | None = None
) -> nn.Module:
    """Build the run's module, which is also a `LanguageModel`, on the CPU; its bits are the same on every machine.

    Args:
        base: the result of `find_base`.
        compressed: fewer bits for the base under an adapter; None: all bits.

    Raises:
        UsageFault: transformers is not installed.
        Incompatible: the run trains a module of its owner's own code, or transformers does not know the architecture or
            builds a different module than at the run's creation.
    """
    section = manifest.model
    if section.kind == "gpt":
        return build_model(section, manifest.seed)
    check_joinable(manifest.name, manifest)
    architecture = build_run_architecture(manifest, base, compressed=compressed)
    return for_task(manifest, architecture)


def for_task(manifest: RunManifest, architecture: nn.Module) -> ForTask:
    """Combine a run's architecture with the loss of its task into a `LanguageModel`."""
    section = manifest.model
    _, task = section.described
    return ForTask(architecture, task, section.context, section.mask_token, vocab_size=section.vocab_size)


def build_run_architecture(
    manifest: RunManifest, base: Path | None = None, *, compressed: Compressed | None = None
) -> nn.Module:
    """Build the transformers module of a run of kind hf, for any task, with the run's initial parameters.

    Args:
        base: the result of `find_base`. Only a run that trains all parameters can be built without a base; an anchor
            then replaces its values.
        compressed: see `build_run_model`.

    Raises:
        UsageFault, Incompatible: see `check_architecture`; also an adapter without its base.
    """
    section = manifest.model
    # A config of a few bytes can describe any number of values, so they are counted before any is allocated.
    check_architecture(manifest)
    if stands_on_base(manifest) and base is None:
        what = "this run's adapter needs" if section.adapter is not None else "this run's frozen parts need"
        raise UsageFault(f"{what} pretrained weights, which are missing; expected a folder with them; give --base DIR")
    if base is not None:
        module = load_architecture(*section.described, base, compressed)
    else:
        module = built_with_values(partial(build_architecture, *section.described), manifest.seed)
    if section.adapter is not None:
        module = with_adapter(module, section.adapter, manifest.seed)
    freeze(module, section.frozen or ())
    return module


def stands_on_base(manifest: RunManifest) -> bool:
    """Return whether the run's model needs pretrained weights that are not trained."""
    section = manifest.model
    return section.adapter is not None or (section.frozen is not None and section.init is not None)


def freeze(module: nn.Module, names: Sequence[str]) -> None:
    """Freeze the named parameters and all parameters of the named modules, and train the rest.

    Raises:
        Incompatible: no part of the model has such a name, or no parameter is left to train.
    """
    parameters = [(bare_name(name, module), parameter) for name, parameter in module.named_parameters()]
    for frozen in names:
        found = [parameter for name, parameter in parameters if name == frozen or name.startswith(f"{frozen}.")]
        if not found:
            known = ", ".join(dict.fromkeys(".".join(name.split(".")[:2]) for name, _ in parameters))
            raise Incompatible(
                f"{frozen!r} should be frozen, but the model has no part of that name; expected names of its "
                f"parameters or modules, such as {known[:300]}"
            )
        for parameter in found:
            parameter.requires_grad_(False)
    if names and not any(parameter.requires_grad for _, parameter in parameters):
        raise Incompatible("all parameters would be frozen; expected at least one to train; freeze fewer parts")


def check_joinable(run: str, manifest: RunManifest) -> None:
    """Check that `peer join` can train the model of a run.

    Args:
        run: name of the run, for error messages.

    Raises:
        UsageFault: transformers is not installed.
        Incompatible: the model is a module of its owner's own code.
    """
    section = manifest.model
    if section.kind == "custom":
        raise Incompatible(
            f"run {run} trains a model from its owner's code (kind {section.kind!r}); expected the built-in GPT or an "
            f"architecture of transformers; join the run from that code with murmuration.join: {manifest.own_code_hint}"
        )
    if section.kind == "hf":
        check_library()
        if section.adapter is not None:
            check_adapters()


def check_architecture(manifest: RunManifest) -> None:
    """Check that this machine's transformers builds the same module from the run's config as at the run's creation.

    Raises:
        UsageFault: transformers is not installed.
        Incompatible: transformers does not know the architecture, or parameters differ in name, shape or order.
    """
    section = manifest.model
    shapes, buffer_shapes = run_shapes(manifest)
    layout = layout_of(manifest, shapes, buffer_shapes)
    if layout.digest != layout_digest_of(manifest):
        raise Incompatible(
            f"the transformers on this machine builds {layout.num_values} averaged values in {len(shapes)} "
            f"parameters from the run's config (layout {layout.digest.hex()[:16]}); expected "
            f"{section.num_parameters} (layout {layout_digest_of(manifest).hex()[:16]}), as when the run was created; "
            "install the version that its owner uses"
        )


def run_shapes(manifest: RunManifest) -> tuple[Shapes, Shapes]:
    """Return (name, shape) of the parameters and of the buffers that a run of kind hf averages, in order.

    Raises:
        UsageFault, Incompatible: see `build_architecture`.
    """
    section = manifest.model
    shapes, buffers = architecture_parts(*section.described, section.adapter, section.frozen or ())
    return shapes, buffers if section.num_buffer_values else []


def architecture_parts(
    config: str, task: str, adapter: AdapterSection | None = None, frozen: Sequence[str] = ()
) -> tuple[Shapes, Shapes]:
    """Return (name, shape) of the trained parameters of an architecture or its adapter, and of its saved buffers.

    They are in the module's order, tied ones once. No tensor takes memory.

    Raises:
        UsageFault, Incompatible: see `build_architecture` and `freeze`.
    """
    module = build_architecture(config, task, without_values=True)
    if adapter is not None:
        module = with_adapter(module, adapter, None)
    freeze(module, frozen)
    return tensor_shapes(trained_parameters(module)), tensor_shapes(shared_buffers(module))

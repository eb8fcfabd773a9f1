"""The model of a run that `peer join` trains, built-in or of transformers, with the run's initial parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import nn

from dht.errors import Incompatible, UsageFault
from peer.config.layouts import layout_digest_of, layout_of, trained_parameters
from peer.config.manifest import RunManifest
from peer.config.model_section import AdapterSection
from peer.trainer.hf.adapter import check_adapters, with_adapter
from peer.trainer.hf.architecture import Compressed, build_architecture, check_library, load_architecture
from peer.trainer.hf.initial_values import built_with_values
from peer.trainer.hf.tasks import ForTask, check_joined
from peer.trainer.model.gpt import build_model


def build_run_model(
    manifest: RunManifest, base: Path | None = None, *, for_speed: bool = False, compressed: Compressed | None = None
) -> nn.Module:
    """The run's module, which is also a `LanguageModel`, on the CPU: the same bits on every machine.

    Args:
        base: what `find_base` found.
        for_speed: a base that is not at hand is one of any values.
        compressed: fewer bits for the base under an adapter; None: all.

    Raises:
        UsageFault: transformers is not installed.
        Incompatible: the run trains a module of its owner's own code or a task that has no data here, transformers does
            not know the architecture, or makes another module of it than the one that the run was made with.
    """
    section = manifest.model
    if section.kind == "gpt":
        return build_model(section, manifest.seed)
    check_joinable(manifest.name, manifest)
    assert section.task is not None
    architecture = build_run_architecture(manifest, base, for_speed=for_speed, compressed=compressed)
    return ForTask(architecture, section.task, section.context, section.mask_token)


def build_run_architecture(
    manifest: RunManifest, base: Path | None = None, *, for_speed: bool = False, compressed: Compressed | None = None
) -> nn.Module:
    """The module of transformers that a run of kind hf trains, under any task, with the run's initial parameters.

    Args:
        base: what `find_base` found; only a run that trains all parameters can be built without, to be filled with
            an anchor.
        for_speed: a base that is not at hand is one of any values.
        compressed: see `build_run_model`.

    Raises:
        UsageFault, Incompatible: as from `check_architecture`; an adapter without its base.
    """
    section = manifest.model
    assert section.config is not None
    assert section.task is not None
    # A config of a few bytes can describe any number of values: they are counted before there are any.
    check_architecture(manifest)
    if section.adapter is not None and base is None and not for_speed:
        raise UsageFault(
            "this run's adapter stands on given weights, and none are at hand; expected a folder with them; give "
            "--base DIR"
        )
    initial = partial(built_with_values, partial(build_architecture, section.config, section.task), manifest.seed)
    module = initial() if base is None else load_architecture(section.config, section.task, base, initial, compressed)
    if section.adapter is not None:
        module = with_adapter(module, section.adapter, manifest.seed)
    return module


def check_joinable(run: str, manifest: RunManifest) -> None:
    """Whether `peer join` trains a run's model.

    Args:
        run: as it is known to the reader.

    Raises:
        UsageFault: transformers is not installed.
        Incompatible: it is a module of its owner's own code, or has a task that has no data here.
    """
    section = manifest.model
    if section.kind == "custom":
        raise Incompatible(
            f"run {run} trains a model from its owner's own code (kind {section.kind!r}); expected the built-in GPT or "
            f"an architecture of transformers; join it from that code with murmuration.join: {manifest.own_code_hint}"
        )
    if section.task is not None:
        check_library()
        check_joined(section.task)
        if section.adapter is not None:
            check_adapters()


def check_compressed(manifest: RunManifest, base_bits: str) -> None:
    """Whether a run's weights may have fewer bits here.

    Raises:
        UsageFault: they are trained, or what is trained depends on their last bits.
    """
    adapter = manifest.model.adapter
    if base_bits != "full" and (adapter is None or adapter.kind != "lora"):
        what = "trains all of its weights" if adapter is None else "trains DoRA, whose magnitudes are those of the base"
        raise UsageFault(
            f"--base-bits {base_bits} was given, and this run {what}; expected it with LoRA alone; leave it out"
        )


def check_architecture(manifest: RunManifest) -> None:
    """Whether this machine's transformers makes of the run's config the module that the run was made with.

    Raises:
        UsageFault: transformers is not installed.
        Incompatible: it does not know the architecture, or its parameters have other names, shapes or order.
    """
    section = manifest.model
    assert section.config is not None
    assert section.task is not None
    shapes = architecture_shapes(section.config, section.task, section.adapter)
    layout = layout_of(manifest, shapes)
    if layout.digest != layout_digest_of(manifest):
        raise Incompatible(
            f"the transformers of this machine makes {layout.num_values} trained values in {len(shapes)} parameters of "
            f"the run's config (layout {layout.digest.hex()[:16]}); the run was made with {section.num_parameters} "
            f"(layout {layout_digest_of(manifest).hex()[:16]}); install the version that its owner uses"
        )


def architecture_shapes(
    config: str, task: str, adapter: AdapterSection | None = None
) -> Sequence[tuple[str, tuple[int, ...]]]:
    """(name, shape) of the trained parameters of an architecture, or of its adapter, in order, tied ones once.

    Nothing takes memory.

    Raises:
        UsageFault, Incompatible: as from `build_architecture`.
    """
    module = build_architecture(config, task, without_values=True)
    if adapter is not None:
        module = with_adapter(module, adapter, None)
    return [(name, tuple(parameter.shape)) for name, parameter in trained_parameters(module)]

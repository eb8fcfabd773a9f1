"""Given weights that a run begins with or stands on: the folder that every volunteer has, known by digest.

Nobody sends them. A run names a digest of their names, types, shapes and bytes. A volunteer has the same ones in a
folder (`--base DIR`) or takes them from the hub at the revision that the manifest names. Only safetensors files are
read, which hold numbers and nothing that could run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from dht.errors import Incompatible, LocalFault, UsageFault
from dht.quantities import bytes_text
from dht.regular_files import open_regular
from peer.config.manifest import RunManifest
from peer.optional_libraries import needing

HUB = "hub:"
BRANCHES = ("main", "master", "HEAD")
"""Revisions that are another one tomorrow."""
MAX_NAMES = 200_000
"""Tensors of a model; the largest published ones have some ten thousand."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def has_weights(folder: Path) -> bool:
    """Whether a folder has safetensors files."""
    return folder.is_dir() and any(folder.glob("*.safetensors"))


def read_base(folder: Path) -> tuple[str, int]:
    """(digest, bytes) of all tensors in a folder's safetensors files; a tensor at a time is in memory.

    The digest is BLAKE3 (64 hexadecimal digits) of names (sorted), types, shapes and bytes, however they lie in files.

    Raises:
        UsageFault: it is not there, it has none, one is no whole safetensors file, or one name is there twice.
    """
    digest, num_bytes = blake3(), 0
    with ExitStack() as stack:
        for name, file in _tensors(folder, stack):
            try:
                tensor = file.get_tensor(name)
            except (SafetensorError, RuntimeError) as error:
                raise UsageFault(f"{folder}: {name} cannot be read ({error}); expected whole files.") from error
            described = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            digest.update(json.dumps(described).encode() + b"\n")
            digest.update(content.data)
            num_bytes += content.nbytes
    return digest.hexdigest(), num_bytes


def _tensors(folder: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """(name, file) of all tensors, by name."""
    found: dict[str, Any] = {}
    if not folder.exists():
        raise UsageFault(
            f"{folder} does not exist; expected a folder with a model's weights (*.safetensors); check the path."
        )
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not paths:
        raise UsageFault(f"{folder} has no *.safetensors file; expected a folder with a model's weights in that form.")
    for path in paths:
        try:
            open_regular(path).close()
            file = stack.enter_context(safe_open(path, framework="pt"))
            names = list(file.keys())
        except (OSError, SafetensorError) as error:
            raise UsageFault(f"{path} is no whole safetensors file ({error}); expected a model's weights.") from error
        if again := found.keys() & names:
            raise UsageFault(f"{path} has {min(again)!r}, which another file of {folder} has too; expected it once.")
        found |= dict.fromkeys(names, file)
    if len(found) > MAX_NAMES:
        raise UsageFault(f"{folder} has {len(found)} tensors; expected at most {MAX_NAMES}.")
    return iter(sorted(found.items()))


def find_base(manifest: RunManifest, given: Path | None) -> Path | None:
    """The folder with the weights that a run begins with, checked; None: it begins from its seed.

    Args:
        given: the volunteer's own folder; None: what the hub's cache has, or the hub.

    Raises:
        UsageFault: a folder is expected and none was given, it has other files, or the hub's library is missing.
        Incompatible: the weights are not the run's.
        LocalFault: the hub does not give them.
    """
    init = manifest.model.init
    if init is None:
        if given is not None:
            raise UsageFault("--base is given, and this run begins from its seed; expected no base; leave it out.")
        return None
    if given is None and not init.source.startswith(HUB):
        raise init.not_given()
    folder = given if given is not None else from_hub(init.source.removeprefix(HUB))
    digest, _ = read_base(folder)
    if digest != init.digest:
        raise Incompatible(
            f"the weights in {folder} have the digest {digest[:16]}; the run stands on {init.digest[:16]}; "
            "expected the same weights: take them at the very revision that the run's owner used"
        )
    return folder


def base_facts(manifest: RunManifest, given: Path | None, tell: Callable[[str], object]) -> str:
    """Which given weights a run stands on, and where they are, in a phrase; empty: it needs none. No hub is asked.

    Args:
        given: the volunteer's own folder, which is read whole.
        tell: takes a sentence before that.

    Raises:
        UsageFault, Incompatible: as from `find_base`.
    """
    init = manifest.model.init
    if init is not None and given is None and init.source.startswith(HUB):
        name = init.source.removeprefix(HUB)
        return f"{name} of the hub, {bytes_text(init.num_bytes)}, which `peer join` fetches unless --base DIR has them"
    if init is not None and given is not None:
        tell(f"checking the given weights in {given}")
    folder = find_base(manifest, given)
    return "" if init is None else f"{folder} has those that the run stands on, {bytes_text(init.num_bytes)}"


def checked_hub_name(name: str) -> tuple[str, str]:
    """(repository, revision) of ``org/name@REVISION``.

    Raises:
        UsageFault: no revision, a branch, or no name of a repository.
    """
    repository, _, revision = name.partition("@")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageFault(f"{name!r} is no folder and no model of the hub; expected DIR or org/name@REVISION.")
    if not _REVISION.fullmatch(revision) or revision in BRANCHES:
        got = f"has the branch {revision!r}" if revision in BRANCHES else "is no folder here, and has no revision"
        raise UsageFault(
            f"{name!r} {got}; expected a commit or a tag, which stays the same, such as {repository}@v1.0; give one"
        )
    return repository, revision


def from_hub(name: str) -> Path:
    """The folder of ``org/name@REVISION`` in the hub's cache, downloaded where it is not there.

    Raises:
        UsageFault: as from `checked_hub_name`, or huggingface_hub is not installed.
        LocalFault: neither cache nor hub has it.
    """
    repository, revision = checked_hub_name(name)
    with needing("a model of the hub", "huggingface_hub", "hf"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=["*.safetensors", "*.json", "*.jinja"])
        )
    except Exception as error:  # The hub's, HTTP's and the system's own classes.
        with suppress(LocalEntryNotFoundError):
            # Not every version of the library looks into its cache when it finds no hub.
            return Path(snapshot_download(repository, revision=revision, local_files_only=True))
        text = " ".join(str(error).split())[:300]
        raise LocalFault(
            f"{repository} at {revision} cannot be had: {text}; expected it in the hub's cache or on the hub; download "
            "it, or give a folder"
        ) from error

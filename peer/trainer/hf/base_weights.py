"""Pretrained weights on which a run is based: each volunteer has them in a folder, identified by a digest.

Peers never send these weights. A run contains a digest of their names, types, shapes and bytes. A volunteer has the
same weights in a folder (`--base DIR`), or downloads them from the hub at the revision in the manifest. Only
safetensors files are read, which contain numbers and no executable code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from dht.ground.errors import Incompatible, UsageFault, reading
from dht.ground.quantities import bytes_text
from dht.ground.regular_files import open_regular, read_regular
from peer.config.manifest import RunManifest
from peer.config.model_section import InitSection
from peer.sources.hub_files import hub_folder
from peer.trainer.hf.architecture import WeightsFit, weights_fit

HUB = "hub:"
BRANCHES = ("main", "master", "HEAD")
"""Names of revisions that change over time."""
MAX_NAMES = 200_000
"""Limit on the tensors of a model; the largest published models have tens of thousands."""
WHOLE_NAME = "model.safetensors"
INDEX_NAME = f"{WHOLE_NAME}.index.json"
"""The index of several files: the file of each tensor."""
MAX_INDEX_BYTES = 64 << 20
MOST_COPIES = 4
"""Limit on a model's download, in multiples of its weights: some repositories have them in two forms."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_OTHER_FORM = re.compile(r"\.(bin|pt|pth|ckpt|h5|msgpack|gguf|safetensors)(\.|$)")
"""Weights that are not read, because some formats can run code; also files of unfinished downloads."""


def has_weights(folder: Path) -> bool:
    """Return whether a folder contains safetensors files.

    Raises:
        UsageFault: the folder contains weights only in other formats.
    """
    if not folder.is_dir():
        return False
    if _safetensors(folder):
        return True
    if any(_OTHER_FORM.search(path.name) for path in folder.iterdir()):
        raise UsageFault(f"{without_weights(folder)}; give only its config.json as --model to begin without weights.")
    return False


def _safetensors(folder: Path) -> list[Path]:
    """Return the safetensors files and, if there are several, the index."""
    index = folder / INDEX_NAME
    return [*sorted(folder.glob("*.safetensors")), *([index] if index.exists() else [])]


def without_weights(folder: Path) -> str:
    """Return a sentence that a folder has no readable weights, with its other files and advice."""
    others = sorted(path.name for path in folder.iterdir() if _OTHER_FORM.search(path.name))
    expected = "expected a model's weights as safetensors"
    if not others:
        return f"{folder} has no *.safetensors file; {expected}"
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"{folder} has {others[0]}{more} and no *.safetensors file: weights in other formats, such as pickles that "
        f"can run code, are never read; {expected}; convert weights that you trust with transformers, "
        f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r}) or the class of your "
        "task"
    )


def check_files(folder: Path) -> None:
    """Check that the weight files of a folder are complete.

    Raises:
        UsageFault: see `read_base`; values are not checked.
    """
    with ExitStack() as stack:
        _tensors(folder, stack)


def read_base(folder: Path, fit: WeightsFit | None = None) -> tuple[str, int]:
    """Return (digest, bytes) of the tensors that the library loads from a folder; one tensor at a time is in memory.

    The digest is BLAKE3 (64 hexadecimal digits) of names (sorted), types, shapes and bytes, independent of the division
    into files. A tensor with two names in the architecture is included once, under the first name.

    Args:
        fit: the tensors that the architecture uses; None: all tensors of the files that the library opens.

    Raises:
        UsageFault: the folder or a file of the index is missing; there are no weights; a safetensors file is
            incomplete; a name appears twice; values are not finite, or differ where the architecture has one tensor.
    """
    digest, num_bytes = blake3(), 0
    with ExitStack() as stack:
        for name, tensor in _counted_tensors(folder, _tensors(folder, stack), fit):
            _check_values(folder, name, tensor)
            described = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            digest.update(json.dumps(described).encode() + b"\n")
            digest.update(content.data)
            num_bytes += content.nbytes
    return digest.hexdigest(), num_bytes


def _counted_tensors(
    folder: Path, files: Mapping[str, Any], fit: WeightsFit | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), sorted by name, of each tensor that the library loads; a tied one under its first name."""

    def read(name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = files[name].get_tensor(name)
        except (SafetensorError, RuntimeError) as error:
            raise UsageFault(f"{folder}: {name} cannot be read ({error}); expected complete files.") from error
        return tensor

    unused, tied = (fit.unused, fit.tied) if fit is not None else ((), {})
    counted: dict[str, str] = {}
    for name in sorted(files.keys() - set(unused), key=lambda name: (name in tied, name)):
        first = tied.get(name, name)
        if (other := counted.setdefault(first, name)) != name and not _are_equal(read(name), read(other)):
            raise UsageFault(
                f"{folder}: {name} and {other} differ, but the model's config makes them one tensor; expected equal "
                'values; write "tie_word_embeddings": false into its config.json if the weights are right.'
            )
    for first in sorted(counted):
        yield first, read(counted[first])


def _are_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare in one number type, as the library does."""
    return torch.equal(tensor.to(other.dtype), other) or torch.equal(tensor, other.to(tensor.dtype))


def _check_values(folder: Path, name: str, tensor: torch.Tensor) -> None:
    # Scalars are skipped: a mask constant in GPT-NeoX files is minus infinity in 16 bits.
    if not tensor.is_floating_point() or not tensor.dim() or not tensor.numel():
        return
    if tensor.element_size() == 1:
        if "float8" not in str(tensor.dtype):
            return  # Types of fewer bits have no infinite values and no NaN.
        tensor = tensor.bfloat16()  # Exact; 8-bit types have no `aminmax`.
    low, high = tensor.aminmax()  # Not `isfinite`, which would need a second copy.
    if not math.isfinite(low) or not math.isfinite(high):
        what = "values that are not numbers" if math.isnan(low) else "infinite values"
        raise UsageFault(
            f"{folder}: {name} has {what}; expected finite numbers, because training with others fails; use weights "
            "from before the training diverged."
        )


def _loaded_files(folder: Path) -> list[Path]:
    """Return the files that the library opens: the file with the complete model, or the files in the index.

    Raises:
        UsageFault: a file is missing, or the index cannot be read.
    """
    path = folder / INDEX_NAME
    if (folder / WHOLE_NAME).exists():
        return [folder / WHOLE_NAME]
    if not path.exists():
        found = min(file.name for file in folder.glob("*.safetensors"))
        raise UsageFault(
            f"{folder} has {found}, but neither {WHOLE_NAME} nor {INDEX_NAME}; expected one of them; rename the file "
            "if it is the complete model, or download all files of the model."
        )
    wanted = "expected the file of each tensor, as save_pretrained writes it; download it again."
    try:
        with reading(path, wanted):
            named = json.loads(read_regular(path, MAX_INDEX_BYTES).decode())["weight_map"].values()
        files = sorted(set(named))
        if elsewhere := [name for name in files if Path(name).name != name]:
            raise ValueError(f"it refers to {elsewhere[0]!r}, outside the folder")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UsageFault(f"{path} is not an index of weights ({error}); {wanted}") from error
    if absent := [name for name in files if not (folder / name).is_file()]:
        raise UsageFault(
            f"{folder} has no {absent[0]}, one of the {len(files)} files that {INDEX_NAME} lists; expected all of "
            f"them, but {len(absent)} {'is' if len(absent) == 1 else 'are'} missing; download the model again."
        )
    return [folder / name for name in files]


def _tensors(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Return the open file of each tensor, by the tensor's name."""
    found: dict[str, Any] = {}
    if not folder.exists():
        raise UsageFault(
            f"{folder} does not exist; expected a folder with a model's weights (*.safetensors); check the path."
        )
    if not folder.is_dir():
        raise UsageFault(f"{folder} is not a folder; expected a folder with a model's weights (*.safetensors).")
    if not _safetensors(folder):
        raise UsageFault(f"{without_weights(folder)}.")
    for path in _loaded_files(folder):
        try:
            open_regular(path).close()
            file = stack.enter_context(safe_open(path, framework="pt"))
            names = list(file.keys())
        except (OSError, SafetensorError) as error:
            raise UsageFault(
                f"{path} is not a complete safetensors file ({error}); expected a model's weights."
            ) from error
        if again := found.keys() & names:
            raise UsageFault(f"{path} has {min(again)!r}, which another file of {folder} also has; expected it once.")
        found |= dict.fromkeys(names, file)
    if len(found) > MAX_NAMES:
        raise UsageFault(f"{folder} has {len(found)} tensors; expected at most {MAX_NAMES}.")
    return found


def find_base(manifest: RunManifest, given: Path | None) -> Path | None:
    """Return the verified folder with the weights on which a run is based; None if the run begins from its seed.

    Args:
        given: the volunteer's own folder; None: use the hub's cache, or download from the hub.

    Raises:
        UsageFault: a required folder was not given, the folder contains other files, or the hub's library is missing.
        Incompatible: the weights are not the run's weights.
        LocalFault: the weights cannot be downloaded from the hub.
    """
    init = manifest.model.init
    if init is None:
        if given is not None:
            raise UsageFault("--base is given, but this run begins from its seed; expected no base; omit --base.")
        return None
    if given is None and not init.source.startswith(HUB):
        raise init.not_given()
    folder = given if given is not None else _named(init)
    check_files(folder)
    digest, _ = read_base(folder, weights_fit(*manifest.model.described, folder))
    if digest != init.digest:
        raise Incompatible(
            f"the weights in {folder} have the digest {digest[:16]}; expected the run's pretrained weights "
            f"{init.digest[:16]}; download them at the revision that the run's owner used"
        )
    return folder


def _named(init: InitSection) -> Path:
    """Return the folder of the weights in the manifest, whose digest the caller checks afterwards."""
    return from_hub(init.source.removeprefix(HUB), num_bytes=init.num_bytes)


def base_facts(manifest: RunManifest, given: Path | None, tell: Callable[[str], object]) -> str:
    """Return a phrase about a run's pretrained weights and where they are; empty if it has none. Never contacts the
    hub.

    Args:
        given: the volunteer's own folder, which is read completely.
        tell: receives a sentence before the folder is read.

    Raises:
        UsageFault, Incompatible: see `find_base`.
    """
    init = manifest.model.init
    if init is not None and given is None and init.source.startswith(HUB):
        name = init.source.removeprefix(HUB)
        return f"{name} on the hub, {bytes_text(init.num_bytes)}; `peer join` fetches them unless --base DIR has them"
    if init is not None and given is not None:
        tell(f"checking the given weights in {given}")
    folder = find_base(manifest, given)
    return "" if init is None else f"{folder} has the run's pretrained weights, {bytes_text(init.num_bytes)}"


def checked_hub_name(name: str) -> tuple[str, str]:
    """Return (repository, revision) of ``org/name@REVISION``.

    Raises:
        UsageFault: the revision is missing or a branch, or the repository name is invalid.
    """
    repository, _, revision = name.partition("@")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageFault(f"{name!r} is neither a folder nor a model of the Hub; expected DIR or org/name@REVISION.")
    if not _REVISION.fullmatch(revision) or revision in BRANCHES:
        got = f"has the branch {revision!r}" if revision in BRANCHES else "is not a local folder, and has no revision"
        raise UsageFault(f"{name!r} {got}; expected a commit or a tag, which stays the same, such as {repository}@v1.0")
    return repository, revision


def from_hub(name: str, *, is_own: bool = False, num_bytes: int | None = None) -> Path:
    """Return the folder of ``org/name@REVISION`` in the hub's cache; download it if it is missing.

    Args:
        is_own: the user chose the name, so the download uses the user's login, and includes the files beside the
            weights.
        num_bytes: size of all tensors according to a manifest; None: no limit.

    Raises:
        UsageFault: see `checked_hub_name`; the model is not public or too large; huggingface_hub is not installed.
        LocalFault: the model is neither in the cache nor on the hub.
    """
    repository, revision = checked_hub_name(name)
    patterns = ("*.safetensors", "*.json", "*.jinja") if is_own else ("*.safetensors", f"*{INDEX_NAME}")
    most = None if num_bytes is None else MOST_COPIES * num_bytes + MAX_INDEX_BYTES
    return hub_folder(repository, revision, patterns, is_own=is_own, most_bytes=most)

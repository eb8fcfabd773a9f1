"""Creating a run: the owner's key, the signed manifest, and the id that certifies both."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any

from averaging.outer.fragment_layout import build_layout, with_buffers
from dht.ground.errors import LocalFault, PeerFault, UsageFault
from dht.ground.regular_files import read_regular
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import (
    MAX_RUN_RECORD_BYTES,
    claimed_run_id,
    decode_run_record,
    encode_run_record,
    sign_run_record,
)
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.hf_model_section import DescribedModel
from peer.config.manifest import RunManifest, run_file_fields
from peer.config.model_shapes import OwnModule, shared_buffers, tensor_shapes, trained_parameters
from peer.config.peer_config import IDENTITY_NAME, RUN_RECORD_NAME
from peer.data_folder.data_folder_choice import FreshFolder
from peer.files.adding import check_at_hand, keep_files, with_files
from peer.files.checked_folder import FILES_NAME
from peer.files.layout_file import LAYOUT_NAME, layout_content
from peer.owner.custom_module import Buffers, check_module, chosen_buffers, frozen_digest
from peer.secret_files import make_secret_folder, write_secret
from peer.user_folders import OWNER_KEY_NAME, user_data_dir_here

OTHER_FOLDER = "give another --out (in Python folder)"
"""Advice shown if the owner's folder cannot be written."""
ROBUST_COMBINE = "centered_clip"
"""The default for an open run: with the mean, a single member could change every model; see open-run.md."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that `create_run` wrote to disk."""

    run_id: str
    manifest: RunManifest
    folder: Path

    @property
    def owner_key_path(self) -> Path:
        """File with the owner's key (mode 0600), the only key that can change the run."""
        return self.folder / OWNER_KEY_NAME

    @property
    def run_record_path(self) -> Path:
        """File with the signed manifest, which every member stores and publishes."""
        return self.folder / RUN_RECORD_NAME


def create_run(
    name: str,
    config_path: str | Path | None = None,
    folder: Path | None = None,
    *,
    replace: bool = False,
    access: str | None = None,
    page: str | None = None,
    for_strangers: bool = False,
    files: Sequence[Path] = (),
    model: DescribedModel | None = None,
    built: Callable[[RunManifest], OwnModule] | None = None,
    usable_context: Callable[[RunManifest], int] | None = None,
) -> NewRun:
    """Create a run: write the owner's key and the signed run record.

    Args:
        name: first half of the run id, 1 to 40 of a-z, 0-9 and ``-``.
        config_path: a TOML file with any fields of `RunManifest`; all other fields keep their defaults.
        folder: output folder; default: the data folder of the new run, where `peer seed` and `peer join` find the run.
        replace: sign an existing run in the folder again. The owner's key stays, and the revision grows by one.
        access: "open", "allowlist" or "invite"; None: from the file. The first member of a private run is the peer
            whose key is in the same folder; this function creates that key.
        page: address of the run's public page; None: from the file.
        for_strangers: give an open run a robust combination if the file sets none; a run that is signed again keeps its
            combination.
        files: files of the run, which members serve to each other; copied into the folder.
        model: an architecture of transformers to train, in balanced fragments; None: from the file.
        built: returns the run's module with its initial values, to compute the digest of the frozen parts of `model`
            for the manifest.
        usable_context: tries the run's model, and returns the longest context with which it can be trained, at most the
            manifest's. A run file with a longer context is refused.

    Raises:
        UsageFault: the name or a file is wrong, the data is a path on this machine, or the folder already has a run.
        LocalFault: the folder cannot be written.
    """
    # Check all input before the key is created.
    if model is not None:
        files = (*model.files, *files)
    manifest = _asked_manifest(name, config_path, files, model)
    _check_vocabulary(manifest, files)
    if model is not None and usable_context is not None:
        model = replace_field(model, max_context=usable_context(manifest))
        manifest = _asked_manifest(name, config_path, files, model)
    if built is not None and manifest.model.frozen is not None:
        manifest = _with_field(manifest, "model", "frozen_digest", frozen_digest(built(manifest)))
    is_combine_named = "combine" in manifest.averaging.model_fields_set
    fields = manifest.model_dump(mode="json")
    if access is not None:
        manifest = _with_flag("--access", {**fields, "access": {**fields["access"], "mode": access}})
    if page is not None:
        manifest = _with_flag("--page", {**manifest.model_dump(mode="json"), "page": page})
    is_chosen_here = for_strangers and manifest.access.mode == "open" and not is_combine_named
    return _write_run(manifest, folder, replace, files, is_combine_chosen_here=is_chosen_here)


def create_custom_run(
    name: str,
    module: OwnModule,
    settings: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    *,
    replace: bool = False,
    files: Sequence[str | Path] = (),
    buffers: str | None = None,
) -> NewRun:
    """Create a run for your own module, to train with `murmuration.join`.

    Args:
        module: a `torch.nn.Module`; the run averages its parameters with `requires_grad`, in balanced fragments. Each
            peer must build a module with the same parameters; the initial values may differ, because a new peer copies
            the swarm's values.
        settings: sections and fields of `RunManifest`, e.g. ``{"averaging": {"sync_every": 10}}``. An open run gets a
            robust combination if the settings contain none; a run that is signed again keeps its combination.
        name, folder, replace, files: as for `create_run`. An additional file contains the names and shapes of the
            parameters, so that the trained model can be read without the module.
        buffers: "mean" averages the module's saved floating-point buffers, such as running statistics, sends them to
            newcomers and exports them; with "local" each peer keeps its own buffers. Default: "mean", unless the
            buffers have more than an eighth as many values as the parameters.

    Raises:
        UsageFault: name, settings, module, buffers or a file are wrong, or the folder already has a run.
        LocalFault: the folder cannot be written.
    """
    _check_kinds(name, folder, files)
    make_run_id(name, bytes(32))
    if not isinstance(settings, Mapping | None):
        raise UsageFault(
            f"settings is {settings!r}; expected a mapping, such as {{'averaging': {{'sync_every': 10}}}}."
        )
    check_module(module)
    paths, place = [Path(path) for path in files], None if folder is None else Path(folder)
    if "model" in (settings or {}):
        raise UsageFault("settings has a section 'model'; expected none, because the module determines it; remove it.")
    earlier = None if place is None else _earlier_manifest(place)
    kept: Buffers | None = None if earlier is None else "mean" if earlier.model.num_buffer_values else "local"
    shared = chosen_buffers(module, buffers or kept)
    shapes = tensor_shapes(trained_parameters(module))
    buffer_shapes = tensor_shapes(shared_buffers(module)) if shared == "mean" else []
    with tempfile.TemporaryDirectory() as drafts:
        if LAYOUT_NAME not in {path.name for path in paths}:
            paths.append(Path(drafts) / LAYOUT_NAME)
            paths[-1].write_bytes(layout_content(shapes, buffer_shapes))
        fields = with_files({**(settings or {}), "name": name}, paths)
        try:
            asked = RunManifest.from_fields(
                {part: fields[part] for part in ("name", "access", "averaging") if part in fields}
            )
            is_chosen_here = asked.access.mode == "open" and "combine" not in asked.averaging.model_fields_set
            layout = build_layout(shapes, asked.averaging.num_fragments, "balanced")
            fields["model"] = {
                "num_parameters": layout.num_values,
                "layout_digest": with_buffers(layout, buffer_shapes).digest.hex(),
            }
            if buffer_shapes:
                num_values = sum(math.prod(shape) for _, shape in buffer_shapes)
                fields["model"]["num_buffer_values"] = num_values
            if (digest := frozen_digest(module)) is not None:
                fields["model"]["frozen_digest"] = digest
            manifest = RunManifest.from_fields(fields)
        except ValueError as error:
            raise UsageFault(f"run {name!r} cannot be created: {error}") from error
        return _write_run(manifest, place, replace, paths, is_combine_chosen_here=is_chosen_here)


def _check_kinds(name: Any, folder: Any, files: Any) -> None:
    """Check the types of the arguments, for scripts that are not type-checked."""
    if not isinstance(name, str):
        raise UsageFault(f"name is {name!r}; expected text, such as 'my-run'.")
    if not isinstance(folder, str | Path | None):
        raise UsageFault(f"folder is {folder!r}; expected a path, or None for the default folder.")
    if (
        not isinstance(files, Sequence)
        or isinstance(files, str)
        or not all(isinstance(one, str | Path) for one in files)
    ):
        raise UsageFault(f"files is {files!r}; expected a list of paths.")


def _with_flag(flag: str, fields: dict[str, Any]) -> RunManifest:
    try:
        return RunManifest.from_fields(fields)
    except ValueError as error:
        raise UsageFault(f"{flag}: {error}") from error


def _run_in(folder: Path) -> str | None:
    """Return the id that the run record in `folder` claims, or None if there is no readable record."""
    try:
        return claimed_run_id(read_regular(folder / RUN_RECORD_NAME, MAX_RUN_RECORD_BYTES))
    except OSError:
        return None


def _earlier_manifest(folder: Path) -> RunManifest | None:
    """Return the manifest of the run that is signed again. Fields that it lacks would make a different run."""
    try:
        data = read_regular(folder / RUN_RECORD_NAME, MAX_RUN_RECORD_BYTES)
        earlier = decode_run_record(data, run_id=claimed_run_id(data) or "")
        return RunManifest.from_bytes(earlier.manifest)
    except (OSError, PeerFault, ValueError):
        return None


def _asked_manifest(
    name: str, config_path: str | Path | None, files: Sequence[Path], model: DescribedModel | None
) -> RunManifest:
    """Return the manifest that flags and run file ask for, with defaults for the rest."""
    make_run_id(name, bytes(32))  # its message about a wrong name is clearer than a pattern
    fields = {"name": name} if config_path is None else run_file_fields(config_path, name=name)
    try:
        if model is not None:
            fields = _with_model(fields, model)
        return RunManifest.from_fields(with_files(fields, files))
    except ValueError as error:
        where = config_path or ("--file (in Python files)" if model is None else "--model")
        raise UsageFault(f"{where}: {error}") from error


def _check_vocabulary(manifest: RunManifest, files: Sequence[Path]) -> None:
    """Refuse a tokenizer with more tokens than the model, which every volunteer would have to refuse."""
    for path in files:
        if path.name != TOKENIZER_NAME:
            continue
        try:
            content = json.loads(read_regular(path, max(one.bytes for one in manifest.files)))
            vocabulary = content["model"]["vocab"]
            ids = [len(vocabulary) - 1] if isinstance(vocabulary, list) else list(vocabulary.values())
            num_tokens = 1 + max(ids + [one["id"] for one in content.get("added_tokens") or ()])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # the library that reads the file reports whether it is a tokenizer
        if num_tokens > manifest.model.vocab_size:
            place = "section [model] of the run file"
            if manifest.model.kind == "hf":
                place = "the model's config.json (pretrained weights need the tokenizer that was published with them)"
            raise UsageFault(
                f"{path} has {num_tokens} tokens, and model.vocab_size is {manifest.model.vocab_size}; expected no "
                f"more tokens than the model has; set vocab_size = {num_tokens} in {place}, or use a smaller tokenizer"
            )


def _with_model(fields: dict[str, Any], model: DescribedModel) -> dict[str, Any]:
    asked: object = fields.get("model", {})
    averaging: object = fields.get("averaging", {})
    if not isinstance(asked, dict) or not isinstance(averaging, dict):
        # The check of all fields reports this in full.
        return fields
    num_fragments = RunManifest.from_fields({"name": fields["name"], "averaging": averaging}).averaging.num_fragments
    return {**fields, "model": model.section(num_fragments, asked)}


def _write_run(
    manifest: RunManifest,
    folder: Path | None,
    replace: bool,
    files: Sequence[Path],
    *,
    is_combine_chosen_here: bool,
) -> NewRun:
    chosen = {("averaging", "combine"): ROBUST_COMBINE} if is_combine_chosen_here else {}
    for (section, field), value in chosen.items():
        manifest = _with_field(manifest, section, field, value)
    check_at_hand(folder, manifest, files)
    name = manifest.name
    if folder is None:
        owner = Identity.generate()
        run_id = make_run_id(name, owner.public_key)
        folder = user_data_dir_here() / run_id
        with _whole_or_nothing(folder):
            write_secret(folder / OWNER_KEY_NAME, owner.to_bytes(), OTHER_FOLDER)
            return _signed(run_id, _with_own_peer(manifest, folder), folder, owner, files)
    if not replace and (folder / OWNER_KEY_NAME).exists():
        raise UsageFault(
            f"{folder} already contains the owner's key of {_run_in(folder) or 'a run'}; expected an empty folder; "
            "choose another folder (--out), or sign the manifest again with that key (--force; in Python "
            "replace=True)."
        )
    earlier = _run_in(folder)
    if earlier is not None and earlier.partition(".")[0] != name:
        raise UsageFault(
            f"{folder} contains the run {earlier}; expected its name instead of {name!r}, because a new run in this "
            "folder would replace it; choose another --out for a run with a different name"
        )
    with _whole_or_nothing(folder):
        make_secret_folder(folder, OTHER_FOLDER)
        owner = _key(folder / OWNER_KEY_NAME)
        run_id = make_run_id(name, owner.public_key)
        manifest = _with_own_peer(manifest, folder)
        manifest = _as_next_revision(manifest, folder / RUN_RECORD_NAME, run_id, chosen)
        return _signed(run_id, manifest, folder, owner, files)


def _signed(run_id: str, manifest: RunManifest, folder: Path, owner: Identity, files: Sequence[Path]) -> NewRun:
    record = encode_run_record(sign_run_record(run_id, manifest.to_bytes(), owner))
    # Written before the record, which names the files: a run never lists files that its owner lacks.
    keep_files(folder, manifest, files)
    write_secret(folder / RUN_RECORD_NAME, record, OTHER_FOLDER)
    return NewRun(run_id, manifest, folder)


@contextlib.contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[None]:
    """Remove the files that the block wrote if it fails: a key without its run would block the next attempt."""
    named = (OWNER_KEY_NAME, IDENTITY_NAME, RUN_RECORD_NAME, FILES_NAME)
    fresh = FreshFolder(folder, (folder / name for name in named))
    try:
        yield
    except BaseException:
        fresh.take_back()
        raise


def _key(path: Path) -> Identity:
    try:
        return Identity.load_or_create(path)
    except UsageFault as fault:
        raise UsageFault(str(fault).replace("--identity", "--out")) from fault


def _with_own_peer(manifest: RunManifest, folder: Path) -> RunManifest:
    """Make the peer whose key is in the owner's folder the first member of a private run."""
    if manifest.access.mode == "open":
        return manifest
    first = _key(folder / IDENTITY_NAME).peer_id
    members = manifest.access.members
    if first in members:
        return manifest
    return _with_field(manifest, "access", "members", (*members, first))


def _with_field(manifest: RunManifest, section: str, field: str, value: object) -> RunManifest:
    changed = getattr(manifest, section).model_copy(update={field: value})
    return manifest.model_copy(update={section: changed})


def _as_next_revision(
    manifest: RunManifest, record_path: Path, run_id: str, chosen: Iterable[tuple[str, str]]
) -> RunManifest:
    """Return the manifest to sign over an earlier one. `chosen` lists the (section, field) pairs the owner
    did not set.
    """
    try:
        earlier = decode_run_record(read_regular(record_path, MAX_RUN_RECORD_BYTES), run_id=run_id)
    except FileNotFoundError:
        return manifest
    except OSError as error:
        raise LocalFault(f"{record_path}: {error.strerror}; expected a readable file; check the folder.") from error
    except PeerFault:
        # A damaged record has no revision to follow.
        return manifest
    update: dict[str, Any] = {"revision": max(manifest.revision, earlier.revision + 1)}
    with contextlib.suppress(ValueError):
        kept = RunManifest.from_bytes(earlier.manifest)
        if not manifest.changes:
            # A revoked key stays revoked.
            update["changes"] = kept.changes
        for section, field in chosen:
            # Another value would make another run.
            manifest = _with_field(manifest, section, field, getattr(getattr(kept, section), field))
    return manifest.model_copy(update=update)

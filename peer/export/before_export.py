"""What `peer export` sees to before anybody is asked and anything heavy is loaded."""

from __future__ import annotations

from pathlib import Path

from dht.ground.errors import UsageFault
from peer.export.formats.output_place import check_folder, check_writable
from peer.export.hub_push import check_push
from peer.export.model_source import Form


def check_export(
    out: Path,
    form: Form,
    *,
    replace: bool = False,
    push: str | None = None,
    merge: bool = False,
    base: Path | None = None,
) -> None:
    """Whether a model may be written to `out` in this form, and whether the other wishes suit it.

    Args:
        replace: an earlier export there may give way.
        push, merge, base: as for `export_model`.

    Raises:
        LocalFault: they do not fit each other, something is in the way, or the place cannot be written.
    """
    if push is not None:
        if form != "hf":
            raise UsageFault(f"--push is given with --out {out}; expected a folder: no --format and no .safetensors.")
        check_push(push)
    if form != "hf" and (merge or base is not None):
        raise UsageFault(f"--merge and --base are for folders, and --out is {out}; expected --out FOLDER.")
    (check_folder if form == "hf" else check_writable)(out, replace=replace)

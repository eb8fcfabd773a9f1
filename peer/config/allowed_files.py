"""The manifest's list of files: what a run needs beside its numbers, such as a tokenizer, known by digest. Pure.

Members serve them to each other (`averaging/transfer`), so that who joins needs no other place to get them from. A name
is that of a file in one folder: it never leads anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import Field, field_validator

from averaging.wire.file_chunks import MAX_FILE_BYTES
from peer.config.section import DIGEST, Section

MAX_FILES = 16
"""A tokenizer comes as four or five files, a model card and a layout beside it; 16 take 4 of the manifest's 12 KiB."""
MAX_TOTAL_BYTES = 256 << 20
"""Of all files together: an hour on a line of 600 kbit/s, and less than any checkpoint of such a run."""

FILE_NAME_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}$"
"""No separator, no dot in front: neither another folder nor a hidden file."""
CODE_ENDINGS = (".py", ".pyc", ".so", ".sh", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin", ".joblib")
"""Files that some library runs, or unpickles, when it is asked for the folder: weights come as safetensors."""


class FileSection(Section):
    """One file of the run; members give it to each other, and nobody uses it before its digest was checked."""

    name: str = Field(
        pattern=FILE_NAME_PATTERN,
        examples=["tokenizer.json (1 to 80 of A-Z, a-z, 0-9, '.', '_' and '-', with no dot in front)"],
        description="of the file, without a folder; no two names differ in capitals alone",
    )
    bytes: int = Field(ge=1, le=MAX_FILE_BYTES, description="its length")
    digest: str = Field(
        pattern=DIGEST["pattern"],
        examples=DIGEST["examples"],
        description="BLAKE3 of it, as `b3sum` prints it; above 1 MiB that of the BLAKE3s (32 bytes each) of its chunks "
        "of 1 MiB",
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name.lower().endswith(CODE_ENDINGS):
            raise ValueError(
                f"{name} may hold code that a library would run; expected a file that is only read, such as JSON, text "
                "or safetensors"
            )
        return name


def check_files(files: Sequence[FileSection]) -> None:
    """What the files of a run must be together.

    Raises:
        ValueError: there are too many, two have one name, or all are too long.
    """
    if len(files) > MAX_FILES:
        raise ValueError(f"files has {len(files)} entries; expected at most {MAX_FILES}; put small ones into one")
    names = Counter(file.name.lower() for file in files)
    twice = [file.name for file in files if names[file.name.lower()] > 1]
    if twice:
        raise ValueError(
            f"files has {' and '.join(twice[:2])}; expected names that differ in more than capitals, because they lie "
            "in one folder"
        )
    total = sum(file.bytes for file in files)
    if total > MAX_TOTAL_BYTES:
        raise ValueError(
            f"files names {total} bytes together; expected at most {MAX_TOTAL_BYTES}, because every member keeps them"
        )


def named_file(files: Sequence[FileSection], name: str, field: str) -> FileSection:
    """The file that another field of the manifest names, such as data.tokenizer.

    Raises:
        ValueError: there is none of that name.
    """
    for file in files:
        if file.name == name:
            return file
    known = ", ".join(file.name for file in files) or "none"
    raise ValueError(
        f"{field} is {name[:80]!r}, which is no file of the run ({known}); expected the name of one; "
        "`peer init --file PATH` adds it"
    )

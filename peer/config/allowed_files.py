"""The manifest's list of files that a run needs, such as a tokenizer, each with its digest. Pure.

Members serve the files to each other (`averaging/transfer`), so a new member needs no other server. All files are in
one folder, and a name never leads out of that folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import Field, field_validator

from averaging.wire.file_chunks import MAX_FILE_BYTES
from peer.config.section import DIGEST, Section

MAX_FILES = 16
"""Enough for a tokenizer (four or five files), a model card and a layout; 16 take 4 of the manifest's 12 KiB."""
MAX_TOTAL_BYTES = 256 << 20
"""Limit for all files together: an hour on a connection of 600 kbit/s, and less than any checkpoint of the run."""

TOKENIZER_NAME = "tokenizer.json"
"""Name of the file that turns text into tokens, in a run, a model's folder and an export."""
FILE_NAME_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}$"
"""Excludes other folders (no separator) and hidden files (no dot at the start)."""
CODE_ENDINGS = (".py", ".pyc", ".so", ".sh", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin", ".joblib")
"""Endings of files that a library might run or unpickle when it loads the folder; weights come as safetensors."""


class FileSection(Section):
    """A file of the run. Members serve the file to each other, and check its digest before they use the file."""

    name: str = Field(
        pattern=FILE_NAME_PATTERN,
        examples=["tokenizer.json (1 to 80 of A-Z, a-z, 0-9, '.', '_' and '-', with no dot in front)"],
        description="name of the file, without a folder; two names must differ in more than capitals",
    )
    bytes: int = Field(ge=1, le=MAX_FILE_BYTES, description="length of the file in bytes")
    digest: str = Field(
        pattern=DIGEST["pattern"],
        examples=DIGEST["examples"],
        description="BLAKE3 of the file, as `b3sum` prints it. For a file above 1 MiB: BLAKE3 of the concatenated "
        "BLAKE3 digests (32 bytes each) of its chunks of 1 MiB",
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name.lower().endswith(CODE_ENDINGS):
            raise ValueError(
                f"{name} may contain code that a library would run; expected a file without code, such as JSON, text "
                "or safetensors"
            )
        return name


def check_files(files: Sequence[FileSection]) -> None:
    """Check the files of a run as a whole.

    Raises:
        ValueError: the list is too long, two files have the same name, or the total length is too large.
    """
    if len(files) > MAX_FILES:
        raise ValueError(f"files has {len(files)} entries; expected at most {MAX_FILES}; merge small files")
    names = Counter(file.name.lower() for file in files)
    twice = [file.name for file in files if names[file.name.lower()] > 1]
    if twice:
        raise ValueError(
            f"files has {' and '.join(twice[:2])}; expected names that differ in more than capitals, because all files "
            "are in one folder"
        )
    total = sum(file.bytes for file in files)
    if total > MAX_TOTAL_BYTES:
        raise ValueError(
            f"files has {total} bytes in total; expected at most {MAX_TOTAL_BYTES}, because every member stores them"
        )

"""Row groups of Parquet files, which a child process with limits looks at: the list in a file is a stranger's claim.

The child's end is `prepare`, which `peer.limited_child.process` calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dht.errors import LocalFault, UsageFault
from dht.quantities import plural
from peer.limited_child.child_limits import ChildLimits
from peer.limited_child.limited_child import LimitedChild
from peer.limited_child.parent_link import ParentLink
from peer.trainer.text.parquet_rows import open_parquet

MAX_ROW_GROUPS = 1 << 16
"""Of a file; each has some megabytes of text, and larger data has several files."""
LIMITS = ChildLimits(memory_bytes=1 << 30, seconds=60.0)
"""A list of 60,000 row groups takes 60 MB and a second or two."""


class RowGroupLists:
    """A child process for the lists of any number of files, started with the first one. `close` it."""

    def __init__(self) -> None:
        self._child: LimitedChild | None = None

    def num_bytes(self, path: Path) -> list[int]:
        """Uncompressed bytes of each row group, as the file says.

        Raises:
            UsageFault: it is no Parquet file, or has too many.
            LocalFault: a library is missing, or the file took more than `LIMITS`.
        """
        if self._child is None:
            self._child = LimitedChild(__name__, {}, LIMITS, "Parquet files", "leave that file out")
        try:
            sizes = self._child.ask({"path": str(path.absolute())})[0].get("groups")
        except UsageFault:
            raise
        except LocalFault as fault:
            raise LocalFault(f"{path}: {fault}") from fault
        if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
            raise LocalFault(f"{path}: the process that reads Parquet files sent no lengths; expected some; try again")
        return [max(0, size) for size in sizes]

    def close(self) -> None:
        if self._child is not None:
            self._child.close()


def prepare(setup: dict[str, Any], parent: ParentLink) -> Any:
    """Answer the questions of `RowGroupLists`."""

    def answer(question: dict[str, Any], body: bytes) -> dict[str, Any]:
        path = Path(question["path"])
        metadata = open_parquet(path).metadata
        if metadata.num_row_groups > MAX_ROW_GROUPS:
            raise UsageFault(
                f"{path} has {plural(metadata.num_row_groups, 'row group')}; expected at most {MAX_ROW_GROUPS}; write "
                "it with larger ones, or as several files"
            )
        return {"groups": [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]}

    return answer

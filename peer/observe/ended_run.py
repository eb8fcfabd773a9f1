"""A run that its owner has ended: what is known before any member is asked, and the remaining options.

Every command line loads this module, so slow imports are made where they are used.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dht.ground.errors import Incompatible, NobodyReachable, UsageFault
from dht.ground.quantities import plural

SEARCH_SECONDS: Final = 5.0
"""Time to search for a member that still has the model: as long as one connection may take to open."""
_NUM_EVENTS: Final = 200
"""Number of newest log events read: a peer that saw the end writes few events after it."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The known facts about the end of a run.

    Attributes:
        known: the source of the fact, as the beginning of a sentence.
        is_over: whether the last version is reached, so that no peer can join any more.
        remedy: the remaining options, as a sentence.
    """

    known: str
    is_over: bool
    remedy: str

    def refusal(self) -> Incompatible:
        """Return the fault for a peer that wants to join."""
        return Incompatible(f"{self.known}; no peer can join it any more. {self.remedy}")

    def nobody_left(self, addresses: Sequence[str] = ()) -> Incompatible | NobodyReachable:
        """Return the fault for an observer if no member answers at these addresses, or none is known.

        The exit code is that of `refusal` if the run is over, because waiting is useless.
        """
        others = f" or at {plural(len(addresses) - 1, 'more address')}" if len(addresses) > 1 else ""
        where = f"no member answers at {addresses[0]}{others}" if addresses else "no address of a member is known"
        fault = Incompatible if self.is_over else NobodyReachable
        return fault(f"{self.known}, and {where}. {self.remedy}")


class NamedRun(NamedTuple):
    """A run that a person specified: its id, addresses of members, and the report of its page; None: not given."""

    run_id: str | None
    peers: list[str] | None = None
    end: RunEnd | None = None
    is_private: bool = False
    """Whether an invite is needed, according to the page."""


def end_signed_here(run_id: str, data_dir: Path) -> RunEnd | None:
    """Return the end in a manifest on this machine: in this data folder, or in the folder of another peer of the run.

    None if no manifest contains an end. An end already reached takes precedence over a future one.
    """
    from peer.data_folder.run_folders import folders_of

    folders = [data_dir]
    with contextlib.suppress(UsageFault):  # this user has no home folder
        folders += folders_of(run_id)
    ends = [end for folder in dict.fromkeys(folders) if (end := _end_signed_in(run_id, folder)) is not None]
    return next((end for end in ends if end.is_over), ends[0] if ends else None)


def _end_signed_in(run_id: str, folder: Path) -> RunEnd | None:
    path = folder / "run.record"
    if not path.exists():
        return None
    from peer.observe.kept_manifest import manifest_here

    manifest = manifest_here(path, run_id)
    return None if manifest is None else end_in(manifest, run_id, folder, "stored here")


def end_in(manifest: Any, run_id: str, data_dir: Path, whence: str) -> RunEnd | None:
    """Return the end in a `RunManifest`; None if it contains none.

    Args:
        data_dir: data folder of this machine's peer, whose log shows whether the last version was reached here.
        whence: the location of the manifest, in two or three words.
    """
    first = manifest.end_version
    if first is None:
        return None
    when = f"from version {first} on" if first else "at once"
    known = f"the owner of {run_id} has ended it ({when}, by revision {manifest.revision} of its manifest, {whence})"
    is_over = not first or _has_seen_end(data_dir / "events.jsonl")
    return RunEnd(known, is_over, what_is_left(run_id, data_dir, manifest.page_address))


def end_on_page(run_id: str, url: str, *, is_served: bool) -> RunEnd:
    """Return the end according to the page at `url`, which is untrusted; `is_served`: the page lists members still
    present.
    """
    left = what_is_left(run_id, None, url, is_served=is_served)
    return RunEnd(f"the run {run_id} has ended, according to its page {url}", True, left)


def what_is_left(run_id: str, data_dir: Path | None, page: str | None, *, is_served: bool = False) -> str:
    """Return a sentence on how to get the model of an ended run.

    Args:
        data_dir: folder in which this machine would have a checkpoint; None: the default folder.
        is_served: whether the run's page lists members that still serve the model.
    """
    from peer.data_folder.run_folders import folders_of

    for folder in folders_of(run_id, data_dir):
        if any((folder / "checkpoints").glob("checkpoint-*")):
            command = shlex.join(["peer", "export", run_id, "--checkpoint", str(folder), "--out", _free_name(run_id)])
            return f"This machine has its model: `{command}`."
    if is_served:
        return f"A member still serves its model: `peer export {page}`."
    if page:
        return f"Its page shows the results, and who has the model: {page}"
    return "All who took part have its model: ask one of them, or the owner."


def _free_name(run_id: str) -> str:
    """Return an unused name for the model's folder."""
    name = f"{run_id.partition('.')[0]}-model"
    further = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], further) if not Path(one).exists())


def _has_seen_end(event_log: Path) -> bool:
    """Return whether a peer with this log reached the last version."""
    from peer.events.log_tail import last_events
    from peer.events.peer_events import RunChanged

    try:
        facts = [event.fact for event in last_events(event_log, _NUM_EVENTS)[0]]
        return any(isinstance(fact, RunChanged) and fact.has_ended for fact in facts)
    except OSError:
        return False  # no readable log: members know the end

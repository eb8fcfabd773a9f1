"""Which run a command means: its id, the address of its page, its link, or the name of one that was joined here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from dht.errors import UsageFault

Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Which run: its id, the address of its page, its murmuration:// link, or the name of a run joined here.",
        show_default=False,
    ),
]


def named_run(run: str | None, run_id: str | None, peers: Sequence[str] | None) -> tuple[str | None, list[str] | None]:
    """(run id, addresses) of what was given as RUN, --run-id and --peers. A page is asked, and what it says printed.

    Raises:
        UsageFault: RUN names no run, or another one than --run-id.
        NobodyReachable: the page does not answer.
    """
    if run is None:
        return run_id, list(peers) if peers else None
    found, known = _meant(run)
    if run_id not in (None, found):
        raise UsageFault(f"Two runs are named: {found} and --run-id {run_id[:80]!a}; expected one; leave --run-id out.")
    return found, list(peers or known) or None


def with_named_run(flags: Mapping[str, object], run: str | None) -> dict[str, object]:
    """Flags with the run id and the addresses that RUN stands for.

    Raises:
        As `named_run`.
    """
    run_id, peers = flags.get("run_id"), flags.get("peers")
    assert run_id is None or isinstance(run_id, str)
    found, addresses = named_run(run, run_id, peers if isinstance(peers, list) else None)
    return {**flags, "run_id": found, "peers": addresses}


def names_run(text: str) -> bool:
    """Whether a word that may also be a file stands for a run."""
    from dht.identity.join_link import is_join_link
    from dht.identity.keys import split_run_id

    if is_join_link(text) or text[:8].lower().startswith(("http://", "https://")):
        return True
    with contextlib.suppress(UsageFault):
        split_run_id(text)
        return True
    return any(known.partition(".")[0] == text for known in runs_here())


def runs_here() -> list[str]:
    """Ids of the runs with a folder on this machine, by name."""
    from dht.identity.keys import split_run_id
    from peer.config.peer_config import user_data_dir_here
    from peer.observe.places import known_places

    try:
        names = {folder.name for folder in user_data_dir_here().iterdir()}
    except (OSError, UsageFault):
        return []
    found = []
    for name in sorted(names | {run_id for run_id, _ in known_places()}):
        with contextlib.suppress(UsageFault):
            split_run_id(name)
            found.append(name)
    return found


def _meant(run: str) -> tuple[str, Sequence[str]]:
    from dht.identity.join_link import is_join_link, parse_join_link
    from dht.identity.keys import split_run_id

    text = run.strip()
    if is_join_link(text):
        link = parse_join_link(text)
        return link.run_id, link.addresses
    if text[:8].lower().startswith(("http://", "https://")):
        from peer.observe.run_page import ask_page, in_words, is_unprotected

        says = ask_page(text)
        _say(in_words(says, text))
        if is_unprotected(text):
            _say("This page is not protected (http), so somebody on the way can name another run: compare the run id.")
        return says.run_id, says.addresses
    if "." not in text:
        same = [known for known in runs_here() if known.partition(".")[0] == text]
        if len(same) == 1:
            return same[0], ()
        if same:
            raise UsageFault(f"{text!a} is the name of {len(same)} runs here; expected one of {', '.join(same)}.")
    split_run_id(text)
    return text, ()


def _say(sentence: str) -> None:
    print(f"peer: {sentence}", file=sys.stderr, flush=True)

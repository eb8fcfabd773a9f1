"""Resolves a run from its id, the address of its page, its link, or the name of a run joined on this machine."""

from __future__ import annotations

import contextlib
import os.path
import re
from collections.abc import Callable, Mapping, Sequence

from dht.ground.errors import NobodyReachable, UsageFault
from peer.console.notices import notice
from peer.observe.ended_run import NamedRun
from peer.observe.run_names import near_run, runs_here, runs_of_name

_AROUND = "\"'`´<>()[]{}\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
"""Characters with which no run id, page or link begins or ends."""
_WITHIN = re.compile(r"[\s\u00ad\u200b\u2060\ufeff]+")
"""Characters that terminals, mails and chats insert into a long word at the end of a line."""


def named_run(
    run: str | None, run_id: str | None, peers: Sequence[str] | None, tell: Callable[[str], None] = notice
) -> NamedRun:
    """Resolve RUN, or --run-id instead, and --peers. A page is asked, and `tell` receives its answer.

    Raises:
        UsageFault: RUN is not a run, or differs from --run-id; or it resembles a run of this machine, and without
            --peers it cannot be checked whether a run with that id exists.
        NobodyReachable: the page does not answer.
    """
    named = run_id if run is None else run
    if named is None:
        return NamedRun(None, list(peers) if peers else None)
    meant = _meant(_as_written(named), tell, needs_address=not peers)
    found = meant.run_id or ""
    if not meant.peers and not peers and (near := near_run(found)):
        raise UsageFault(_did_you_mean(found, near))
    if run is not None and run_id not in (None, found):
        raise UsageFault(f"Two runs are given: {found} and --run-id {run_id[:80]!a}; expected one; leave --run-id out.")
    return NamedRun(found, list(peers)) if peers else meant


def with_named_run(
    flags: Mapping[str, object], run: str | None, tell: Callable[[str], None] = notice
) -> dict[str, object]:
    """Return the flags with the run id and the addresses of RUN, to join it.

    Raises:
        Incompatible: its page reports that the run has ended; with --peers the page is ignored.
        Other faults: see `named_run`.
    """
    run_id, peers = flags.get("run_id"), flags.get("peers")
    assert run_id is None or isinstance(run_id, str)
    named = named_run(run, run_id, peers if isinstance(peers, list) else None, tell)
    if named.end is not None:
        raise named.end.refusal()
    return {**flags, "run_id": named.run_id, "peers": named.peers}


def named_or_only_run(run: str | None, run_id: str | None, peers: Sequence[str] | None) -> NamedRun:
    """Resolve a run like `named_run`; if none is given, return the only run with a folder on this machine."""
    known = runs_here() if (run, run_id, peers or None) == (None,) * 3 else []
    return named_run(known[0], None, None) if len(known) == 1 else named_run(run, run_id, peers)


def names_run(text: str) -> bool:
    """Return whether a word that may also be a file refers to a run."""
    from dht.identity.join_link import is_join_link
    from dht.identity.keys import split_run_id

    text = _as_written(text)
    if is_join_link(text) or text[:8].lower().startswith(("http://", "https://")):
        return True
    with contextlib.suppress(UsageFault):
        split_run_id(text)
        return True
    return any(known.partition(".")[0] == text for known in runs_here())


def to_name_again(run: str | None, run_id: str, peers: Sequence[str], invite: str | None) -> list[str]:
    """Return words that identify a run on a machine without its addresses; a link or page stays as given.

    Args:
        run: RUN as given.
        peers: addresses from flags, the configuration or the invite.
    """
    if run is not None and "://" in run:
        return [_as_written(run)]
    if invite is not None:
        return [run_id, "--invite", invite if invite == "-" else os.path.abspath(invite)]
    return [run_id, "--peers", *peers] if peers else [run_id]


def _as_written(text: str) -> str:
    """Remove what was copied along with a run: line breaks, quotes, brackets, the final full stop."""
    return _WITHIN.sub("", text).strip(_AROUND).rstrip(".,;:!?" + _AROUND)


def _meant(text: str, tell: Callable[[str], None], *, needs_address: bool) -> NamedRun:
    from dht.identity.join_link import is_join_link, parse_join_link
    from dht.identity.keys import split_run_id

    if is_join_link(text):
        link = parse_join_link(text)
        return NamedRun(link.run_id, list(link.addresses) or None)
    if text[:8].lower().startswith(("http://", "https://")):
        from peer.observe.run_page import ask_page, in_words, is_unprotected

        says = ask_page(text)
        tell(in_words(says, text))
        if is_unprotected(text):
            tell("This page is not protected (http), so a third party can replace the run: compare the run id.")
        if needs_address and not says.peers and not says.is_private and says.end is None:
            _check_known_somewhere(says.run_id or "", text)
        return says
    if "." not in text:
        same = runs_of_name(text)
        if len(same) == 1:
            return NamedRun(same[0])
        if same:
            raise UsageFault(
                f"{text!a} is the name of {len(same)} runs here; expected one of {', '.join(same)}; "
                "`peer forget RUN` removes one."
            )
    try:
        split_run_id(text)
    except UsageFault as fault:
        if near := near_run(text):
            raise UsageFault(_did_you_mean(text, near)) from None
        raise UsageFault(_no_run(text, str(fault))) from None
    return NamedRun(text)


def _check_known_somewhere(run_id: str, page: str) -> None:
    """Raise NobodyReachable if a run's page has no address of a member, and none is known on this machine."""
    from peer.observe.known_addresses import is_anybody_known

    if not is_anybody_known(run_id):
        raise NobodyReachable(
            f"The page {page} has no address of a member of {run_id} yet, perhaps because the page has just "
            "started; expected at least one running member; try again in a minute."
        )


def _no_run(text: str, fault: str) -> str:
    """Return an explanation of a word that is not a run.

    Args:
        fault: the fault of the word as a run id.
    """
    got = f"{text[:80]!a}"
    if text.startswith(("/ip4/", "/ip6/", "/dns")):
        return f"{got} is the address of a member; expected RUN; pass such addresses with --peers."
    if "@" in text or "12D3KooW" in text:
        return f"{got} is a link without its beginning; expected murmuration://RUN@HOST:PORT/PEERID; copy all of it."
    if "." in text and not {"/", ":"} & set(text):
        return fault
    return (
        f"{got} is neither a run id nor the name of a run here; expected NAME.FINGERPRINT, a link (murmuration://...) "
        "or a page (https://...); `peer runs` lists the runs of this machine."
    )


def _did_you_mean(text: str, near: str) -> str:
    return f"{text[:80]!a} is not a run on this machine; did you mean {near}?"

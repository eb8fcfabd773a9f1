"""How somebody who only looks gets into a private run: with an invite for a key of its own.

In an open run an observer's key is new each time. Members of a private run must know it. So it is kept, with the pass
that the invite became, in a folder beside the run's data. The key of a peer on this machine is not used: two hosts with
one PeerId would take each other's connections. Only `peer doctor` looks as the peer that is about to join.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dht.admission.admission import Admission
from dht.admission.tickets import Invite
from dht.ground.errors import Incompatible, writing
from dht.ground.host import Host, PeerId
from dht.identity.keys import Identity
from dht.observer.network import ObserverEntry
from peer.config.peer_config import IDENTITY_NAME
from peer.network.membership.invitation import accept_invite, invited_admission, load_pass
from peer.network.membership.run_protocol import ask_for_run, reached_at

DIAL_SECONDS = 5.0


def keep_observer_invite(invite: Invite, folder: Path) -> None:
    """Use an invite for the observer key in `folder`, which is made when it is missing.

    Raises:
        UsageFault: the invite has expired, or is for another key.
        LocalFault: the folder cannot be written.
    """
    with writing(folder, "give another --data-dir"):
        folder.mkdir(parents=True, exist_ok=True)
    accept_invite(invite, Identity.load_or_create(folder / IDENTITY_NAME), folder)


def observer_entry(run_id: str, folder: Path, key_path: Path | None = None) -> ObserverEntry | None:
    """What lets an observer in; None when none was ever invited here, as in an open run.

    Args:
        folder: where its pass is.
        key_path: its key; None: in `folder`, too.

    Raises:
        UsageFault: key or pass are damaged, or open to other users of this machine.
    """
    ticket_pass = load_pass(folder)
    if ticket_pass is None:
        return None
    identity = Identity.load_or_create(key_path or folder / IDENTITY_NAME)
    admission = invited_admission(run_id, identity, ticket_pass)
    return ObserverEntry(identity, admission, partial(_learn_rules, admission))


async def _learn_rules(admission: Admission, host: Host, addresses: list[str]) -> None:
    """Ask members for the manifest, which says who is a member: only then are they known to be.

    Raises:
        Incompatible: a member says why it does not let this observer in.
    """
    # It loads numpy and the kernels, which must not delay the answer to a mistyped flag.
    from peer.network.membership.manifest_revisions import apply_member_rules

    refusals: dict[PeerId, str] = {}
    # Who is not reached was told by the dials before these.
    reached = await reached_at(host, addresses, DIAL_SECONDS)
    found = await ask_for_run(host, admission, reached, on_refused=refusals.__setitem__)
    if found is not None:
        apply_member_rules(admission, found)
    elif refusals:
        reason = next(iter(refusals.values()))
        raise Incompatible(
            f"a member of {admission.run_id} {reason}; expected an invite that is still good; ask the owner for a new "
            "one and give it with --invite"
        )

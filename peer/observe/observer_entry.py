"""Admission of an observer to a private run, with an invite for the observer's own key.

In an open run an observer's key is new each time. In a private run members must know the key. So the key is stored,
with the pass made from the invite, in a folder beside the run's data. The key of a peer on this machine is not used,
because two hosts with one PeerId would take each other's connections. Only `peer doctor` uses the key of the peer that
is about to join.
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
    """Use an invite for the observer key in `folder`; create the key if it is missing.

    Raises:
        UsageFault: the invite has expired, or is for a different key.
        LocalFault: the folder is not writable.
    """
    with writing(folder, "give another --data-dir"):
        folder.mkdir(parents=True, exist_ok=True)
    accept_invite(invite, Identity.load_or_create(folder / IDENTITY_NAME), folder)


def observer_entry(run_id: str, folder: Path, key_path: Path | None = None) -> ObserverEntry | None:
    """Return an observer's admission; None if this machine was never invited, as in an open run.

    Args:
        folder: the folder of its pass.
        key_path: path of its key; None: also in `folder`.

    Raises:
        UsageFault: key or pass are damaged, or readable by other users of this machine.
    """
    ticket_pass = load_pass(folder)
    if ticket_pass is None:
        return None
    identity = Identity.load_or_create(key_path or folder / IDENTITY_NAME)
    admission = invited_admission(run_id, identity, ticket_pass)
    return ObserverEntry(identity, admission, partial(_learn_rules, admission))


async def _learn_rules(admission: Admission, host: Host, addresses: list[str]) -> None:
    """Ask members for the manifest, which contains the member rules.

    Raises:
        Incompatible: a member refuses this observer with a reason.
    """
    # Imported here because it loads numpy and the kernels, which would delay the answer to a mistyped flag.
    from peer.network.membership.manifest_revisions import apply_member_rules

    refusals: dict[PeerId, str] = {}
    # Unreachable members were already reported by the earlier dials.
    reached = await reached_at(host, addresses, DIAL_SECONDS)
    found = await ask_for_run(host, admission, reached, on_refused=refusals.__setitem__)
    if found is not None:
        apply_member_rules(admission, found)
    elif refusals:
        reason = next(iter(refusals.values()))
        raise Incompatible(
            f"a member of {admission.run_id} {reason}; expected a valid invite; ask the owner for a new invite "
            "and pass it with --invite"
        )

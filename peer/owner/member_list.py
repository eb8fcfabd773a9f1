"""`peer members`: the peers that may take part in a run, and those that announce themselves as members."""

from __future__ import annotations

import time
from typing import Any

from dht.ground.errors import NobodyReachable
from dht.ground.quantities import date_text
from dht.records.peer_record import PeerRecord
from peer.network.membership.invite_users import INVITE_USERS_NAME, read_users
from peer.network.membership.manifest_revisions import WHEN_JOINING, member_rules
from peer.owner.owned_run import OwnedRun
from peer.owner.owner_connection import live_records


def member_facts(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> dict[str, Any]:
    """Collect everything `peer members` shows, as plain values."""
    rules = member_rules(owned.manifest, owned.owner.public_key, WHEN_JOINING)
    records: list[PeerRecord] = []
    unseen = ""
    try:
        records = live_records(owned, addresses, timeout_seconds)
    except NobodyReachable as fault:
        unseen = str(fault)
    now = time.time()
    # The owner's own peer, which keeps its data in this folder, records the users that it or other members saw.
    users = {use.serial.hex(): str(use.peer_id) for use in read_users(owned.folder / INVITE_USERS_NAME)}
    invites = []
    for given in owned.given():
        revoked = bytes.fromhex(given["serial"]) in rules.revoked_tickets or given["key"] in rules.revoked
        used_by = users.get(given["serial"])
        state = "revoked" if revoked else "expired" if given["expires_at"] <= now else "used" if used_by else "good"
        invites.append({**given, "state": state, "used_by": used_by})
    return {
        "schema": 1,
        "run_id": owned.run_id,
        "mode": rules.mode,
        "revision": owned.manifest.revision,
        "listed": sorted(rules.members),
        "revoked": sorted(rules.revoked),
        "invites": invites,
        "present": [
            {"peer_id": record.peer_id, "name": record.name, "role": record.role, "state": record.state}
            for record in records
        ],
        "not_seen_because": unseen,
    }


def show_members(facts: dict[str, Any]) -> None:
    """Print the facts for people."""
    print(f"Run         {facts['run_id']}, access {facts['mode']}, revision {facts['revision']}")
    present = {peer["peer_id"]: peer for peer in facts["present"]}
    for peer_id in facts["listed"]:
        print(f"Listed      {peer_id}  {_state(present.pop(peer_id, None))}")
    for given in facts["invites"]:
        until = date_text(given["expires_at"])
        who = given["key"] or "one-time"
        used_by = f" by {given['used_by']}" if given["used_by"] else ""
        print(f"Invite      {given['serial']}  {who}  {given['state']}{used_by}, until {until}")
    for peer_id in facts["revoked"]:
        print(f"Revoked     {peer_id}  {_state(present.pop(peer_id, None))}")
    for peer_id, peer in sorted(present.items()):
        print(f"Present     {peer_id}  {_state(peer)}")
    if facts["not_seen_because"]:
        print(f"The members that are online are not known: {facts['not_seen_because']}")


def _state(peer: dict[str, Any] | None) -> str:
    return "" if peer is None else f"{peer['role']}, {peer['state']}"

"""`peer members`: lists the keys and invites of a run, and its members that are online."""

from __future__ import annotations

import json

from peer.cli.options import AsJson, DataDir, LookTimeout, Peers, RunId
from peer.cli.owned import OwnedRun, owned_run
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer members --data-dir ./owner",
)
@exits_with_sentence
def members(
    run: OwnedRun = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> None:
    """List listed keys, issued invites, revoked keys, and the members that are online."""
    owned = owned_run(run, run_id, data_dir)
    from peer.owner.member_list import member_facts, show_members

    facts = member_facts(owned, peers or owned.known_addresses(), timeout)
    if as_json:
        print(json.dumps(facts))
    else:
        show_members(facts)

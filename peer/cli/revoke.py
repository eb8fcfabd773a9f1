"""`peer revoke`: revokes a key or an invite."""

from __future__ import annotations

from typing import Annotated

import typer

from dht.ground.errors import UsageFault
from peer.cli.options import DataDir, LookTimeout, Peers, RunId
from peer.cli.owned import OwnedRun, and_published, owned_run, publish_if_known
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer revoke --data-dir ./owner --key 12D3KooW...\n"
    "  peer revoke --data-dir ./owner --invite 0123456789abcdef",
)
@exits_with_sentence
def revoke(
    run: OwnedRun = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    key: Annotated[str | None, typer.Option("--key", metavar="PEERID", help="Key to revoke.")] = None,
    invite: Annotated[
        str | None, typer.Option("--invite", metavar="SERIAL", help="Invite to revoke; its users must leave.")
    ] = None,
    at_version: Annotated[
        int,
        typer.Option("--at-version", min=0, metavar="N", help="Anchor version at which this takes effect; 0: at once."),
    ] = 0,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
) -> None:
    """Revoke a key or an invite: sign the next revision of the manifest and publish it."""
    if (key is None) == (invite is None):
        got = "Neither --key nor --invite is given" if key is None else "Both --key and --invite are given"
        raise UsageFault(f"{got}; expected either --key PEERID or --invite SERIAL; `peer members` shows them.")
    from peer.config.access_sections import ChangeSection
    from peer.owner.owned_run import checked_key, checked_serial

    serial = None if invite is None else checked_serial(invite)
    entry = serial or str(checked_key(key or ""))
    owned = owned_run(run, run_id, data_dir)
    if serial is not None and serial not in {given["serial"] for given in owned.given()}:
        raise UsageFault(
            f"invite {serial} was not issued from {owned.folder}; expected an invite that `peer members` lists"
        )
    owned.change_now(ChangeSection(at_version=at_version, revoke=(entry,)))
    published = publish_if_known(owned, peers or owned.known_addresses(), timeout)
    print(f"Revoked     {key or f'invite {invite}'}, {f'from version {at_version}' if at_version else 'at once'}")
    print(f"Signed      as revision {owned.manifest.revision}{and_published(owned, published)}")

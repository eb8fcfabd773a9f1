"""`peer invite`: writes an invite to a private run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from dht.ground.errors import UsageFault
from dht.ground.quantities import date_text
from peer.cli.options import AsJson, DataDir, LookTimeout, Peers, RunId
from peer.cli.owned import OwnedRun, and_published, owned_run, publish_if_known
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

app = Commands()


Key = Annotated[str | None, typer.Option("--key", metavar="PEERID", help="The invited key, as `peer key` prints it.")]


@app.command(
    epilog="\b\nExample:\n  peer invite --data-dir ./owner --one-time --expires 7d --out friend.invite\n"
    "  peer invite --data-dir ./owner --key 12D3KooW... --out site-b.invite",
)
@exits_with_sentence
def invite(
    run: OwnedRun = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    key: Key = None,
    one_time: Annotated[
        bool, typer.Option("--one-time", help="Valid for the first peer that uses it; the file is a secret until then.")
    ] = False,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="How long the invite is valid, such as 7d, 12h or 30m.")
    ] = "7d",
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Output file (mode 0600); - prints the invite.")
    ] = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> None:
    """Write an invite to a private run, for one key or for the first peer that uses it."""
    if (key is None) != one_time:
        got = "Both --key and --one-time are given" if one_time else "No key is given"
        raise UsageFault(
            f"{got}; expected either --key PEERID (only that key may use it) or --one-time (the first peer uses it)."
        )
    from dht.admission.tickets import encode_invite
    from peer.config.access_sections import ChangeSection
    from peer.network.membership.manifest_revisions import WHEN_JOINING, member_rules
    from peer.owner.owned_run import checked_key, seconds_of
    from peer.secret_files import write_secret

    now = time.time()
    lasts = seconds_of(expires)
    invited = None if key is None else checked_key(key)
    owned = owned_run(run, run_id, data_dir)
    mode = owned.manifest.access.mode
    if mode == "open":
        raise UsageFault(
            f"{owned.run_id} is open, so anyone can join without an invite; expected a private run; set "
            "mode in [access] of the run file when you create a run"
        )
    if mode == "allowlist" and invited is None:
        raise UsageFault(
            f"{owned.run_id} accepts only listed keys; expected --key PEERID; `peer key` prints it on the invited "
            "machine"
        )
    addresses = peers or owned.known_addresses()
    published = None
    rules = member_rules(owned.manifest, owned.owner.public_key, WHEN_JOINING)
    if invited is not None and ((mode == "allowlist" and invited not in rules.members) or invited in rules.revoked):
        owned.change_now(ChangeSection(at_version=0, admit=(invited,)))
        published = publish_if_known(owned, addresses, timeout)
    made = owned.invite(invited, int(now + lasts), addresses, issued_at=now)
    serial = made.ticket.serial.hex() if made.ticket is not None else None
    name = out or f"{owned.manifest.name}-{serial or str(invited)[-8:]}.invite"
    text = encode_invite(made)
    if name == "-":
        print(text)
        return
    write_secret(Path(name), text + "\n")
    facts = {
        "invite": name,
        "serial": serial,
        "key": invited,
        "expires_at": made.ticket.expires_at if made.ticket is not None else None,
        "addresses": list(made.addresses),
        "revision": owned.manifest.revision,
        "published": published,
        "join": f"peer join --invite {name}",
    }
    if as_json:
        print(json.dumps(facts))
        return
    whose = f"the key {invited}" if invited is not None else "the first peer that uses it"
    print(f"Invite      {name}  for {whose}")
    if made.ticket is not None:
        print(f"Serial      {serial}, valid until {date_text(made.ticket.expires_at)}")
    if made.secret:
        print("            The file is a secret: send it over a private channel, then delete it.")
    if not made.addresses:
        print("            The invite contains no address; give --peers to `peer join`, or to this command.")
    if published is not None:
        print(f"Listed      in revision {owned.manifest.revision}{and_published(owned, published)}")
    print(f"Use it:     peer join --invite {name}")

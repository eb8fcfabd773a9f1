"""`peer manifest`: shows, changes, signs and publishes the manifest of a run."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Any

import typer

from dht.ground.errors import UsageFault
from dht.ground.quantities import plural
from peer.cli.options import AsJson, DataDir, LookTimeout, Peers, RunId
from peer.cli.owned import OwnedRun, for_owner, owned_run
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

LOOK_SECONDS = 3.0
"""How long to wait for a member to report the run's progress, when the command works without an answer."""


app = Commands(
    help="Show a run's manifest, change it during the run, sign the change, and send it to all members.",
    no_args_is_help=True,
)


@app.command(
    "show",
    short_help="Show the manifest in the owner's folder.",
    epilog="\b\nExample:\n  peer manifest show --data-dir ./owner",
)
@exits_with_sentence
def show(run: OwnedRun = None, run_id: RunId = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the signed manifest and the unsigned draft."""
    owned = owned_run(run, run_id, data_dir)
    from peer.network.membership.manifest_revisions import all_changes, describe_changes

    draft = owned.draft
    if as_json:
        shown = {"manifest": owned.manifest, "draft": draft}
        print(json.dumps({name: one and one.model_dump(mode="json") for name, one in shown.items()}))
        return
    manifest = owned.manifest
    print(f"Run         {owned.run_id}")
    print(f"Rules       {manifest.rules}")
    print(f"Revision    {manifest.revision}, hash {manifest.hash.hex()[:16]}")
    listed = plural(len(manifest.access.members), "listed key")
    print(f"Access      {manifest.access.mode}, {listed} when the run was created")
    for file in manifest.files:
        print(f"File        {file.name}, {file.bytes} bytes, BLAKE3 {file.digest[:16]}")
    if manifest.own_code_hint:
        print(f"Own code    {manifest.own_code_hint}")
    for change in all_changes(manifest) or ["none"]:
        print(f"Change      {change}")
    if draft is not None:
        print(f"Draft       revision {draft.revision}, not signed: {describe_changes(draft, manifest)}")
        print(f"Or discard: {_to_discard(owned)}")


@app.command(
    "edit",
    short_help="Add a change to the draft.",
    epilog="\b\nExample:\n  peer manifest edit --data-dir ./owner --outer-lr 0.4 --at-version 500\n"
    "  peer manifest edit --data-dir ./owner --cooldown-tokens 200000000\n"
    "  peer manifest edit --data-dir ./owner --end --at-version 2000",
)
@exits_with_sentence
def edit(
    run: OwnedRun = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    at_version: Annotated[
        int | None,
        typer.Option(
            "--at-version", min=0, metavar="N", help="Anchor version at which the change takes effect; 0: at once."
        ),
    ] = None,
    admit: Annotated[
        list[str] | None, typer.Option("--admit", metavar="PEERID", help="Add this key to the listed keys.")
    ] = None,
    revoke: Annotated[list[str] | None, typer.Option("--revoke", metavar="PEERID", help="Revoke this key.")] = None,
    outer_lr: Annotated[float | None, typer.Option("--outer-lr", metavar="ETA", help="Outer learning rate.")] = None,
    minimum_software: Annotated[
        str | None, typer.Option("--minimum-software", metavar="X.Y.Z", help="Refuse older software.")
    ] = None,
    page: Annotated[
        str | None, typer.Option("--page", metavar="URL", help="Address of the run's page; '' removes it.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the run: at --at-version, or at once.")] = False,
    cooldown_tokens: Annotated[
        int | None,
        typer.Option(
            "--cooldown-tokens", min=1, metavar="N", help="Decay the learning rate to its floor over N tokens."
        ),
    ] = None,
    cooldown_from: Annotated[
        int | None,
        typer.Option(
            "--cooldown-from",
            min=0,
            metavar="N",
            help="Committed tokens at which the cool-down begins; default: the run's tokens at --at-version, from "
            "members.",
        ),
    ] = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
) -> None:
    """Add a change to the draft of the next revision. The change takes effect when the draft is signed and published.

    To discard the draft, remove the file manifest.draft in the owner's folder.
    """
    from pydantic import ValidationError

    from peer.config.access_sections import ChangeSection
    from peer.config.validation_sentences import explain
    from peer.owner.owned_run import checked_key

    given = {
        "admit": tuple(map(checked_key, admit or ())),
        "revoke": tuple(map(checked_key, revoke or ())),
        "outer_lr": outer_lr,
        "minimum_software": minimum_software,
        "page": page,
        "ends_run": end,
        "cooldown_tokens": cooldown_tokens,
        "cooldown_from": cooldown_from,
    }
    if not any(given.values()) and cooldown_from is None and page is None:
        raise UsageFault(
            "No change is given; expected --admit, --revoke, --outer-lr, --minimum-software, --page, "
            "--cooldown-tokens or --end."
        )
    if cooldown_from is not None and cooldown_tokens is None:
        raise UsageFault(
            "--cooldown-from is given without --cooldown-tokens; expected both: give the length of the cool-down."
        )
    if at_version is None and outer_lr is not None:
        raise UsageFault("--outer-lr needs --at-version N, the version at which it takes effect on all peers.")
    owned = owned_run(run, run_id, data_dir)
    if cooldown_tokens is not None and cooldown_from is None:
        from peer.owner.revision_start import ask_first_token

        addresses = peers or owned.known_addresses()
        given["cooldown_from"] = ask_first_token(owned, addresses, at_version or 0, timeout)
    try:
        change = ChangeSection.model_validate({"at_version": at_version or 0, **given})
    except ValidationError as error:
        raise UsageFault(explain(error, ChangeSection, lambda name: "--" + name.replace("_", "-"))) from error
    from peer.network.membership.manifest_revisions import describe_changes

    draft = owned.edit(change)
    print(f"Draft       revision {draft.revision}, not signed: {describe_changes(draft, owned.manifest)}")
    if end:
        from peer.owner.revision_start import end_in_words

        addresses = peers or owned.known_addresses()
        print(f"Ends        {end_in_words(owned, at_version or 0, addresses, min(timeout, LOOK_SECONDS))}")
    print(f"Next:       {for_owner(owned, 'sign')}, then {for_owner(owned, 'publish')}")
    print(f"Or discard: {_to_discard(owned)}")


@app.command("sign", short_help="Sign the draft.", epilog="\b\nExample:\n  peer manifest sign --data-dir ./owner")
@exits_with_sentence
def sign(run: OwnedRun = None, run_id: RunId = None, data_dir: DataDir = None) -> None:
    """Sign the draft with the owner's key. The draft becomes the next revision."""
    owned = owned_run(run, run_id, data_dir)
    from peer.network.membership.manifest_revisions import describe_changes

    before = owned.manifest
    signed = owned.sign()
    print(f"Signed      revision {signed.revision}: {describe_changes(signed, before)}")
    print(f"Next:       {for_owner(owned, 'publish')}")


@app.command(
    "publish",
    short_help="Send the signed manifest to all members.",
    epilog="\b\nExample:\n  peer manifest publish --data-dir ./owner",
)
@exits_with_sentence
def publish(
    run: OwnedRun = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
) -> None:
    """Send the signed manifest to members, which forward it. Peers adopt the changes without a restart."""
    owned = owned_run(run, run_id, data_dir)
    from peer.owner.publish import publish

    num_copies = publish(owned, peers or owned.known_addresses(), timeout)
    members = plural(num_copies, "member")
    print(f"Published   revision {owned.manifest.revision} to {members}, which forward it to the others")


def _to_discard(owned: Any) -> str:
    from peer.owner.owned_run import DRAFT_NAME

    return f"{shlex.join(['rm', str(owned.folder / DRAFT_NAME)])} removes the complete draft, which was never signed"

"""Commands of a run's owner: key, invite, revoke, members, manifest."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dht.ground.errors import UsageFault
from dht.ground.quantities import date_text, plural
from peer.cli.arguments.options import AsJson, DataDir, IdentityFile, LookTimeout, Peers, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.observe.named_run import named_or_only_run, named_run

commands = Commands()
LOOK_SECONDS = 3.0
"""For a member to say where the run is, when an answer is of use and not needed."""
manifest_commands = Commands(
    help="Show a run's manifest, change it while the run goes on, sign the change, and send it to all members.",
    no_args_is_help=True,
)
commands.add_typer(manifest_commands, name="manifest")

OwnedRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="The run: its id, the name of a run created here, or the folder that `peer init` wrote.",
        show_default=False,
    ),
]
Key = Annotated[str | None, typer.Option("--key", metavar="PEERID", help="The invited key, as `peer key` prints it.")]


@commands.command(
    epilog="\b\nExample:\n  peer key --data-dir ./site-b\n  peer key --run-id tinybytes.abcdefghij234567abcd",
)
@exits_with_sentence
def key(run: OwnedRun = None, run_id: RunId = None, data_dir: DataDir = None, identity: IdentityFile = None) -> None:
    """Print the public key (PeerId) of this machine's peer, and create the key file if it is missing.

    Without RUN, it takes the only run on this machine.
    """
    from dht.identity.keys import Identity
    from peer.config.peer_config import IDENTITY_NAME, load_config
    from peer.user_folders import expanded

    if identity is not None:
        path = expanded(identity)
    elif data_dir is not None:
        path = expanded(data_dir) / IDENTITY_NAME
    elif run is not None and expanded(run).is_dir():
        path = expanded(run) / IDENTITY_NAME
    else:
        path = load_config({"run_id": named_or_only_run(run, run_id, None).run_id}).identity
    print(Identity.load_or_create(path).peer_id)


@commands.command(
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
    owned = _owned(run, run_id, data_dir)
    mode = owned.manifest.access.mode
    if mode == "open":
        raise UsageFault(
            f"{owned.run_id} is open, so anybody can join without an invite; expected a private run; set "
            "mode in [access] of the run file when you create a run"
        )
    if mode == "allowlist" and invited is None:
        raise UsageFault(
            f"{owned.run_id} takes only listed keys; expected --key PEERID; run `peer key` on that machine to print it"
        )
    addresses = peers or owned.known_addresses()
    published = None
    rules = member_rules(owned.manifest, owned.owner.public_key, WHEN_JOINING)
    if invited is not None and ((mode == "allowlist" and invited not in rules.members) or invited in rules.revoked):
        owned.change_now(ChangeSection(at_version=0, admit=(invited,)))
        published = _published(owned, addresses, timeout)
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
    whose = f"the key {invited}" if invited is not None else "the first to use it"
    print(f"Invite      {name}  for {whose}")
    if made.ticket is not None:
        print(f"Serial      {serial}, good until {_day(made.ticket.expires_at)}")
    if made.secret:
        print("            The file is a secret: send it over a private channel, then delete it.")
    if not made.addresses:
        print("            It names no address; give --peers to `peer join`, or to this command.")
    if published is not None:
        print(f"Listed      in revision {owned.manifest.revision}{_and_published(owned, published)}")
    print(f"Use it:     peer join --invite {name}")


@commands.command(
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
        typer.Option("--at-version", min=0, metavar="N", help="Anchor version at which it takes effect; 0: at once."),
    ] = 0,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
) -> None:
    """Revoke a key or an invite: sign the next revision of the manifest and publish it."""
    if (key is None) == (invite is None):
        got = "Nothing to revoke is given" if key is None else "Both --key and --invite are given"
        raise UsageFault(f"{got}; expected either --key PEERID or --invite SERIAL; `peer members` shows them.")
    from peer.config.access_sections import ChangeSection
    from peer.owner.owned_run import checked_key, checked_serial

    keys = (str(checked_key(key)),) if key is not None else ()
    serials = (checked_serial(invite),) if invite is not None else ()
    owned = _owned(run, run_id, data_dir)
    if serials and serials[0] not in {given["serial"] for given in owned.given()}:
        raise UsageFault(
            f"invite {serials[0]} was not issued from {owned.folder}; expected one that `peer members` lists"
        )
    owned.change_now(ChangeSection(at_version=at_version, revoke=keys, revoke_invites=serials))
    published = _published(owned, peers or owned.known_addresses(), timeout)
    print(f"Revoked     {key or f'invite {invite}'}, {f'from version {at_version}' if at_version else 'at once'}")
    print(f"Signed      as revision {owned.manifest.revision}{_and_published(owned, published)}")


@commands.command(
    epilog='\b\nExample:\n  peer note ./owner "raised H to 40"\n  peer note ./owner',
)
@exits_with_sentence
def note(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id or name, or the folder that `peer init` wrote.")],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="One line of text; without it the command lists the notes.")
    ] = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> None:
    """Sign a note with the owner's key. Each page of the run shows it beside the loss curve."""
    from pydantic import ValidationError

    from peer.config.access_sections import ChangeSection
    from peer.config.validation_sentences import explain

    owned = _owned(run, None, None)
    if text is None:
        notes = [(change.noted_at or 0, change.note) for change in owned.manifest.changes if change.note]
        if as_json:
            print(json.dumps([{"noted_at": at, "note": words} for at, words in notes]))
        elif not notes:
            print(f'There are no notes yet. `peer note {run} "raised H to 40"` writes one.')
        else:
            for at, words in notes:
                print(f"{_day(at)}  {words}")
        return
    if not text.strip():
        raise UsageFault("the note is empty; expected one line of text, such as: raised H to 40")
    try:
        change = ChangeSection(at_version=0, note=text.strip(), noted_at=int(time.time()))
    except ValidationError as error:
        raise UsageFault(explain(error, ChangeSection, lambda name: "TEXT" if name == "note" else name)) from error
    owned.change_now(change)
    published = _published(owned, peers or owned.known_addresses(), timeout)
    if as_json:
        print(json.dumps({"noted_at": change.noted_at, "note": change.note, "published": published}))
        return
    print(f"Noted       {change.note}")
    print(f"Signed      as revision {owned.manifest.revision}{_and_published(owned, published)}")


@commands.command(
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
    owned = _owned(run, run_id, data_dir)
    from peer.owner.member_list import member_facts, show_members

    facts = member_facts(owned, peers or owned.known_addresses(), timeout)
    if as_json:
        print(json.dumps(facts))
    else:
        show_members(facts)


@manifest_commands.command(
    "show",
    short_help="The manifest in the owner's folder.",
    epilog="\b\nExample:\n  peer manifest show --data-dir ./owner",
)
@exits_with_sentence
def show(run: OwnedRun = None, run_id: RunId = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the signed manifest and the unsigned draft."""
    owned = _owned(run, run_id, data_dir)
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
    print(f"Access      {manifest.access.mode}, {listed} when the run was made")
    for file in manifest.files:
        print(f"File        {file.name}, {file.bytes} bytes, BLAKE3 {file.digest[:16]}")
    if manifest.own_code_hint:
        print(f"Own code    {manifest.own_code_hint}")
    for change in all_changes(manifest) or ["none"]:
        print(f"Change      {change}")
    if draft is not None:
        print(f"Draft       revision {draft.revision}, not signed: {describe_changes(draft, manifest)}")
        print(f"Or discard: {_to_discard(owned)}")


@manifest_commands.command(
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
        typer.Option("--at-version", min=0, metavar="N", help="Anchor version at which it takes effect; 0: at once."),
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
    """Add a change to the draft of the next revision. It takes effect when it is signed and published.

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
            "Nothing to change is given; expected --admit, --revoke, --outer-lr, --minimum-software, --page, "
            "--cooldown-tokens or --end."
        )
    if cooldown_from is not None and cooldown_tokens is None:
        raise UsageFault(
            "--cooldown-from is given without --cooldown-tokens; expected both: give the length of the cool-down."
        )
    if at_version is None and outer_lr is not None:
        raise UsageFault("--outer-lr needs --at-version N, the version at which it takes effect on all peers.")
    owned = _owned(run, run_id, data_dir)
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
    print(f"Next:       {_for_owner(owned, 'sign')}, then {_for_owner(owned, 'publish')}")
    print(f"Or discard: {_to_discard(owned)}")


@manifest_commands.command(
    "sign", short_help="Sign the draft.", epilog="\b\nExample:\n  peer manifest sign --data-dir ./owner"
)
@exits_with_sentence
def sign(run: OwnedRun = None, run_id: RunId = None, data_dir: DataDir = None) -> None:
    """Sign the draft with the owner's key. It becomes the next revision."""
    owned = _owned(run, run_id, data_dir)
    from peer.network.membership.manifest_revisions import describe_changes

    before = owned.manifest
    signed = owned.sign()
    print(f"Signed      revision {signed.revision}: {describe_changes(signed, before)}")
    print(f"Next:       {_for_owner(owned, 'publish')}")


@manifest_commands.command(
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
    """Send the signed manifest to members, which pass it on. Peers follow it without a restart."""
    owned = _owned(run, run_id, data_dir)
    from peer.owner.publish import publish

    num_copies = publish(owned, peers or owned.known_addresses(), timeout)
    members = plural(num_copies, "member")
    print(f"Published   revision {owned.manifest.revision} to {members}; the others take it from there")


def _owned(run: str | None, run_id: str | None, data_dir: str | None) -> Any:
    """The run in its owner's folder: the one that is named, the usual one, or where `peer init --out` put it."""
    from peer.observe.run_names import owned_folders
    from peer.owner.owned_run import open_owned_run
    from peer.user_folders import expanded

    if run is not None and expanded(run).exists():
        if data_dir is not None or run_id is not None:
            raise UsageFault(f"{run} and {'--data-dir' if data_dir else '--run-id'} are given; expected one of them.")
        place = expanded(run)
        return open_owned_run(None, place if place.is_dir() else place.parent)
    if run is not None and (run.startswith((".", "~")) or ("/" in run and "://" not in run)):
        raise UsageFault(f"there is no folder {run}; expected one that `peer init` wrote, or a run id or name")
    named = named_run(run, run_id, None)[0]
    if data_dir is None and named is not None:
        data_dir = next(map(str, owned_folders(named)), None)
    return open_owned_run(named, data_dir)


def _published(owned: Any, addresses: list[str], timeout: float) -> bool:
    """Publish when somebody is there; the signed revision stays for later when nobody is."""
    from dht.ground.errors import NobodyReachable
    from peer.owner.publish import publish

    if not addresses:
        return False
    try:
        publish(owned, addresses, timeout)
    except NobodyReachable as fault:
        raise NobodyReachable(
            f"revision {owned.manifest.revision} is signed, but not published: {fault}; run "
            f"`{_for_owner(owned, 'publish')}` when a member is online"
        ) from fault
    return True


def _and_published(owned: Any, published: bool) -> str:
    return " and published" if published else f"; run `{_for_owner(owned, 'publish')}` when a member is online"


def _for_owner(owned: Any, step: str) -> str:
    """The command for the next step with this run's manifest, as it is typed in the same working directory."""
    return shlex.join(["peer", "manifest", step, "--data-dir", str(owned.folder)])


def _to_discard(owned: Any) -> str:
    from peer.owner.owned_run import DRAFT_NAME

    return f"{shlex.join(['rm', str(owned.folder / DRAFT_NAME)])} removes the whole draft; nothing of it was signed"


def _day(seconds: float) -> str:
    return date_text(seconds)

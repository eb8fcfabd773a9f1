"""Commands of a private run with bad invites, keys and revisions: one sentence each, exit 2, nothing changed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dht.admission.admission import Admission, MemberRules, NotAdmitted
from dht.admission.tickets import (
    INVITE_PREFIX,
    Invite,
    bind_ticket,
    decode_invite,
    encode_invite,
    encode_pass,
    issue_ticket,
)
from dht.ground.errors import LocalFault, UsageFault
from dht.identity.keys import Identity
from dht.records.peer_record import PeerRecord
from peer.cli import app
from peer.config.peer_config import ADDRESSES_NAME, write_cached_peers
from peer.network.membership.address_check import not_admitted
from peer.network.membership.invite_users import INVITE_USERS_NAME, InviteUsers
from peer.network.membership.manifest_revisions import WHEN_JOINING, member_rules
from peer.owner.owned_run import DRAFT_NAME, OwnedRun, open_owned_run
from peer.owner.owner_connection import live_records
from peer.owner.publish import publish
from peer.owner.revision_start import ask_first_token, end_in_words
from peer.secret_files import write_secret
from peer.view.run_view import RunView, run_view_of
from tests.kit.records import make_record

FRIEND, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (7, 8))
MEMBER = Identity.from_seed(bytes([9]) * 32)
ADDRESS = f"/ip4/127.0.0.1/tcp/9/p2p/{FRIEND.peer_id}"
RSA_ID = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a private run's owner."""
    folder = tmp_path_factory.mktemp("private") / "owner"
    assert app.run(["init", "ours", "--access", "invite", "--out", str(folder)]) == 0
    return folder  # type: ignore[return-value]


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """As `owner`, for a test that changes it."""
    assert app.run(["init", "ours", "--access", "invite", "--out", str(tmp_path / "owner")]) == 0
    return tmp_path / "owner"


@pytest.fixture(scope="module")
def owned(owner: Path) -> OwnedRun:
    return open_owned_run(None, owner)


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int = 2) -> str:
    """What a command that must fail says: one line, no traceback."""
    capsys.readouterr()
    assert app.run(arguments) == exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert "is a bug" not in said.err
    (line,) = said.err.splitlines()
    return line


def ticketed(owned: OwnedRun, *, lasts: float = 3600, kind: str = "once", signed_by: Identity | None = None) -> Invite:
    seed = b"s" * 32 if kind == "once" else b""
    holder = Identity.from_seed(seed).public_key if seed else FRIEND.public_key
    ticket = issue_ticket(
        signed_by or owned.owner,
        owned.run_id,
        kind,
        holder,
        int(time.time() + lasts),
        b"12345678",  # type: ignore[arg-type]
    )
    return Invite(owned.run_id, (ADDRESS,), owned.owner.public_key, ticket, seed)


def join(tmp_path: Path, invite: Invite | str) -> list[str]:
    path = tmp_path / "x.invite"
    write_secret(path, invite if isinstance(invite, str) else encode_invite(invite))
    return ["join", "--invite", str(path), "--data-dir", str(tmp_path / "data")]


# --- invites


def test_the_owners_commands_find_every_peer_of_the_run_on_this_machine(
    owned: OwnedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `peer status` does: also the one in a further fresh, or in one that was named by hand."""
    elsewhere = owned.folder.parent / "elsewhere"
    elsewhere.mkdir()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{Identity.generate().peer_id}"
    write_cached_peers(elsewhere / ADDRESSES_NAME, [address])
    assert address not in owned.known_addresses()
    monkeypatch.setattr("peer.owner.owned_run.folders_of", lambda run_id: [elsewhere])
    assert address in owned.known_addresses()


def with_the_secret_of_another(owned: OwnedRun) -> Invite:
    return dataclasses.replace(ticketed(owned), secret=b"x" * 32)


@pytest.mark.parametrize(
    ("make", "more", "sentence"),
    [
        (partial(ticketed, lasts=-60), [], "The invite expired at .*; expected an invite that has not expired; ask"),
        (partial(ticketed, kind="key"), [], f"{FRIEND.peer_id}.*expected 12D3Koo.*--identity"),
        (
            partial(ticketed, signed_by=OTHER),
            [],
            "was changed or does not come from the owner.*ask the owner for a new invite",
        ),
        (with_the_secret_of_another, [], "secret.*expected"),
        (ticketed, ["--run-id", "other.aaaaaaaaaaaaaaaaaaaa"], "The invite is for run ours"),
        (ticketed, ["--identity", "id.pem"], "id.pem.*expected"),
    ],
    ids=["expired", "for another key", "of another owner", "another secret", "of another run", "no key of ours"],
)
def test_an_invite_that_does_not_do_is_one_sentence(
    owned: OwnedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[OwnedRun], Invite],
    more: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_secret(Path("id.pem"), "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n")
    assert re.search(sentence, refused(capsys, [*join(tmp_path, make(owned)), *more]))


def test_a_tampered_invite(owned: OwnedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = encode_invite(ticketed(owned))
    middle = len(text) // 2
    changed = text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]
    for bad in (changed, text[:middle], text.removeprefix(INVITE_PREFIX), "", "\x00" * 40):
        assert "expected" in refused(capsys, join(tmp_path, bad))


def admission(owned: OwnedRun, folder: Path, now: float, who: Identity = MEMBER) -> Admission:
    """What a member has after each start."""
    numbers = iter(range(1, 1000))
    rules = MemberRules("invite", owned.owner.public_key, frozenset({MEMBER.peer_id}))
    users = InviteUsers(folder)
    nonce = lambda: next(numbers).to_bytes(16, "big")  # noqa: E731
    made = Admission(who, owned.run_id, lambda: now, nonce, rules=rules, on_used=users.keep)
    users.remind(made, now)
    return made


def proof_of(owned: OwnedRun, who: Identity, now: float, number: int) -> bytes:
    invite = ticketed(owned)
    assert invite.ticket is not None
    held = encode_pass(bind_ticket(owned.run_id, invite.ticket, invite.secret, who.peer_id))
    rules = MemberRules("invite", owned.owner.public_key)
    caller = Admission(
        who, owned.run_id, lambda: now, lambda: number.to_bytes(16, "big"), ticket_pass=held, rules=rules
    )
    return caller.prove(MEMBER.peer_id, "stream")


def test_a_one_time_invite_stays_used_when_members_are_started_again(owned: OwnedRun, tmp_path: Path) -> None:
    now = time.time()
    admission(owned, tmp_path, now).admit(FRIEND.peer_id, proof_of(owned, FRIEND, now, 1), "stream")
    for number in (2, 3):
        again = admission(owned, tmp_path, now)
        with pytest.raises(NotAdmitted) as caught:
            again.admit(OTHER.peer_id, proof_of(owned, OTHER, now, number), "stream")
        assert caught.value.told == "the one-time invite was already used by another key"
        again.admit(FRIEND.peer_id, proof_of(owned, FRIEND, now, number + 10), "stream")
    assert len((tmp_path / INVITE_USERS_NAME).read_text().splitlines()) == 1
    # Once it has expired nobody is let in with it, and nothing of it is kept.
    admission(owned, tmp_path, now + 86_400)
    assert (tmp_path / INVITE_USERS_NAME).read_text() == ""


def test_a_damaged_list_of_users(owned: OwnedRun, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = time.time()
    admission(owned, tmp_path, now).admit(FRIEND.peer_id, proof_of(owned, FRIEND, now, 1), "stream")
    path = tmp_path / INVITE_USERS_NAME
    bad = [b"\xff", b"[" * 200, b"{}", b'{"serial": "0011", "peer_id": "x", "expires_at": 1}', b'{"serial": "00']
    path.write_bytes(path.read_bytes() + b"\n".join(bad))
    again = admission(owned, tmp_path, now)
    assert again._users == {b"12345678": FRIEND.peer_id}
    assert len(caplog.messages) == len(bad)
    path.unlink()
    path.mkdir()
    with pytest.raises(LocalFault, match=r"cannot be read.*expected.*check"):
        admission(owned, tmp_path, now)


# --- keys


@pytest.mark.parametrize(
    "key", [RSA_ID, "alice", "12D3KooWx", "", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI", FRIEND.peer_id[:-1]]
)
def test_a_wrong_kind_of_key(owner: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    for command in (["invite", "--key", key], ["revoke", "--key", key], ["manifest", "edit", "--admit", key]):
        said = refused(capsys, [*command, "--data-dir", str(owner)])
        assert "expected a libp2p Ed25519 id such as 12D3KooW..." in said
        assert "`peer key` prints the key" in said
    assert not (owner / DRAFT_NAME).exists()


# --- members


def test_an_owner_who_waits_for_members_can_leave_at_once(owned: OwnedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the main thread, with no event loop, Ctrl+C ends the wait; a thread would be waited for."""

    def interrupted(*_: object, **__: object) -> None:
        assert threading.current_thread() is threading.main_thread()
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        raise KeyboardInterrupt

    monkeypatch.setattr("peer.owner.owner_connection.look_first", interrupted)
    for ask in (live_records, publish):
        with pytest.raises(KeyboardInterrupt):
            ask(owned, [f"/ip4/127.0.0.1/tcp/1/p2p/{MEMBER.peer_id}"], 20.0)


class BesideFreeRecords:
    """An errand's view of a run: two members with signed work at version 10, and keys that publish any record."""

    def __init__(self) -> None:
        self.store = self
        told = {"versions": (10, 11), "lineage_tokens": (900, 1000)}
        lies = {"versions": (10**6, 10**6), "lineage_tokens": (2**50, 2**50)}
        self.honest = [make_record(name, **told) for name in "AB"]
        self.free = [make_record(f"free{number}", **lies) for number in range(100)]

    @contextlib.asynccontextmanager
    async def on_errand(self, *_: object) -> AsyncIterator[tuple[BesideFreeRecords, None]]:
        yield self, None

    async def records(self) -> list[PeerRecord]:
        return [*self.honest, *self.free]

    async def run_view(self, records: list[PeerRecord]) -> RunView:
        return run_view_of(records, {one.peer_id: 5 for one in self.honest})

    async def publish_run(self, *_: object) -> int:
        return 1


def test_free_records_move_no_cool_down_no_end_and_no_change_of_the_rate(
    owned: OwnedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = BesideFreeRecords()
    for module in ("owner_connection", "publish"):
        monkeypatch.setattr(f"peer.owner.{module}.on_errand", seen.on_errand)
        monkeypatch.setattr(f"peer.owner.{module}.look_for_members", lambda *_: None)
    assert ask_first_token(owned, [ADDRESS], 15, 1.0) == 1500
    assert end_in_words(owned, 15, [ADDRESS], 1.0) == "at version 15; the run is at 10 now"
    for at_version, is_taken in ((12, False), (13, True)):
        folder = str(tmp_path / f"{at_version}")
        assert app.run(["init", "ours", "--out", folder]) == 0
        edit = ["edit", "--outer-lr", "0.3", "--at-version", f"{at_version}"]
        for change in (edit, ["sign"]):
            assert app.run(["manifest", *change, "--data-dir", folder]) == 0
        signed = open_owned_run(None, Path(folder))
        if is_taken:
            assert publish(signed, [ADDRESS], 1.0) == 1
        else:
            with pytest.raises(UsageFault, match="the run is at version 11; expected at least 13"):
                publish(signed, [ADDRESS], 1.0)


def test_the_owner_sees_who_used_a_one_time_invite(
    fresh: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("used", "spare"):
        arguments = ["--data-dir", str(fresh), "--one-time", "--out", str(tmp_path / f"{name}.invite")]
        assert app.run(["invite", *arguments]) == 0
    ticket = decode_invite((tmp_path / "used.invite").read_text()).ticket
    assert ticket is not None
    InviteUsers(fresh).keep(ticket, FRIEND.peer_id)
    capsys.readouterr()
    assert app.run(["members", "--data-dir", str(fresh)]) == 0
    used, spare = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Invite")]
    assert f"{ticket.serial.hex()}  one-time  used by {FRIEND.peer_id}, until" in used
    assert "one-time  good, until" in spare


# --- revisions


def test_an_unsigned_revision_is_not_published(fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit = ["manifest", "edit", "--data-dir", str(fresh), "--outer-lr", "0.3", "--at-version", "50"]
    assert app.run(edit) == 0
    for command in (["manifest", "publish", "--peers", ADDRESS], ["revoke", "--key", OTHER.peer_id]):
        said = refused(capsys, [*command, "--data-dir", str(fresh)])
        assert "not signed" in said
        assert "peer manifest sign" in said
    assert app.run(["manifest", "sign", "--data-dir", str(fresh)]) == 0
    assert "has no draft" in refused(capsys, ["manifest", "sign", "--data-dir", str(fresh)])


def test_a_slip_in_a_draft_can_be_taken_out(fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit = ["manifest", "edit", "--data-dir", str(fresh), "--at-version", "50", "--outer-lr"]
    for command in ([*edit, "0.9"], ["manifest", "show", "--data-dir", str(fresh)]):
        capsys.readouterr()
        assert app.run(command) == 0
        assert f"rm {fresh / DRAFT_NAME} removes the complete draft" in capsys.readouterr().out
    (fresh / DRAFT_NAME).unlink()
    assert app.run([*edit, "0.3"]) == 0
    assert app.run(["manifest", "sign", "--data-dir", str(fresh)]) == 0
    assert "0.9" not in capsys.readouterr().out.rpartition("Signed")[2]


def test_a_cool_down_is_asked_for_with_a_length_and_a_beginning(
    fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit = ["manifest", "edit", "--data-dir", str(fresh)]
    assert "--cooldown-from is given without --cooldown-tokens" in refused(capsys, [*edit, "--cooldown-from", "0"])
    # Nobody is there to say where the run is.
    assert "or give --cooldown-from TOKENS yourself" in refused(capsys, [*edit, "--cooldown-tokens", "900"], 3)
    assert app.run([*edit, "--cooldown-tokens", "900", "--cooldown-from", "0", "--at-version", "7"]) == 0
    said = capsys.readouterr().out
    assert "the learning rate falls to its floor within the first 900 tokens, from version 7" in said
    (fresh / DRAFT_NAME).unlink()
    late = ["--cooldown-tokens", "100000", "--cooldown-from", "7168000000", "--at-version", "1000000"]
    assert app.run([*edit, *late]) == 0
    said = capsys.readouterr().out
    assert "falls to its floor over 100 k tokens after the first 7.17 G, from version 1000000" in said


def test_a_revoked_key_is_told_which_invite_admits_it_again(fresh: Path, tmp_path: Path) -> None:
    assert app.run(["revoke", "--key", FRIEND.peer_id, "--data-dir", str(fresh)]) == 0

    def is_revoked_after(*invited: str) -> bool:
        arguments = ["--data-dir", str(fresh), "--out", str(tmp_path / "again.invite")]
        assert app.run(["invite", *invited, *arguments]) == 0
        owned = open_owned_run(None, fresh)
        return FRIEND.peer_id in member_rules(owned.manifest, owned.owner.public_key, WHEN_JOINING).revoked

    assert is_revoked_after("--one-time")
    assert not is_revoked_after("--key", FRIEND.peer_id)
    said = str(not_admitted("ours.x", FRIEND.peer_id, MEMBER.peer_id, "says: the owner of the run revoked this key"))
    assert "an invite for that key (`peer invite --key`), which also readmits a revoked key" in said


def test_an_older_draft_is_not_signed(fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit = ["manifest", "edit", "--data-dir", str(fresh), "--admit", FRIEND.peer_id]
    assert app.run(edit) == 0
    older = (fresh / DRAFT_NAME).read_bytes()
    assert app.run(["manifest", "sign", "--data-dir", str(fresh)]) == 0
    (fresh / DRAFT_NAME).write_bytes(older)
    said = refused(capsys, ["manifest", "sign", "--data-dir", str(fresh)])
    assert "The draft is revision 2, but revision 2 is already signed; expected a later revision" in said


def test_a_manifest_that_was_changed_after_it_was_signed(fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fresh / "run.record"
    path.write_bytes(path.read_bytes().replace(b'"mode":"invite"', b'"mode":"closed"'))
    said = refused(capsys, ["manifest", "show", "--data-dir", str(fresh)])
    assert "is not signed by the owner of this run" in said
    assert "restore it from a copy" in said
    path.write_bytes(path.read_bytes()[:300])
    assert f"{path} is damaged: it contains no run" in refused(capsys, ["manifest", "show", "--data-dir", str(fresh)])


def test_only_the_owner_revises(tmp_path: Path, owner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, ["revoke", "--key", OTHER.peer_id, "--data-dir", str(tmp_path)])
    assert "this command needs the owner's key" in said
    stolen = tmp_path / "other"
    assert app.run(["init", "other", "--out", str(stolen)]) == 0
    (stolen / "run.record").write_bytes((owner / "run.record").read_bytes())
    said = refused(capsys, ["revoke", "--key", OTHER.peer_id, "--data-dir", str(stolen)])
    assert "is the key of another run" in said


def test_an_invite_that_was_not_given_cannot_be_revoked(owner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for serial, words in (("00" * 8, "was not issued from"), ("12", "is not the serial number")):
        said = refused(capsys, ["revoke", "--invite", serial, "--data-dir", str(owner)])
        assert words in said


def test_what_an_invite_says_is_what_the_owner_gave(owner: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.invite"
    arguments = ["--data-dir", str(owner), "--key", FRIEND.peer_id, "--peers", ADDRESS, "--out", str(path)]
    assert app.run(["invite", *arguments]) == 0
    invite = decode_invite(path.read_text())
    assert invite.addresses == (ADDRESS,)
    assert invite.ticket is not None
    assert invite.ticket.holder == FRIEND.public_key

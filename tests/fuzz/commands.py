"""The commands that people run, under hostile records, members and files: a target for each.

Each runs in this process, from its arguments to its exit code, with a network in memory in place of the daemon. What
counts: exit code and sentences. A traceback, a "this is a bug", a character that a terminal would obey, an answer
without end are findings. Commands that would go on for ever end where their own work would begin.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import io
import os
import shutil
import tempfile
import traceback
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from dht.admission import tickets
from dht.ground.errors import LocalFault
from dht.identity.keys import Identity
from dht.pylibp2p.protobuf_clash import make_room_for_libp2p
from dht.records.evaluation import Evaluation
from peer.config.peer_config import PeerConfig
from peer.data_folder.data_folder_choice import HeldFolder
from peer.events.peer_events import Event
from tests.fuzz.swarm import (
    ADDRESS,
    FRAME,
    NOW,
    OWNER,
    RUN_ID,
    SEPARATOR,
    HostileSwarm,
    fields_of,
    honest_record,
    run_record,
    state_of,
    tiny_run,
)
from tests.fuzz.targets import ALICE, BOB, Target

MOST_SECONDS = 10.0
"""Of processor time for one command, torch's import and a model's evaluation included."""
MOST_BYTES = 1 << 18
"""Of one input: a history's file is the longest."""
MOST_OUTPUT = 200_000
"""Characters of one command; a table of a swarm's records is the longest."""
_STOP = "stopped by the fuzzer"
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")


class CommandBroke(AssertionError):
    """A command did what no command may do."""


class CommandFailed(LocalFault):
    """A command ended with a sentence and an exit code; that is well."""


def command_targets() -> list[Target]:
    """One for each command that reads what others made."""
    with contextlib.suppress(LocalFault):
        make_room_for_libp2p()
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    desk = _Desk(folder)
    return [*_network_targets(desk), *_file_targets(desk)]


EXPORT = "export"
WEIGHTS_NAME = "model.safetensors"


class _Desk:
    """Somebody's machine: a home of its own, and commands that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._traces: list[str] = []

    def run(self, arguments: Sequence[str], *patches: Any) -> None:
        """Run one command line.

        Raises:
            CommandFailed: it ended with another code than 0, and a sentence.
            CommandBroke: it did what it must not do.
        """
        out, err = io.StringIO(), io.StringIO()
        names = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
        environment = {**{name: str(self.folder / "home") for name in names}, "NO_COLOR": "1", "COLUMNS": "100"}
        self._traces.clear()
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, environment))
            stack.enter_context(mock.patch("time.time", return_value=NOW))
            stack.enter_context(mock.patch("peer.cli.usage.exit_codes._write_traceback", self._note))
            for patch in patches:
                stack.enter_context(patch)
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            from peer.cli.app import run

            code = run(arguments)
        self._judge(code, out.getvalue(), err.getvalue())

    def _note(self, error: Exception) -> str:
        self._traces.append(" < ".join(_place(frame) for frame in traceback.extract_tb(error.__traceback__)[:-6:-1]))
        self._traces.append(f"{type(error).__name__}: {error}")
        return "FILE"

    def _judge(self, code: int, out: str, err: str) -> None:
        said = out + err
        if self._traces:
            raise CommandBroke(f"ended in a bug: {' at '.join(reversed(self._traces))}")
        if code not in range(6):
            raise CommandBroke(f"ended with code {code}: {err[-200:]}")
        if "Traceback" in said:
            raise CommandBroke(f"printed a traceback: {said[-300:]}")
        odd = {one for one in said if one not in "\n\t" and unicodedata.category(one) in _OBEYED}
        if odd:
            raise CommandBroke(f"printed {sorted(map(hex, map(ord, odd)))}")
        if len(said) > MOST_OUTPUT:
            raise CommandBroke(f"printed {len(said)} characters")
        if code and _STOP not in err:
            if not err.strip() and not out.strip():
                raise CommandBroke(f"ended with code {code} and without a sentence")
            raise CommandFailed(err.strip()[-300:] or f"code {code}")

    def file(self, name: str, data: bytes) -> Path:
        """A file with these bytes."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def empty(self, name: str) -> Path:
        """A folder with nothing in it."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _stop(*arguments: Any, **options: Any) -> Any:
    raise LocalFault(_STOP)


def _let_go(config: PeerConfig, what: str, held: HeldFolder) -> Any:
    """A join ends here; the next one of this process needs the folder."""
    held.lock.close()
    raise LocalFault(_STOP)


# ------------------------------------------------------------------------------------------------ records and members


def _network_targets(desk: _Desk) -> list[Target]:
    manifest = tiny_run()
    record = honest_record(manifest)
    honest = fields_of(record)
    hostile = [
        fields_of(record, versions=(5,), digests=(bytes(8),), lineage_tokens=(1,), name="[/nope]"),
        fields_of(record, versions=4 * (2**59,), digests=4 * (bytes(8),), lineage_tokens=4 * (2**50,)),
        fields_of(record, versions=(), digests=(), lineage_tokens=(), name="a[red]b", state="joining"),
        fields_of(record, tokens=2**50, tokens_per_second=1e18, inner_steps=2**31, upload_bits_per_second=1e18),
        fields_of(record, train_loss=1e18, evaluation=Evaluation(0.0, 2**59), started_at=0.0, name=40 * "W"),
    ]
    seeds = (
        SEPARATOR.join([manifest.to_bytes(), honest, honest, honest]),
        SEPARATOR.join([manifest.to_bytes(), honest]),
        *(SEPARATOR.join([manifest.to_bytes(), honest, one, honest]) for one in hostile),
        SEPARATOR.join([manifest.to_bytes(), honest, honest, honest, FRAME + b"\x91\xa4none", FRAME + b"\x91\xa4busy"]),
    )
    where = ["--run-id", RUN_ID, "--peers", ADDRESS]
    at_once = mock.patch("peer.export.run_anchors.LOOK_SECONDS", 0.01)

    def in_swarm(arguments: Sequence[str], *others: Any) -> Callable[[bytes], None]:
        def read(data: bytes) -> None:
            swarm = HostileSwarm(data)
            desk.run(
                arguments,
                mock.patch("peer.observe.run_and_address.Target.look_first"),
                mock.patch("peer.observe.observer.observer_network", swarm.observer_network),
                mock.patch("peer.owner.owner_connection.look_first"),
                mock.patch("peer.owner.owner_connection.on_errand", swarm.on_errand),
                mock.patch("peer.owner.publish.on_errand", swarm.on_errand),
                mock.patch("asyncio.run", swarm.play),
                *others,
            )

        return read

    def target(name: str, *arguments: str) -> Target:
        return _target(name, in_swarm(arguments, at_once), *seeds)

    out = str(desk.folder / "model")
    owned = _owned_folder(desk)
    fast = [
        mock.patch("peer.doctor.doctor.look_at_machine", _machine(desk)),
        mock.patch("asyncio.to_thread", _here),
    ]
    return [
        target("status", "status", *where),
        target("status_json", "status", *where, "--json"),
        _target("doctor", in_swarm(["doctor", *where], *fast), *seeds),
        target("members", "members", "--data-dir", str(owned), "--peers", ADDRESS),
        target("export", "export", *where, "--out", out, "--force", "--timeout", "1"),
        target("sample", "sample", *where, "--prompt", "a", "--max-tokens", "8", "--timeout", "1", "--device", "cpu"),
        target("evaluate", "evaluate", *where, "--timeout", "1", "--device", "cpu"),
    ]


async def _here(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def _machine(desk: _Desk) -> Callable[..., Any]:
    """This machine's facts, looked at once: they are no others' input."""
    found: list[Any] = []

    def look(*arguments: Any) -> Any:
        from peer.doctor.machine_facts import look_at_machine

        if not found:
            found.append(
                look_at_machine(PeerConfig(run_id="any." + "a" * 20, device="cpu", data_dir=desk.empty("doctor")))
            )
        return found[0]

    return look


def _owned_folder(desk: _Desk) -> Path:
    from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES
    from peer.config.peer_config import RUN_RECORD_NAME
    from peer.user_folders import OWNER_KEY_NAME

    record = run_record(tiny_run().to_bytes())
    assert len(record) <= MAX_RUN_RECORD_BYTES
    folder = desk.empty("owned")
    (folder / RUN_RECORD_NAME).write_bytes(record)
    _key_file(folder / OWNER_KEY_NAME, OWNER)
    return folder


# -------------------------------------------------------------------------------------------------------------- files


def _file_targets(desk: _Desk) -> list[Target]:
    from averaging.signing.receipt_file import RunFrame, line_of
    from averaging.wire.frames import encode
    from peer.config.peer_config import RUN_RECORD_NAME
    from peer.events.event_log import to_json
    from peer.events.peer_events import RefusedPeer
    from tests.fuzz.messages import one_of_each_kind

    run_toml = b'name = "tiny"\nseed = 1\n[model]\nnum_layers = 1\nd_model = 16\nnum_heads = 2\nvocab_size = 257\n'
    run_toml += b'context = 16\n[averaging]\nnum_fragments = 2\nmode = "carry"\n'
    manifest = tiny_run().to_bytes()
    peer_toml = b'name = "Ada"\nupload_limit_mbit = 5.0\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n'
    person = b'{"sequence": 1, "issued_at": 1.0, "name": "Ada", "team": "", "country": "NL"'
    person += b', "is_hidden": false, "machines": []}'
    ticket = tickets.issue_ticket(OWNER, RUN_ID, "key", ALICE.public_key, 2**35, b"12345678")
    invite = tickets.encode_invite(tickets.Invite(RUN_ID, (ADDRESS,), OWNER.public_key, ticket, b"")).encode()
    commit = encode(one_of_each_kind(*sorted((ALICE.peer_id, BOB.peer_id)))[0])
    receipt = line_of(commit, RunFrame(RUN_ID, bytes(32), (40, 1000, 8))).encode() + b"\n"
    refused = Event(NOW, ALICE.peer_id, RefusedPeer(remote=BOB.peer_id, reason="it lied", kinds=("misfit",)))
    log_line = to_json(refused).encode() + b"\n"
    model = _model(desk)

    def read(name: str, *arguments: str, patches: Sequence[Any] = ()) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            path = str(desk.file(name, data))
            desk.run([argument.replace("FILE", path) for argument in arguments], *patches)

        return take

    def init(data: bytes) -> None:
        path = desk.file("run.toml", data)
        desk.run(["init", "tiny", "--config", str(path), "--out", str(desk.empty("new"))])

    def manifest_show(data: bytes) -> None:
        folder = _owned_folder(desk)
        (folder / RUN_RECORD_NAME).write_bytes(data)
        desk.run(["manifest", "show", "--data-dir", str(folder)])

    def profile_show(data: bytes) -> None:
        key = _key_file(desk.folder / "person.key", BOB)
        key.with_name(key.name + ".profile.json").write_bytes(data)
        desk.run(["profile", "show", "--contributor-key", str(key)])

    def event_log(data: bytes) -> None:
        from peer.events.log_tail import last_events
        from peer.view.own_view import OwnView, own_view_after

        functools.reduce(own_view_after, last_events(desk.file("events.jsonl", data), 10_000)[0], OwnView())

    # Whoever makes the file signs it: the fuzzer shall get past the signatures.
    signed = [mock.patch("peer.observe.receipts_verify.verify", return_value=True)]
    no_join = [
        mock.patch("peer.panel.terminal.opened_terminal", _let_go),
        mock.patch("peer.join.before_start.check_choices"),
        mock.patch("peer.join.before_start.wait_for_members"),
    ]
    no_page = [
        mock.patch("dashboard.app.start_site", _stop),
        mock.patch("peer.observe.run_and_address.Target.look_first"),
    ]
    join = ("join", "--identity", str(_key_file(desk.folder / "alice.key", ALICE)))
    dashboard = ("dashboard", "--run-id", RUN_ID, "--peers", ADDRESS, "--port", "0", "--host-backend", "p2pd")
    exported = str(desk.folder / EXPORT)
    sample = ("sample", "--model", exported, "--prompt", "a", "--max-tokens", "8", "--device", "cpu")
    evaluate = ("evaluate", "--model", exported, "--device", "cpu")
    with_config = (*join, "--run-id", RUN_ID, "--peers", ADDRESS, "--config", "FILE")
    return [
        _target("receipts", read("proof.jsonl", "receipts", "verify", "FILE", patches=signed), receipt),
        _target("plan", read("plan.toml", "plan", "FILE"), run_toml, manifest, run_record(manifest)),
        _target("init", init, run_toml),
        _target("manifest_show", manifest_show, run_record(manifest)),
        _target("sample_file", read(f"{EXPORT}/{WEIGHTS_NAME}", *sample), model),
        _target("evaluate_file", read(f"{EXPORT}/{WEIGHTS_NAME}", *evaluate), model),
        _target("profile_show", profile_show, person),
        _target("dashboard", read("history.db", *dashboard, "--db", "FILE", patches=no_page), _history(desk)),
        _target("join_invite", read("friend.invite", *join, "--invite", "FILE", patches=no_join), invite),
        _target("join_config", read("peer.toml", *with_config, patches=no_join), peer_toml),
        _target("event_log", event_log, 2 * log_line),
    ]


def _target(name: str, take: Callable[[bytes], None], *seeds: bytes) -> Target:
    return Target(f"peer_{name}", take, seeds, (CommandFailed,), MOST_SECONDS, MOST_BYTES)


def _key_file(path: Path, who: Identity) -> Path:
    path.write_bytes(who.to_bytes())
    path.chmod(0o600)
    return path


def _model(desk: _Desk) -> bytes:
    from peer.export.formats.anchors import Anchors, facts_of
    from peer.export.formats.model_folder import write_folder

    manifest, folder = tiny_run(), desk.folder / EXPORT
    states = [state_of(manifest, fragment) for fragment in range(manifest.averaging.num_fragments)]
    facts = tuple(
        facts_of(index, state.version, state.lineage_tokens, state.anchor, state.momentum, 2)
        for index, state in enumerate(states)
    )
    values = {index: state.anchor for index, state in enumerate(states)}
    write_folder(Anchors(RUN_ID, manifest, facts, values, "fuzz"), folder, NOW, replace=True)
    return (folder / WEIGHTS_NAME).read_bytes()


def _history(desk: _Desk) -> bytes:
    from dashboard.history.history import open_history

    path = desk.empty("history") / "good.sqlite"

    async def make() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=lambda sentence: None):
            pass

    asyncio.run(make())
    return path.read_bytes()

"""The command line: help, flags, exit codes, sentences instead of tracebacks, and a quick start."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from dashboard.app import Choices, ShownRun
from dashboard.samples.sample_schedule import SamplePlan
from dht.ground.errors import (
    DeviceFault,
    Incompatible,
    LocalFault,
    MurmurationError,
    NobodyReachable,
    PeerFault,
    UsageFault,
)
from dht.identity.keys import Identity, fingerprint, make_run_id, split_run_id
from dht.records.signed_manifest import decode_run_record
from peer.cli import app
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.config.manifest import AveragingSection, RunManifest
from peer.config.peer_config import PeerConfig, write_cached_peers
from peer.data_folder.folder_lock import FolderInUse, FolderLock
from peer.export.model_source import CheckpointSource
from peer.observe.run_and_address import Target

OWNER = Identity.generate()
RUN_ID = make_run_id("demo", OWNER.public_key)
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{OWNER.peer_id}"
OTHER_ADDRESS = f"/ip4/203.0.113.6/tcp/4001/p2p/{OWNER.peer_id}"
COMMANDS = ("init", "join", "seed", "status", "dashboard", "export", "sample", "evaluate", "demo")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder of these tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    # Nobody is at the addresses of these tests.
    monkeypatch.setattr("peer.join.before_start.wait_for_members", lambda *_, **__: None)
    monkeypatch.setattr("peer.join.before_start.check_choices", lambda *_, **__: None)
    monkeypatch.setattr("peer.observe.run_and_address.Target.look_first", lambda *_: None)
    monkeypatch.setattr("dashboard.server.free_port.check_free", lambda *_: None)
    return tmp_path / "home" / "murmuration"


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, function: str, action: Callable[..., object]) -> list[Any]:
    """Put `action` in the place of a command's implementation; returns the list of its calls."""
    calls: list[Any] = []

    def called(*positional: Any, **_: Any) -> object:
        calls.append(positional)
        return action(*positional)

    # What else the command takes from there is real.
    fake = types.ModuleType(module)
    real = (Choices, ShownRun) if module == "dashboard.app" else ()
    vars(fake).update({each.__name__: each for each in real})
    setattr(fake, function, called)
    monkeypatch.setitem(sys.modules, module, fake)
    return calls


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_an_example_that_parses(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.run([command, "--help"]) == 0
    text = capsys.readouterr().out
    body, _, example = text.partition("Example:\n")
    assert f"peer {command}" in example
    assert len(body.splitlines()) > 5
    assert max(map(len, text.splitlines())) <= 80
    for module, function in (
        ("peer.join.seed", "run_seed") if command == "seed" else ("peer.join.join", "run_trainer"),
        ("peer.observe.status", "show_status"),
        ("dashboard.app", "serve_dashboards"),
        ("peer.demo.demo", "run_demo"),
        (f"peer.export.{command}", f"{command}_model"),
    ):
        stand_in(monkeypatch, module, function, lambda *_: 0)
    monkeypatch.setattr("peer.trainer.hf.trial.try_model", lambda manifest, _: (manifest.model.context, ()))
    (Path.cwd() / "run.toml").write_text("seed = 7\n")
    if command != "export":  # which writes it
        (Path.cwd() / "model").mkdir()
        (Path.cwd() / "model" / "run.json").touch()
    (Path.cwd() / "qwen3-0.6b").mkdir()
    (Path.cwd() / "qwen3-0.6b" / "config.json").write_text(
        '{"model_type": "qwen3", "vocab_size": 64, "hidden_size": 8}'
    )
    whole_lines = example.replace("\\\n", " ").replace("12D3KooW...", OWNER.peer_id)
    for line in whole_lines.strip().splitlines():
        assert app.run(line.split()[1:]) == 0, capsys.readouterr().err


def test_init_makes_a_key_and_a_signed_manifest(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["init", "tinybytes"]) == 0
    text = capsys.readouterr().out
    run_id = text.split()[2]
    assert f"peer join murmuration://{run_id}@HOST:PORT/PEERID" in text
    folder = home / run_id
    assert stat.S_IMODE((folder / "owner.key").stat().st_mode) == 0o600
    owner = Identity.load(folder / "owner.key")
    assert split_run_id(run_id) == ("tinybytes", fingerprint(owner.public_key))
    record = decode_run_record((folder / "run.record").read_bytes(), run_id=run_id)
    assert RunManifest.from_bytes(record.manifest) == RunManifest(
        name="tinybytes", averaging=AveragingSection(combine="centered_clip")
    )
    assert sorted(entry.name for entry in folder.iterdir()) == ["owner.key", "run.record"]


def test_init_reads_a_file_and_signs_again_only_when_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text("[averaging]\nsync_every = 77\n")
    arguments = ["init", "mine", "--config", "run.toml", "--out", "out", "--json"]
    assert app.run(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    key = (tmp_path / "out" / "owner.key").read_bytes()
    assert app.run(arguments) == 2
    assert "sign the manifest again with that key (--force" in capsys.readouterr().err
    assert app.run([*arguments, "--force"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["run_id"] == second["run_id"]
    assert (first["revision"], second["revision"]) == (1, 2)
    assert (tmp_path / "out" / "owner.key").read_bytes() == key
    record = decode_run_record((tmp_path / "out" / "run.record").read_bytes(), run_id=second["run_id"])
    manifest = RunManifest.from_bytes(record.manifest)
    assert (manifest.averaging.sync_every, manifest.revision) == (77, 2)
    assert manifest.hash.hex() == second["manifest_hash"]
    assert first["combine"] == second["combine"] == "centered_clip"


def test_open_runs_are_made_for_strangers_and_others_as_they_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mean.toml").write_text('[averaging]\ncombine = "mean"\n')

    def combine_of(*words: str) -> str:
        assert app.run(["init", "mine", *words, "--json"]) == 0
        combine: str = json.loads(capsys.readouterr().out)["combine"]
        return combine

    assert combine_of("--out", "open") == "centered_clip"
    assert combine_of("--out", "ours", "--access", "invite") == "mean"
    assert combine_of("--out", "named", "--config", "mean.toml") == "mean"
    # Signing again changes nothing that was not asked for.
    assert combine_of("--out", "named", "--force") == "mean"
    assert combine_of("--out", "open", "--force") == "centered_clip"
    assert app.run(["init", "mine", "--out", "shown"]) == 0
    assert "Combine     centered_clip  (resists a quarter of hostile members" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["init", "My Run"], "run name 'My Run' cannot be used; expected 1 to 40 of a-z"),
        (
            ["init", "mine", "--config", "absent.toml"],
            "absent.toml cannot be read (No such file or directory); expected",
        ),
        (["init", "mine", "--config", "bad.toml"], "sync_evry is not a field in averaging; did you mean sync_every?"),
    ],
)
def test_init_with_wrong_input_leaves_nothing(
    home: Path, tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text("[averaging]\nsync_evry = 77\n")
    assert app.run(arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not home.exists()


def test_init_with_a_tokenizer_above_the_vocabulary_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"model": {"vocab": {str(number): number for number in range(300)}}, "added_tokens": [{"id": 300}]}
    Path("tokenizer.json").write_text(json.dumps(words))
    Path("run.toml").write_text("[model]\nvocab_size = 300\n")
    asked = ["init", "mine", "--config", "run.toml", "--file", "tokenizer.json", "--out", "out"]
    assert app.run(asked) == 2
    said = capsys.readouterr().err
    assert "has 301 tokens, and model.vocab_size is 300" in said
    assert "set vocab_size = 301 in section [model]" in said
    assert not Path("out").exists()
    Path("run.toml").write_text("[model]\nvocab_size = 301\n")
    assert app.run(asked) == 0


def test_init_into_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert app.run(["init", "mine", "--out", "file/folder"]) == 2
    for out in ("file/folder", "file"):
        assert app.run(["init", "mine", "--out", out]) == 2
        assert f"{tmp_path / 'file'} is not a folder; expected a writable folder" in capsys.readouterr().err


def test_init_on_a_full_disk_leaves_no_half_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    assert app.run(["init", "mine"]) == 1
    assert "No space left on device; expected a writable folder with free space" in capsys.readouterr().err
    assert [entry for entry in home.rglob("*") if entry.is_file()] == []
    assert app.run(["init", "mine", "--out", "out"]) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "choose another place for it" in said
    assert not Path("out").exists()


def test_what_this_user_may_not_read_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/locked/run.record")

    with pytest.raises(typer.Exit) as ended:
        exits_with_sentence(refused)()
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.startswith("peer: /locked/run.record: Permission denied; expected a path that you")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    (tmp_path / "proof").write_text("")
    assert app.run(["receipts", "verify", str(tmp_path / "proof")]) == 2
    assert capsys.readouterr().err == (
        f"peer: Invalid value for 'FILE': path '{tmp_path}/proof' is not readable; see `peer receipts verify --help`.\n"
    )


def test_join_hands_over_every_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: PeerConfig, *rest: Any) -> int:
        with pytest.raises(FolderInUse):
            FolderLock(config.data_dir, "another")
        rest[1].keep_folder()
        config.run_record_path.touch()  # the run was found, so the folder stays
        return 0

    calls = stand_in(monkeypatch, "peer.join.join", "run_trainer", run)
    (tmp_path / "peer.toml").write_text('device = "mps"\nname = "Ada"\n')
    arguments = f"""join --run-id {RUN_ID} --peers {ADDRESS} {OTHER_ADDRESS} --device cuda:1 --identity me.key
        --listen /ip4/0.0.0.0/tcp/4001 --listen /ip6/::/tcp/4001 --announce /ip4/203.0.113.9/tcp/4001
        --data text:books --data-dir here --max-steps 9 --join-timeout 5 --threads 2 --checkpoint-minutes 1
        --config peer.toml --json"""
    assert app.run(arguments.split()) == 0
    expected = PeerConfig(
        run_id=RUN_ID,
        peers=(ADDRESS, OTHER_ADDRESS),
        device="cuda:1",
        data_dir=Path("here"),
        identity=Path("me.key"),
        listen=("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001"),
        announce=("/ip4/203.0.113.9/tcp/4001",),
        data="text:books",
        max_steps=9,
        join_timeout_seconds=5.0,
        name="Ada",
        threads=2,
        checkpoint_minutes=1.0,
        output="json",
    )
    ((config, child, _),) = calls
    assert config == expected
    FolderLock(config.data_dir, "another").close()
    assert child.process.returncode is not None, "a network process that nobody wanted stayed"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    calls = stand_in(monkeypatch, "peer.join.join", "run_rank", lambda: 0)
    assert app.run(["join", "--run-id", RUN_ID]) == 0
    assert calls == [()], "two processes of one peer got a network process each"
    calls = stand_in(monkeypatch, "peer.join.seed", "run_seed", lambda *_: 0)
    assert app.run(["seed", "--run-id", RUN_ID, "--plain"]) == 0
    ((config, _),) = calls
    assert (config.output, config.peers) == ("plain", ())


def test_a_seed_takes_the_one_run_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        assert app.run(["init", name, "--out", str(tmp_path / "runs" / name)]) == 0
    (tmp_path / "runs" / "notes").mkdir()
    calls = stand_in(monkeypatch, "peer.join.seed", "run_seed", lambda *_: 0)
    monkeypatch.chdir(tmp_path / "runs")
    assert app.run(["seed"]) == 2
    assert "Which run?" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "runs" / "two")
    for folder in (tmp_path / "runs", tmp_path / "runs" / "one"):
        monkeypatch.chdir(folder)
        assert app.run(["seed"]) == 0
        assert f" from {tmp_path / 'runs' / 'one'}." in capsys.readouterr().err
    for config, _ in calls:
        assert config.run_id.startswith("one.")
        assert config.data_dir == tmp_path / "runs" / "one"
    assert len(calls) == 2


def test_a_seed_takes_the_run_of_its_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        assert app.run(["init", name, "--out", str(tmp_path / name)]) == 0
    calls = stand_in(monkeypatch, "peer.join.seed", "run_seed", lambda *_: 0)
    monkeypatch.chdir(tmp_path)
    assert app.run(["seed", "--data-dir", "two"]) == 0
    assert "Seeding two." in capsys.readouterr().err
    ((config, _),) = calls
    assert (config.run_id.partition(".")[0], config.data_dir.resolve()) == ("two", tmp_path / "two")
    assert app.run(["seed", "--data-dir", str(tmp_path)]) == 2, "a folder of folders is none of a run"
    assert "Which run?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["join", "--run-id", "demo"], "'demo' is neither a run id nor the name of a run here"),
        (["join", "--run-id", RUN_ID, "--device", "gpu"], "--device is 'gpu'; expected something like auto or cpu"),
        (
            ["join", "--run-id", RUN_ID, "--peers", "/ip4/203.0.113.5/tcp/4001"],
            "expected an address that ends in /p2p/",
        ),
        (["join", "--run-id", RUN_ID, "--peers", "203.0.113.5:4001"], "is not a multiaddr"),
        (["join", "--run-id", RUN_ID, "--max-steps", "0"], "--max-steps is 0; expected a whole number from 1"),
        (["join", "--run-id", RUN_ID, "--json", "--plain"], "--json and --plain are given together"),
        (["join", "--run-id", RUN_ID, "--config", "absent.toml"], "absent.toml cannot be read (No such file"),
        (["seed", "--run-id", RUN_ID, "--device", "cpu"], "No such option: --device"),
        (["status", "--run-id", RUN_ID], "expected the run's complete link (murmuration://"),
        (["status", "--run-id", RUN_ID, "--peers", "x"], "--peers: 'x' is not a multiaddr"),
        (["dashboard", "--run-id", "x"], "'x' is neither a run id nor the name of a run here"),
        (["dashboard", "--run-id", RUN_ID, "--peers", ADDRESS, "--samples-every", "1"], "such as 90s, 20min, 1h"),
        (["dashboard", "--run-id", RUN_ID, "--peers", ADDRESS, "--install", "a\nb"], "expected a line of 1 to 400"),
        (["dashboard", "--port", "70000"], "Invalid value for '--port': Input should be less than or equal to 65535"),
        (["dashboard", "--run-id", RUN_ID, "--peers", ADDRESS, "--join-address", "x"], "'x' is not a multiaddr"),
        (["dashboard", "--run-id", RUN_ID, "--peers", ADDRESS, "--token-file", "nowhere"], "nowhere cannot be read"),
        (["dashboard", "--run-id", RUN_ID, "--peers", ADDRESS, "--db", "no/x.sqlite"], "does not exist; create it"),
        (["export", "--run-id", RUN_ID, "--peers", ADDRESS, "--checkpoint", "d"], "--checkpoint and --peers are given"),
        (
            ["sample", "--prompt", "x", "--model", "m", "--run-id", RUN_ID],
            "--model is given together with",
        ),
        (["sample", "--prompt", "x", "--temperature", "-1"], "Invalid value for '--temperature'"),
        (["evaluate", "--run-id", RUN_ID], "expected the run's complete link (murmuration://"),
    ],
)
def test_wrong_flags_cost_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_observers_get_run_and_addresses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = stand_in(monkeypatch, "peer.observe.status", "show_status", lambda *_: 0)
    page = stand_in(monkeypatch, "dashboard.app", "serve_dashboards", lambda *_: 0)
    assert (
        app.run(
            ["status", "--run-id", RUN_ID, "--peers", ADDRESS, "--json", "--timeout", "3", "--host-backend", "p2pd"]
        )
        == 0
    )
    target = Target(RUN_ID, [ADDRESS], home / RUN_ID / "observer", is_new=True)
    assert status == [(target, True, 3.0, "p2pd")]
    write_cached_peers(home / RUN_ID / "cached_peers.json", [OTHER_ADDRESS])
    assert app.run(["dashboard", "--run-id", RUN_ID, "--host", "0.0.0.0", "--port", "0"]) == 0
    arguments = ["dashboard", "--run-id", RUN_ID, "--db", ":memory:", "--join-address", ADDRESS, "--token-file", "t"]
    chosen = ["--samples-every", "20min", "--prompt", "def ", "--prompt", "x", "--install", " pip install x"]
    assert app.run([*arguments, *chosen]) == 0
    ((alone,),), ((other,),) = page
    first, second = alone.choices, other.choices
    assert (alone.run_id, alone.peers) == (RUN_ID, [OTHER_ADDRESS])
    assert (first.host, first.port, first.db) == ("0.0.0.0", 0, home / RUN_ID / "dashboard.sqlite")
    assert (first.token_file, first.join_addresses) == (None, ())
    assert (first.shows_seeds, first.join_rule.is_of_one_machine) == (True, False)
    assert (second.host, second.port, second.db) == ("127.0.0.1", 8080, None)
    assert (second.token_file, second.join_addresses) == (Path("t"), (ADDRESS,))
    assert second.join_rule.is_of_one_machine
    assert (first.samples, first.install) == (SamplePlan(), None)
    assert second.samples == SamplePlan(1200.0, ("def ", "x"))
    assert (second.install, second.observer_folder) == ("pip install x", home / RUN_ID / "observer")
    shows_none = ["dashboard", "--run-id", RUN_ID, "--no-join-address", "--samples-every", "never"]
    assert app.run(shows_none) == 0
    assert not page[2][0][0].choices.shows_seeds
    assert page[2][0][0].choices.samples is None
    assert app.run([*shows_none, "--join-address", ADDRESS]) == 2


def test_a_run_of_several_that_nobody_can_reach_does_not_keep_the_others_away(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = stand_in(monkeypatch, "dashboard.app", "serve_dashboards", lambda *_: 0)
    unknown = f'[[run]]\nrun_id = "{RUN_ID}"\n'
    Path("runs.toml").write_text(unknown)
    assert app.run(["dashboard", "--runs", "runs.toml", "--port", "0"]) == 2
    assert f"{RUN_ID} cannot be shown: No address of a member" in capsys.readouterr().err
    other = f"books{RUN_ID[RUN_ID.index('.') :]}"
    Path("runs.toml").write_text(f'{unknown}[[run]]\nrun_id = "{other}"\npeers = ["{ADDRESS}"]\n')
    assert app.run(["dashboard", "--runs", "runs.toml", "--port", "0"]) == 0
    ((shown, unusable),) = page
    assert ([run.run_id for run in shown], list(unusable)) == ([other], [RUN_ID])
    assert unusable[RUN_ID].endswith("Add peers or invite to its entry in runs.toml.")


def test_a_model_comes_from_one_source(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "m"):
        Path(name).mkdir()
    Path("here", "run.record").touch()
    Path("m", "run.json").touch()
    Path("t").write_text("words")
    calls = stand_in(monkeypatch, "peer.export.export", "export_model", lambda *_: 0)
    assert app.run(["export", "--run-id", RUN_ID, "--peers", ADDRESS, "--out", "w", "--force", "--timeout", "9"]) == 0
    assert app.run(["export", "--run-id", RUN_ID, "--checkpoint", "here", "--json"]) == 0
    live, saved = (
        Target(RUN_ID, [ADDRESS], home / RUN_ID / "observer", is_new=True, timeout_seconds=9.0),
        CheckpointSource(RUN_ID, Path("here")),
    )
    others = (None, False, None)
    assert calls == [(live, Path("w"), True, False, *others), (saved, Path("model"), False, True, *others)]
    calls = stand_in(monkeypatch, "peer.export.sample", "sample_model", lambda *_: 0)
    assert app.run(["sample", "--model", "m", "--prompt", "a b", "--max-tokens", "3", "--temperature", "0"]) == 0
    assert calls == [(Path("m"), "a b", 3, 0.0, 0, "auto", None)]
    calls = stand_in(monkeypatch, "peer.export.evaluate", "evaluate_model", lambda *_: 0)
    assert app.run(["evaluate", "--model", "m", "--data", "text:t", "--device", "cpu", "--json"]) == 0
    assert calls == [(Path("m"), "text:t", "cpu", True, None)]
    calls = stand_in(monkeypatch, "peer.export.evaluate", "evaluate_tasks", lambda *_: 0)
    assert app.run(["evaluate", "--model", "m", "--tasks", "a,b.yaml", "--limit", "3", "--device", "cpu"]) == 0
    assert calls == [(Path("m"), "a,b.yaml", 3, "cpu", False)]
    assert app.run(["evaluate", "--model", "m", "--tasks", "a", "--data", "text:t"]) == 2
    assert app.run(["evaluate", "--model", "m", "--limit", "3"]) == 2


def test_demo_passes_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = stand_in(monkeypatch, "peer.demo.demo", "run_demo", lambda *_: 1)
    assert app.run(["demo"]) == 1
    assert app.run(["demo", "--peers", "4", "--minutes", "0.5", "--json", "--no-dashboard", "--port", "9000"]) == 1
    program = "python -m peer"
    assert demo == [(3, 2.0, False, 8080, program), (4, 0.5, True, None, program)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LocalFault("the disk is gone"), 1),
        (UsageFault("the disk is gone"), 2),
        (NobodyReachable("the disk is gone"), 3),
        (Incompatible("the disk is gone"), 4),
        (DeviceFault("the disk is gone"), 5),
        (PeerFault("12D3KooWabcdefgh", "the disk is gone"), 1),
        (MurmurationError("the disk is gone"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_sentence_and_their_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    stand_in(monkeypatch, "peer.join.join", "run_trainer", fail)
    assert app.run(["join", RUN_ID, "--peers", ADDRESS]) == code
    shown = capsys.readouterr()
    if code == 130:
        assert shown.out.endswith(" Left before training began: nothing is lost\n")
        assert shown.err == ""
        return
    assert shown.err.startswith("peer: ")
    assert shown.err.count("\n") == 1
    assert "he disk is gone" in shown.err


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    stand_in(monkeypatch, "peer.demo.demo", "run_demo", interrupt)
    assert app.run(["demo"]) == 130
    assert capsys.readouterr().err == "peer: Interrupted.\n"


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'peer.x'"), FileNotFoundError(2, "No such file")]
)
def test_software_that_was_replaced_while_it_ran_is_no_bug(
    error: Exception, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("peer.taken_away")
    module.__file__ = str(home / "taken_away.py")

    def fail(*_: object) -> int:
        monkeypatch.setitem(sys.modules, module.__name__, module)  # as pip does with a file: it is gone
        raise error

    stand_in(monkeypatch, "peer.observe.status", "show_status", fail)
    assert app.run(["status", RUN_ID, "--peers", ADDRESS]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "This software was replaced while the command ran" in message
    assert message.endswith("run the command again.")


@pytest.mark.parametrize("writable", [True, False])
def test_a_bug_leaves_a_file_to_report(
    writable: bool, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("deep inside")

    if not writable:
        home.parent.write_text("a file where the data folder should be")
    stand_in(monkeypatch, "peer.observe.status", "show_status", fail)
    assert app.run(["status", RUN_ID, "--peers", ADDRESS]) == 1
    message = capsys.readouterr().err
    assert message.startswith("peer: This is a bug (ZeroDivisionError)")
    assert "Traceback" not in message
    path = Path(message.removesuffix(".\n").split()[-1])
    assert path.is_relative_to(home) == writable
    assert "deep inside" in path.read_text()
    path.unlink()


def in_a_new_process(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"XDG_DATA_HOME": str(home)}
    root = Path(app.__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, env=environ, timeout=60
    )


def test_heavy_libraries_stay_out_of_the_command_line(tmp_path: Path) -> None:
    code = """
import sys
import peer.cli.app
heavy = {"torch", "hivemind", "aiohttp", "numpy", "rich", "pydantic", "cryptography"}
print("after import:", sorted(heavy & set(sys.modules)))
peer.cli.app.run(["join", "--help"])
peer.cli.app.run(["init", "tinybytes"])
print("after init:", sorted(heavy & set(sys.modules) - {"pydantic", "cryptography"}))
"""
    lines = in_a_new_process(code, tmp_path).stdout.splitlines()
    assert lines[0] == "after import: []"
    assert lines[-1] == "after init: []"


def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path: Path) -> None:
    code = """
import os, sys
import peer.cli.app
read, write = os.pipe()
os.dup2(write, 1)
os.close(read)
sys.exit(peer.cli.app.run(["init", "tinybytes"]))
"""
    ended = in_a_new_process(code, tmp_path)
    assert (ended.returncode, ended.stderr) == (1, "")

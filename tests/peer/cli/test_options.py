"""Flags that follow from the fields of `PeerConfig`: none is forgotten, each arrives, a new one needs no other file."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from dht.identity.keys import Identity, make_run_id
from peer.cli import app, options
from peer.cli.usage.lazy_commands import peer_command
from peer.config import peer_config
from peer.config.peer_config import ChoiceMark, PeerConfig, choices_with, flag_of
from peer.panel.return_command import same_again

OWNER = Identity.generate()
RUN_ID = make_run_id("demo", OWNER.public_key)
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{OWNER.peer_id}"
GIVEN: dict[str, object] = {
    "run_id": RUN_ID,
    "peers": (ADDRESS,),
    "device": "cuda:1",
    "devices": 2,
    "shard": True,
    "offload": True,
    "data_dir": Path("here"),
    "identity": Path("me.key"),
    "listen": ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001"),
    "announce": ("/ip4/203.0.113.9/tcp/4001",),
    "data": "text:books",
    "data_limit_gib": 2.5,
    "base": "weights",
    "base_bits": "8",
    "precision": "fp16",
    "compile": True,
    "checkpoint_activations": True,
    "attention": "eager",
    "optimizer_bits": "8",
    "micro_batch": 2,
    "max_steps": 9,
    "name": "Ada",
    "site": "home-1",
    "contributor_key": Path("ada.key"),
    "join_timeout_seconds": 5.0,
    "threads": 2,
    "checkpoint_minutes": 1.5,
    "track": "csv",
    "upload_limit_mbit": 3.5,
    "download_limit_mbit": 20.0,
    "serve_limit_mbit": 1.0,
    "map_ports": True,
    "relay": False,
    "relay_for_others": False,
    "output": "plain",
}
"""Of every field a value that is not its default."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's data folder of these tests; flags of other fields do not outlive one."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    options._choice_flags.cache_clear()
    yield tmp_path
    options._choice_flags.cache_clear()


def started(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> Any:
    """The configuration with which a command starts a peer."""
    configs: list[Any] = []
    for module, function in (("peer.join.join", "run_trainer"), ("peer.join.seed", "run_seed")):
        fake = types.ModuleType(module)
        setattr(fake, function, lambda config, *_: configs.append(config) or 0)
        monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setattr("peer.panel.terminal.opened_terminal", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("peer.join.before_start.wait_for_members", lambda *_, **__: None)
    monkeypatch.setattr("peer.join.before_start.check_choices", lambda *_, **__: None)
    monkeypatch.setattr("peer.network.process.child_start.early_network_child", contextlib.nullcontext)
    monkeypatch.setattr("peer.data_folder.data_folder_choice.hold_folder", lambda config, *_: (config, None))
    monkeypatch.setattr("peer.observe.known_addresses.check_addresses", lambda config: None)
    assert app.run(arguments) == 0
    (config,) = configs
    return config


def as_arguments(given: dict[str, object]) -> list[str]:
    """The flags that say `given`."""
    arguments: list[str] = []
    for name, value in given.items():
        if name == "output":
            arguments.append(f"--{value}")
        elif isinstance(value, bool):
            arguments.append(flag_of(name) if value else flag_of(name).replace("--", "--no-"))
        else:
            for one in value if isinstance(value, tuple) else (value,):
                arguments += [flag_of(name), str(one)]
    return arguments


def flags_of(command: str) -> set[str]:
    parameters: list[Any] = peer_command().commands[command].params
    return {parameter.name for parameter in parameters} & set(PeerConfig.model_fields)


def test_every_choice_is_a_flag_and_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(GIVEN) == set(PeerConfig.model_fields), "GIVEN above has one value, not the default, of each field"
    assert all(GIVEN[name] != field.default for name, field in PeerConfig.model_fields.items())
    assert started(monkeypatch, ["join", *as_arguments(GIVEN)]) == PeerConfig.model_validate(GIVEN)


def test_a_seed_has_all_flags_but_those_about_training(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flags_of("join") == set(PeerConfig.model_fields) - {"output"}
    assert flags_of("seed") == flags_of("join") - set(choices_with(ChoiceMark.TRAINING))
    given = {name: value for name, value in GIVEN.items() if name not in choices_with(ChoiceMark.TRAINING)}
    assert started(monkeypatch, ["seed", *as_arguments(given)]) == PeerConfig.model_validate(given)


@pytest.mark.parametrize("command", ["join", "seed"])
def test_the_command_that_brings_a_peer_back_has_every_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    config = PeerConfig.model_validate(GIVEN)
    words = shlex.split(same_again(config, f"peer {command}"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    left_out = {"peers", "max_steps", *(choices_with(ChoiceMark.TRAINING) if command == "seed" else ())}
    kept = {name: value for name, value in GIVEN.items() if name not in left_out}
    places: dict[str, object] = {
        name: tmp_path / str(kept[name]) for name in ("data_dir", "identity", "base", "contributor_key") if name in kept
    }
    if command == "join":
        places["data"] = f"text:{tmp_path}/books"
    assert started(monkeypatch, words[1:]) == PeerConfig.model_validate(kept | places)


def test_what_is_not_given_leaves_the_file_and_the_defaults_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("peer.toml").write_text(f'run_id = "{RUN_ID}"\npeers = ["{ADDRESS}"]\nshard = true\nthreads = 7\n')
    config = started(monkeypatch, ["join", "--config", "peer.toml", "--no-shard"])
    assert config == PeerConfig(run_id=RUN_ID, peers=(ADDRESS,), threads=7)
    assert config.model_fields_set == {"run_id", "peers", "shard", "threads"}


def test_help_names_the_value_and_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["join", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--join-timeout SECONDS Give up if no member answers for this long; default 300." in text
    assert "--map-ports / --no-map-ports Ask the router" in text
    assert "--name TEXT Your public name; default: anonymous." in text
    assert "PydanticUndefined" not in text
    assert "None" not in text


def test_descriptions_have_the_form_that_help_makes_sentences_of() -> None:
    for name, field in PeerConfig.model_fields.items():
        text = field.description or ""
        assert re.match("[a-z]|[A-Z]{2}", text), f"{name}: help makes a sentence of {text!r}, which is one already"
        assert not text.endswith("."), f"{name}: help adds the full stop to {text!r}"


def test_a_new_choice_is_one_field(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Longer(PeerConfig):
        pause_minutes: float = Field(default=2.0, ge=0, le=60, description="rest after a night")

    monkeypatch.setattr(peer_config, "PeerConfig", Longer)
    join = ["join", "--run-id", RUN_ID]
    assert started(monkeypatch, [*join, "--pause-minutes", "3"]).pause_minutes == 3.0
    Path("peer.toml").write_text("pause_minutes = 4.0\n")
    config = started(monkeypatch, ["seed", "--run-id", RUN_ID, "--config", "peer.toml"])
    assert Longer.model_validate_json(config.model_dump_json(exclude_defaults=True)).pause_minutes == 4.0
    capsys.readouterr()
    assert app.run([*join, "--pause-minutes", "99"]) == 2
    assert "--pause-minutes is 99.0; expected a finite number from 0 to 60." in capsys.readouterr().err
    assert app.run(["join", "--help"]) == 0
    assert "--pause-minutes N Rest after a night; default 2." in " ".join(capsys.readouterr().out.split())


def test_several_addresses_may_follow_one_flag() -> None:
    spread = options.spread_peers(
        ["join", "--peers", "/a", "/b", "--data-dir", "/d", "--peers=/e", "/f", "--peers", "/g"]
    )
    assert spread == (
        ["join", "--peers", "/a", "--peers", "/b", "--data-dir", "/d", "--peers=/e", "--peers", "/f", "--peers", "/g"]
    )

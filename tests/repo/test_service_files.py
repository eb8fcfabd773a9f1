"""The Dockerfile and the systemd unit name what is there: commands, flags, extras, files and exit codes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import DeviceFault, Incompatible, LocalFault, NobodyReachable, UsageFault
from peer.cli.usage.lazy_commands import peer_command

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docs/volunteer/Dockerfile").read_text()
UNIT = (ROOT / "docs/volunteer/peer@.service").read_text()


def flags_of(command: str) -> set[str]:
    group: Any = peer_command()
    return {flag for parameter in group.commands[command].params for flag in parameter.opts}


def test_the_image_is_the_command() -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)
    assert json.loads(entry) == ["peer"]
    assert "peer" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def test_the_image_has_extras_that_are_there() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.MULTILINE)
    assert set(extras.split(",")) <= set(known)
    assert re.search("^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", re.findall(r"docker run .* murmuration (join .*)", DOCKERFILE))
def test_what_is_run_in_a_container_has_its_flags(line: str) -> None:
    assert set(re.findall(r"--[a-z-]+", line)) <= flags_of("join")


def test_the_flags_for_a_forwarded_port_are_there() -> None:
    assert {"--listen", "--announce"} <= flags_of("join")
    assert "--listen /ip4/0.0.0.0/tcp/4001 --announce" in DOCKERFILE


def test_the_unit_starts_a_peer_with_flags_that_are_there() -> None:
    (command,) = re.findall(r"^ExecStart=\S+/peer (\w+) (.*)$", UNIT, re.MULTILINE)
    assert command[0] == "join"
    assert set(re.findall(r"--[a-z-]+", command[1])) <= flags_of("join")
    # DynamicUser has a folder of its own, and the peer writes nowhere else.
    assert "StateDirectory=murmuration" in UNIT
    assert "--data-dir /var/lib/murmuration/%i" in command[1]


def test_only_what_another_try_may_cure_is_tried_again() -> None:
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT, re.MULTILINE)
    assert set(map(int, codes.split())) == {one.exit_code for one in (UsageFault, Incompatible, DeviceFault)}
    assert not {LocalFault.exit_code, NobodyReachable.exit_code} & set(map(int, codes.split()))


def test_what_a_container_keeps_lies_in_its_volume() -> None:
    (volume,) = re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE)
    places = dict(re.findall(r"(\w+)=(/\S+)", "".join(re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE))))
    assert set(places) == {"XDG_DATA_HOME", "HF_HOME"}
    assert all(f"{place}/".startswith(f"{volume}/") for place in places.values())

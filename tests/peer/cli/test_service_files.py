"""Files of systemd and launchd: what they run is the command, word by word, and the system's own reader takes them."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from dht.ground.errors import UsageFault
from peer.cli.service import ServiceFile, service_file

RUN = "demo.aaaaaaaaaaaaaaaaaaaa"
AWKWARD = ["--data", "text:/my notes/50% of $HOME", "--name", 'Ada "the\\first"', "--site", "it's", ";", ""]
VARIABLES = {"XDG_DATA_HOME": "/big disk/100%$X"}


def made(tmp_path: Path, platform: str, *words: str, niceness: int = 0) -> ServiceFile:
    found = service_file("demo", words, tmp_path / "a b%", VARIABLES, platform, tmp_path, niceness)
    assert found is not None
    return found


def test_a_unit_quotes_what_systemd_would_expand(tmp_path: Path) -> None:
    unit = made(tmp_path, "linux", "/a b/$x/peer", "join", RUN, *AWKWARD)
    lines = unit.text.splitlines()
    # A program's own path may not be a variable, so its $ stays single; nor is one looked for in Environment.
    assert lines[4] == (
        f'ExecStart="/a b/$x/peer" join {RUN} --data "text:/my notes/50%% of $$HOME" --name "Ada \\"the\\\\first\\"" '
        '--site "it\'s" ";" ""'
    )
    assert f"WorkingDirectory={tmp_path}/a b%%" in lines
    assert 'Environment="XDG_DATA_HOME=/big disk/100%%$X"' in lines
    assert unit.path == tmp_path / ".config/systemd/user/murmuration-demo.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_reads_a_unit_without_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "a b%").mkdir()
    program = tmp_path / "my $x programs" / "peer"
    program.parent.mkdir()
    program.touch(0o755)
    path = tmp_path / "murmuration-demo.service"

    def complaints() -> str:
        command = ["systemd-analyze", "verify", "--user", str(path)]
        done = subprocess.run(command, env={"XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, timeout=60)
        return "".join(line for line in done.stderr.decode().splitlines() if path.name in line)

    path.write_text(made(tmp_path, "linux", str(program), "join", RUN, *AWKWARD, niceness=10).text)
    assert complaints() == ""
    path.write_text(path.read_text().replace("Nice=10", "Nice=much"))
    assert "nice" in complaints()


def test_an_agent_of_launchd_has_the_whole_command(tmp_path: Path) -> None:
    command = ("/a b/peer", "join", RUN, *AWKWARD, "<&>")
    agent = made(tmp_path, "darwin", *command, niceness=10)
    settings = plistlib.loads(agent.text.encode())
    assert settings["ProgramArguments"] == list(command)
    assert settings["EnvironmentVariables"] == VARIABLES
    assert settings["WorkingDirectory"] == str(tmp_path / "a b%")
    assert (settings["Nice"], settings["KeepAlive"]) == (10, {"SuccessfulExit": False})
    assert agent.path == tmp_path / "Library/LaunchAgents/murmuration.demo.plist"


def test_other_systems_have_no_such_file(tmp_path: Path) -> None:
    assert service_file("demo", ["/bin/peer"], tmp_path, {}, "win32", tmp_path) is None


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_line_break_in_a_word_is_refused(tmp_path: Path, platform: str) -> None:
    with pytest.raises(UsageFault, match="has a control character"):
        made(tmp_path, platform, "/bin/peer", "join", RUN, "--data", "text:a\nExecStartPre=/bin/sh")

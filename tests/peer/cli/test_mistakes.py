"""Mistakes in every command: one sentence in one style, exit code 2, no traceback, and nothing heavy loaded for it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dht.identity.keys import Identity
from peer.cli import app
from peer.cli.usage.commands import COMMANDS, GROUPS, help_text
from peer.cli.usage.lazy_commands import peer_command
from peer.network.membership.mistyped_run_id import other_run
from peer.version import software

UNKNOWN_RUN = "demo.aaaaaaaaaaaaaaaaaaaa"
NOBODY_THERE = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
NO_FOLDER = "/dev/null/below"
HEAVY = {"torch", "hivemind", "aiohttp", "transformers", "libp2p", "numpy"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@cache
def every_command() -> dict[str, Any]:
    """ "manifest show" -> its command, groups left out."""
    found: dict[str, Any] = {}
    for name, command in peer_command().commands.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {word}": one for word, one in inner.items()}
    return found


COMMAND_NAMES = sorted(every_command())


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence that a wrong command line costs."""
    assert app.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def in_house_style(line: str) -> bool:
    """`peer: ` and a sentence: begins with a capital, a flag, a value or a file; ends as sentences do."""
    return re.fullmatch(r"peer: (?:[A-Z'`~/.\"-]|[\w./-]+[:,' ]).*[.?]", line) is not None and "Traceback" not in line


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_each_command_refuses_unknown_flags_wrong_numbers_and_too_many_words(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, parameters = name.split(), every_command()[name].params
    line = said([*words, "--no-such-flag"], capsys)
    assert line.startswith("peer: No such option: --no-such-flag")
    assert line.endswith(f"; see `peer {name} --help`.")
    for one in parameters:
        if one.param_type_name == "option" and one.type_descriptor.annotation in (int, float):
            line = said([*words, one.opts[0], "zero"], capsys)
            assert line.startswith(f"peer: Invalid value for '{one.opts[0]}'"), line
            assert in_house_style(line)
    if all(one.nargs != -1 for one in parameters):
        assert in_house_style(said([*words, "one", "two", "three"], capsys))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--version=3", "Option '--version' does not take a value; see `peer --help`."),
        ("--json runs", "No such option: --json"),
        ("init x --confg run.toml", "No such option: --confg (Possible options: --config, --json); see `peer init"),
        ("join RUN --peers", "Option '--peers' requires an argument; see `peer join --help`."),
    ],
)
def test_a_flag_at_the_wrong_place_or_with_a_value(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(words.split(), capsys).startswith(f"peer: {sentence}")


@pytest.mark.parametrize("name", ["no file", "the", "a b", "run 1", "all"])
def test_a_path_keeps_its_first_letter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        *(["plan", name], ["init", "x", "--config", name], ["evaluate", "--model", name]),
        *(
            ["stop", "--data-dir", name],
            ["join", UNKNOWN_RUN, "--base", name],
            ["join", UNKNOWN_RUN, "--data", f"text:{name}"],
        ),
    ):
        assert said(words, capsys).startswith(f"peer: {name}"), words
    (tmp_path / name).mkdir()
    assert said(["plan", name], capsys).startswith(f"peer: {name}/run.record cannot be read")


@pytest.mark.parametrize(
    "name", [name for name in COMMAND_NAMES if any(one.name == "run" for one in every_command()[name].params)]
)
def test_a_run_that_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = {
        "sample": ["--prompt", "x"],
        "invite": ["--one-time"],
        "revoke": ["--invite", "0" * 16],
        "manifest edit": ["--admit", Identity.generate().peer_id],
    }.get(name, [])
    for wrong in ("no-run-of-mine", "murmuration://nobody", f"murmuration://{UNKNOWN_RUN}@x"):
        line = said([*name.split(), wrong, *more], capsys)
        assert in_house_style(line), line
        assert "expected" in line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["jion"], "No such command 'jion'. Did you mean 'join'?"),
        (["join", "--threads", "zero"], "Invalid value for '--threads': Input should be a valid integer"),
        (["demo", "--peers", "1"], "Invalid value for '--peers': Input should be greater than or equal to 2"),
        (["init"], "NAME is missing; expected `peer init NAME`, with 1 to 40"),
        (["sample"], "Missing option '--prompt'"),
        (["manifest", "shwo"], "No such command 'shwo'. Did you mean 'show'?"),
        (["join"], "Which run? Expected RUN: its id, its page (https://...) or its murmuration:// link"),
        (["join", UNKNOWN_RUN], f"No address of a member of {UNKNOWN_RUN} is known"),
        (["status"], "Which run?"),
        (["plan"], "Which run? Expected a run file (`peer plan run.toml`), or RUN"),
        (["invite"], "No key is given; expected either --key"),
        (["invite", "--key", "x", "--one-time"], "Both --key and --one-time are given"),
        (["revoke"], "Neither --key nor --invite is given; expected"),
        (["export"], "No model is given; expected RUN"),
        (["evaluate"], "No model is given; expected --model PATH"),
        *(
            ([*command, UNKNOWN_RUN, "--peers", NOBODY_THERE, "--base", NO_FOLDER], f"{NO_FOLDER} is not a folder")
            for command in (["export", "--merge"], ["sample", "--prompt", "x"], ["evaluate"])
        ),
        (["evaluate", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--device", "gpu"], "--device is 'gpu'; expected"),
        (["evaluate", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--data", f"text:{NO_FOLDER}"], f"{NO_FOLDER} does not"),
        (
            ["status", UNKNOWN_RUN, "--peers", NOBODY_THERE[:-3]],
            f"--peers: {NOBODY_THERE[:-3]!r} is not a multiaddr: {NOBODY_THERE[-52:-3]!r} is cut off after 49 ",
        ),
        (["open"], "Which run?"),
        (["profile"], "`peer profile` needs a subcommand; see"),
        (["profile", "set"], "No value is given; expected --name, --country, --team or --machine"),
        (["profile", "set", "--name", "Ada", "--run-id", "nope"], "--run-id: 'nope' is not a run id"),
        (["profile", "set", "--name", "Ada", "--peers", NOBODY_THERE], "--peers is given without --run-id"),
        (
            ["receipts", "verify", "a.jsonl"],
            "a.jsonl cannot be read (No such file or directory); expected a person's receipts",
        ),
        (["profile", "set", "--country", "Netherlands"], "'Netherlands' is not a country"),
        (["note", "./owner", "x"], "./owner does not exist; expected a folder that `peer init` wrote"),
    ],
)
def test_what_is_wrong_is_said_first(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = said(arguments, capsys)
    assert line.startswith(f"peer: {sentence}"), line
    assert in_house_style(line)


def test_mistakes_load_nothing_heavy(tmp_path: Path) -> None:
    lines = [
        *(["join"], ["join", UNKNOWN_RUN], ["join", "--threads", "zero"], ["members"], ["members", "--data-dir", "x"]),
        *(["manifest", "edit"], ["manifest", "publish"], ["init", "x", "--model", "nofile"]),
        *(["plan"], ["plan", "nofile"], ["doctor", "x"], ["export"], ["evaluate"], ["demo", "--model", "x"]),
        *(
            ["plan", UNKNOWN_RUN, "--base-bits", "3"],
            ["dashboard", "nobody"],
            ["dashboard", UNKNOWN_RUN, "--invite", "nofile"],
        ),
        # Where a result cannot go is said before any work.
        ["demo", "--model", "hf", "--out", NO_FOLDER],
        ["export", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--out", NO_FOLDER],
        ["init", "x", "--model", ".", "--out", NO_FOLDER],
        ["data", "tokenizer", "--vocab-size", "300", "--out", NO_FOLDER, "."],
        ["data", "prepare", "--tokenizer", ".", "--out", NO_FOLDER, "."],
    ]
    unreachable = [
        ["join", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--join-timeout", "1"],
        ["status", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--timeout", "0.1"],
        ["export", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--timeout", "0.1"],
    ]
    code = f"""
import json, sys
from peer.cli.app import run
found = {{}}
for words in {lines!r}:
    code = run(words)
    found[" ".join(words)] = [code, sorted({HEAVY!r} & set(sys.modules))]
for words in {unreachable!r}:
    code = run(words)
    found[" ".join(words)] = [code - 1, sorted({HEAVY!r} & set(sys.modules))]
print()
print(json.dumps(found))
"""
    environ = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    root = Path(app.__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, env=environ)
    found = json.loads(ended.stdout.splitlines()[-1])
    assert {name: answer for name, answer in found.items() if answer != [2, []]} == {}, ended.stderr


def test_help_is_asked_for_in_many_ways(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert app.run(words) == 0
        assert capsys.readouterr().out == help_text()
    texts = set()
    for words in (["join", "--help"], ["join", "-h"], ["help", "join"], ["join", "help"]):
        assert app.run(words) == 0
        texts.add(capsys.readouterr().out)
    (text,) = texts
    assert text.startswith("Usage: peer join [OPTIONS] [RUN]")
    for words in (["--version"], ["-V"]):
        assert app.run(words) == 0
        assert capsys.readouterr().out == f"{software()}\n"


def test_help_is_in_groups_and_says_first_what_everybody_needs(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(80)
    assert text.splitlines()[2] == "  New here? peer demo"
    assert [line[:-1] for line in text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert max(map(len, text.splitlines())) <= 80


def test_shells_complete_commands_and_flags(tmp_path: Path) -> None:
    for typed, expected in (("peer jo", "join"), ("peer join --upl", "--upload-limit-mbit")):
        environ = os.environ | {
            "_PEER_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
            "XDG_DATA_HOME": str(tmp_path),
        }
        root = Path(app.__file__).parents[2]
        command = [sys.executable, "-c", "import sys; from peer.cli.app import run; sys.exit(run([]))"]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environ)
        assert ended.stdout.split() == [expected], ended.stderr


@pytest.mark.parametrize("content", ["", "\n", "# nothing but words\n"])
def test_a_file_that_says_nothing_is_no_run_file(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a disk that was full."""
    (tmp_path / "run.toml").write_text(content)
    for words in (["plan", "run.toml"], ["init", "mine", "--config", "run.toml"]):
        assert "run.toml sets no field; expected a run file" in said(words, capsys)


def test_a_run_file_to_begin_with_makes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["init", "--example"]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    assert app.run(["init", "mine", "--config", "run.toml", "--out", "out"]) == 0
    assert "Run id      mine." in capsys.readouterr().out
    assert app.run(["plan", "run.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["Traffic", "Memory", "Disk", "Time", "Estimated"]
    assert app.run(["plan", "run.toml", "--full"]) == 0
    assert "Without activations" in capsys.readouterr().out


def test_the_run_of_a_member_is_read_from_its_refusal_and_nothing_else() -> None:
    assert other_run(f"refused this peer: of the run {UNKNOWN_RUN}") == UNKNOWN_RUN
    for text in (
        "",
        "refused this peer: no",
        "of the run ",
        "of the run \x1b[31m",
        f"of the run {UNKNOWN_RUN} and more",
    ):
        assert other_run(text) is None


OF_A_PATH, OF_A_WORD = "is empty; expected the path of a file or folder", "An argument is empty, as from an unset"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("init x --out ''", OF_A_PATH),
        ("join --data-dir ''", OF_A_PATH),
        ("seed --identity ' '", OF_A_PATH),
        ("manifest show --data-dir ''", OF_A_PATH),
        ("export --checkpoint ''", OF_A_PATH),
        ("key ''", OF_A_WORD),
        ("members '' --json", OF_A_WORD),
        ("plan ''", OF_A_WORD),
        ("join ''", OF_A_WORD),
        ("receipts verify ''", OF_A_WORD),
        ("note '' x", OF_A_WORD),
    ],
)
def test_an_empty_word_is_no_run_and_does_not_mean_the_working_folder(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a shell variable that is not set."""
    assert sentence in said(shlex.split(words), capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["key", "--identity"], ["logs", "--data-dir"], ["plan"]])
def test_a_name_that_no_file_can_have(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([*command, "a" * 5000]) == 2
    assert "a bug" not in capsys.readouterr().err


def test_a_working_folder_that_was_deleted_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert app.run(["init", "mine", "--out", "out"]) == 1
    assert capsys.readouterr().err.startswith(
        "peer: The current folder no longer exists; expected an existing folder; change to"
    )


def test_a_file_in_the_place_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for place, what in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "below", "is not a folder, or is not inside one"),
    ):
        words = ["--data-dir", str(place)]
        assert app.run(["seed", "own." + "a" * 20, "--peers", NOBODY_THERE, *words]) == 2
        assert f"{place} {what}; expected a writable folder" in capsys.readouterr().err
        assert app.run(["stop", *words]) == 2
        assert "is not a folder; expected the data folder of a peer" in capsys.readouterr().err
        page = ["dashboard", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--port", "0", "--db", str(place / "db")]
        assert app.run(page) == 2
        assert "of the history does not exist; create it, or give another file" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["", " ", "\u202e", "a" * 5000, "a..b", "x y"])
def test_a_host_that_is_none_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty one would serve the page to everybody."""
    assert app.run(["dashboard", "own." + "a" * 20, "--peers", NOBODY_THERE, "--host", host]) == 2
    assert "is not an address; expected an address of this machine" in capsys.readouterr().err


def test_what_keeps_a_page_from_being_served_is_said_before_anybody_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ["dashboard", UNKNOWN_RUN, "--peers", NOBODY_THERE, "--port", "0"]
    line = said([*page, "--host", "198.51.100.1"], capsys)
    assert line.startswith("peer: Cannot serve at 198.51.100.1 port 0 (Cannot assign requested address); expected an")
    line = said([*page, "--db", str(tmp_path / "none" / "db")], capsys)
    assert line.startswith(f"peer: The folder {tmp_path / 'none'} of the history does not exist; create it")


FILES = {
    "run file": "[training]\nbatch_size = 4\n",
    "file of a peer's choices": 'device = "cpu"\n',
}


@pytest.mark.parametrize("given", FILES)
@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        ("run file", ["plan", "FILE"]),
        ("run file", ["init", "x", "--config", "FILE"]),
        ("file of a peer's choices", ["join", "x." + "a" * 20, "--config", "FILE"]),
    ],
)
def test_a_file_of_another_kind_is_one_sentence(
    wanted: str, command: list[str], given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"FILE": FILES[given], "run.toml": FILES["run file"]}.items():
        Path(name).write_text(text)
    if given != wanted:
        line = said(command, capsys)
        assert line.startswith(f"peer: FILE is a {given}, for `peer ")
        assert f"; expected a {wanted}: " in line

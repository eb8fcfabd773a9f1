"""The documents say what the code does: messages, fields, generated pages, commands, versions, links."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import murmuration
from averaging.codec.blocks import CODE_BITS
from averaging.outer.outer_settings import Mode
from averaging.wire.messages import Plan, RosterEntry, ShardPlan, ShardResult
from dht.admission.handshake_frames import Hello
from dht.records.peer_record import PeerRecord
from docs.generate import PAGES, page
from peer.cli import app
from peer.cli.options import spread_peers
from peer.cli.usage.lazy_commands import peer_command
from peer.config.manifest import RunManifest
from peer.events.event_log import EVENT_TYPES
from peer.import_path import DISTRIBUTION
from peer.version import VERSION
from tests.kit.documents import (
    ALL_DOCUMENTS,
    CHANGELOG,
    DOCUMENTS,
    LOG,
    MESSAGES,
    README,
    ROOT,
    code_blocks,
    links_in,
    manifest_fields,
    names_in,
    rows,
    section,
)

PACKAGES = ("dht", "averaging", "peer", "dashboard", "murmuration")
PROTOCOL = ROOT / "docs" / "contributor" / "protocol.md"
MATHEMATICS = ROOT / "docs" / "contributor" / "mathematics.md"


# --- reading markdown ---


def anchors_in(text: str) -> set[str]:
    """The fragments that headings can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- docs/contributor/protocol.md ---


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_every_message_and_its_fields_in_order(message: type[Any]) -> None:
    assert names_in(section(PROTOCOL.read_text(), f"`{message.KIND}`")) == [
        field.name for field in dataclasses.fields(message)
    ]


@pytest.mark.parametrize(("title", "kind"), [("hello", Hello), ("roster entry", RosterEntry)])
def test_other_structures(title: str, kind: type[Any]) -> None:
    assert names_in(section(PROTOCOL.read_text(), f"`{title}`")) == [field.name for field in dataclasses.fields(kind)]


def test_peer_record() -> None:
    expected = [field.name for field in dataclasses.fields(PeerRecord) if field.name != "peer_id"]
    assert names_in(section(PROTOCOL.read_text(), "Peer record")) == expected


def has_shards(kind: type[Any]) -> bool:
    return "shards" in {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("message", list(filter(has_shards, MESSAGES)))
def test_rows_of_shards(message: type[Any]) -> None:
    kind = ShardPlan if message is Plan else ShardResult
    described = next(
        cells[1] for cells in rows(section(PROTOCOL.read_text(), f"`{message.KIND}`")) if cells[0] == "`shards`"
    )
    in_order = [name for name in re.findall(r"`(\w+)`", described) if name]
    assert in_order[: len(dataclasses.fields(kind))] == [field.name for field in dataclasses.fields(kind)]


def protocol_ids() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and re.fullmatch(r"/murmuration/\w+/\d+", text):
                    yield text


def test_every_protocol_id() -> None:
    in_code = set(protocol_ids())
    assert len(in_code) >= 4
    assert set(names_in(section(PROTOCOL.read_text(), "Overview"))) == in_code


def test_every_codec() -> None:
    """Those that a manifest may name; int8 never leaves the machine."""
    assert set(names_in(section(PROTOCOL.read_text(), "Codecs"))) == set(CODE_BITS) - {"int8"}


@pytest.mark.parametrize("page_name", ["first-run.md", "open-run.md"])
def test_run_files_in_documents_are_manifests(page_name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "organiser" / page_name).read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "run.toml").write_text(example)
    assert RunManifest.load_toml(tmp_path / "run.toml").name


def test_the_first_run_asks_what_the_plan_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "organiser" / "first-run.md").read_text(encoding="utf-8")
    example, said = re.findall(r"^```(?:toml)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "run.toml").write_text(example)
    assert app.run(["plan", str(tmp_path / "run.toml")]) == 0
    assert capsys.readouterr().out == said


def test_every_mode() -> None:
    assert set(names_in(section(MATHEMATICS.read_text(), "Modes"))) == set(get_args(Mode))


# --- pages that are made from the code ---


@pytest.mark.parametrize("path", PAGES)
def test_generated_pages_say_what_the_code_says(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == page(path), f"{path} is out of date: run `make docs`"


def test_generated_pages_miss_nothing() -> None:
    texts = {path: page(path) for path in PAGES}
    assert {name for name, _ in manifest_fields()} <= set(names_in(texts["docs/organiser/manifest.md"]))
    assert all(f"\n## `{name}`\n" in texts["docs/developer/events.md"] for name in EVENT_TYPES)
    command: Any = peer_command()
    assert all(f"\n## peer {name}\n" in texts["docs/reference/cli.md"] for name in command.commands)
    assert set(murmuration.__all__) <= set(names_in(texts["docs/developer/library.md"]))


# --- docs/volunteer/doctor.md ---


def test_every_finding_of_the_doctor_has_a_remedy() -> None:
    tree = ast.parse((ROOT / "peer" / "doctor" / "findings.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"]
    subjects = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)} | {"upload", "download"}
    text = section((ROOT / "docs" / "volunteer" / "doctor.md").read_text(encoding="utf-8"), "Findings and remedies")
    described = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    assert len(subjects) > 12
    assert subjects == {name.strip() for cell in described[1:] for name in cell.split(",")}


# --- commands ---


def commands_in(path: Path) -> Iterator[str]:
    """Every `peer ...` of code blocks and inline code, continuation lines joined, without comments and pipes.

    Blocks of ``text`` hold docstrings.
    """
    text = re.sub(r"^```text\n.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in code_blocks(text) for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`([^`\n]+)`", prose)
    for line in lines:
        found = re.match(r"\s*(?:\$ +)?(?:\.venv/bin/)?peer (?=[a-z-])(.*)", line)
        if found:
            yield re.split(r"\s[#|&>]", found[1])[0]


def complaints_about(line: str) -> Iterator[str]:
    """What the command line would not take. Values may be placeholders."""
    command: Any = peer_command()
    name, *arguments = shlex.split(line.replace("[", " ").replace("]", " "))
    if name == "service" and "--" in arguments:
        # Behind it stand the flags of the command that the service keeps running.
        place = arguments.index("--")
        kept = "seed" if "--seed" in arguments[:place] else "join"
        yield from complaints_about(shlex.join([kept, *arguments[place + 1 :]]))
        del arguments[place:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    if not name.startswith("-"):
        if name not in command.commands:
            yield f"peer {name} is no command"
            return
        command = command.commands[name]
        while arguments and arguments[0] in getattr(command, "commands", ()):
            command = command.commands[arguments.pop(0)]
        parameters = command.params
        known = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
        known.add("--help")
    for argument in [name, *arguments]:
        for flag in argument.split("/") if argument.startswith("--") else ():
            if flag.partition("=")[0] not in known:
                yield f"peer {name} has no {flag}"


COMMANDS = [(path, line) for path in DOCUMENTS if path != CHANGELOG for line in commands_in(path)]


def test_commands_are_found() -> None:
    assert any(line.startswith("join ") for _, line in COMMANDS)


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_commands_and_flags_exist(path: Path, line: str) -> None:
    assert not list(complaints_about(line))


@pytest.mark.parametrize("line", ["jion --run-id RUN", "join --runid RUN", "join [--max-step N]", "demo --no-dashbord"])
def test_wrong_commands_are_noticed(line: str) -> None:
    assert list(complaints_about(line))


RUNNABLE = [line for path, line in COMMANDS if not re.search(r"[\[\]|]|\.\.\.", line) and path == README]


@pytest.mark.parametrize("line", RUNNABLE)
def test_commands_of_the_readme_can_be_parsed(line: str) -> None:
    command: Any = peer_command()
    name, *arguments = spread_peers(shlex.split(line))
    if arguments:
        command.commands[name].make_context(name, arguments)


def test_every_command_is_in_the_readme() -> None:
    command: Any = peer_command()
    shown = {line.split()[0] for path, line in COMMANDS if path == README}
    assert set(command.commands) <= shown


# --- versions, links, paths ---


def test_one_version_and_one_name() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["tool"]["hatch"]["version"] == {"path": "peer/version.py"}
    assert declared["project"]["name"] == DISTRIBUTION
    newest = re.search(r"^## \[?v?(\d+\.\d+\.\d+)", CHANGELOG.read_text(), re.MULTILINE)
    assert newest, "CHANGELOG.md has no heading with a version"
    assert newest[1] == VERSION.removesuffix(".dev")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in links_in(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = path.parent / target if target else path
        assert found.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors_in(found.read_text(encoding="utf-8")), f"{link} leads to no heading"


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path != CHANGELOG], ids=lambda path: path.name)
def test_mentioned_files_exist(path: Path) -> None:
    """Paths of our own folders in inline code; the changelog calls files as they were called then."""
    folders = "|".join((*PACKAGES, "tests", "docs", "benchmarks", "examples"))
    for name in re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", path.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), f"{name} is not there"


@pytest.mark.parametrize("path", ALL_DOCUMENTS, ids=lambda path: path.name)
def test_no_path_of_one_machine(path: Path) -> None:
    found = re.findall(r"(?<![\w.~])/(?:home|root|work|Users|tmp|mnt|opt)/\S*", path.read_text(encoding="utf-8"))
    assert not found


def test_documents_are_found() -> None:
    assert {README, PROTOCOL, MATHEMATICS, ROOT / "CONTRIBUTING.md"} <= set(DOCUMENTS)
    assert any(LOG in path.parents for path in ALL_DOCUMENTS)


# --- benchmarks/README.md ---


def test_every_benchmark_has_a_row() -> None:
    folder = ROOT / "benchmarks"
    asked = set(re.findall(r"`python -m (benchmarks\.[\w.]+)", (folder / "README.md").read_text()))
    for path in sorted(set(folder.rglob("*.py")) - set(folder.rglob("__init__.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        if f"python -m {module} " in path.read_text() or path.stem.startswith("bench_"):
            assert module in asked, f"{module} has no row"

"""The documents say what the code does: messages, fields, constants, modules, commands, versions, links."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel

from averaging.codec.blocks import CODE_FORMATS
from averaging.outer.outer_step import Mode
from averaging.wire.cell_checks import CELL_KINDS
from averaging.wire.cell_messages import CellRow
from averaging.wire.messages import CellLevel, Message, Plan, RosterEntry, ShardPlan, ShardResult
from dht.admission.hello import Hello
from dht.records.signed_records import PeerRecord
from peer.cli.app import app, spread_peers
from peer.config.manifest import RunManifest
from peer.version import VERSION

ROOT = Path(__file__).parents[2]
PACKAGES = ("dht", "averaging", "peer", "dashboard")
PROTOCOL = ROOT / "docs" / "contributor" / "protocol.md"
DESIGN = ROOT / "docs" / "contributor" / "architecture.md"
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
MESSAGES: tuple[type[Any], ...] = (*(kind for kind in get_args(Message) if kind is not CellLevel), *CELL_KINDS)
BOUNDED_MODULES = (
    *("averaging.wire.checks", "averaging.wire.messages", "averaging.lanes.links", "averaging.transfer.messages"),
    *(
        "averaging.wire.cell_messages",
        "averaging.wire.cell_checks",
        "averaging.cells.formation",
        "averaging.cells.machine",
    ),
    *(
        "dht.admission.hello",
        "dht.records.signed_records",
        "dht.records.profiles",
        "dht.kademlia.storage",
        "dht.kademlia.gate",
    ),
    *("dht.admission.tickets", "dht.admission.proofs", "dht.admission.admission"),
)

HIDDEN_FOLDERS = ("node_modules", "build", "dist", "runs")
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in HIDDEN_FOLDERS for part in path.relative_to(ROOT).parts)
)


# --- reading markdown ---


def section(text: str, title: str) -> str:
    """What stands under the heading `title`, up to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert found, f"there is no heading {title!r}"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def rows(text: str) -> list[list[str]]:
    """Cells of all table rows that begin with a name in backticks."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in(text: str) -> list[str]:
    """The names in backticks at the beginning of each table row."""
    return [name for cells in rows(text) for name in re.findall(r"`([^`]+)`", cells[0])]


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def links_in(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


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


@pytest.mark.parametrize(("title", "kind"), [("hello", Hello), ("roster entry", RosterEntry), ("cell row", CellRow)])
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


CONSTANTS = {
    cells[0].strip("`"): cells[1] for cells in rows(section(PROTOCOL.read_text(), "Constants")) if "." in cells[0]
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_have_the_values_of_the_code(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert float(CONSTANTS[name]) == getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("module", BOUNDED_MODULES)
def test_no_limit_is_missing(module: str) -> None:
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [node.targets[0] if isinstance(node, ast.Assign) else node.target for node in assigned]
    limits = {target.id for target in targets if isinstance(target, ast.Name) and target.id.startswith("MAX_")}
    assert limits
    assert {f"{module}.{name}" for name in limits} <= set(CONSTANTS)


def manifest_fields(model: type[BaseModel] = RunManifest, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from manifest_fields(field.annotation, f"{name}.")
        else:
            yield f"{prefix}{name}", "required" if field.is_required() else field.default


def test_every_manifest_field_and_its_default() -> None:
    described = {cells[0].strip("`"): cells[2] for cells in rows(section(PROTOCOL.read_text(), "Manifest"))}
    in_code = {}
    for name, default in manifest_fields():
        shown = "true" if default is True else "false" if default is False else str(default)
        if default == "required":
            in_code[name] = "required"
        else:
            in_code[name] = "absent" if default is None else f"`{shown}`" if default != "" else '`""`'
    assert described == in_code


def test_every_codec() -> None:
    assert set(names_in(section(PROTOCOL.read_text(), "Codecs"))) == set(CODE_FORMATS)


# --- docs/contributor/architecture.md ---


def test_every_mode() -> None:
    assert set(names_in(section(DESIGN.read_text(), "Modes"))) == set(get_args(Mode))


# --- commands ---


def commands_in(path: Path) -> Iterator[str]:
    """Every `peer ...` of code blocks and inline code, continuation lines joined, without comments and pipes."""
    text = path.read_text(encoding="utf-8")
    lines = [line for block in code_blocks(text) for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`([^`\n]+)`", prose)
    for line in lines:
        found = re.match(r"\s*(?:\$ +)?(?:\.venv/bin/)?peer (?=[a-z-])(.*)", line)
        if found:
            yield re.split(r"\s[#|&]", found[1])[0]


def complaints_about(line: str) -> Iterator[str]:
    """What the command line would not take. Values may be placeholders."""
    command: Any = typer.main.get_command(app)
    name, *arguments = shlex.split(line.replace("[", " ").replace("]", " "))
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
    assert any(line.startswith("simulate --peers") for _, line in COMMANDS)


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_commands_and_flags_exist(path: Path, line: str) -> None:
    assert not list(complaints_about(line))


@pytest.mark.parametrize("line", ["jion --run-id RUN", "join --runid RUN", "join [--max-step N]", "demo --no-dashbord"])
def test_wrong_commands_are_noticed(line: str) -> None:
    assert list(complaints_about(line))


RUNNABLE = [line for path, line in COMMANDS if not re.search(r"[\[\]|]|\.\.\.", line) and path == README]


@pytest.mark.parametrize("line", RUNNABLE)
def test_commands_of_the_readme_can_be_parsed(line: str) -> None:
    command: Any = typer.main.get_command(app)
    name, *arguments = spread_peers(shlex.split(line))
    if arguments:
        command.commands[name].make_context(name, arguments)


def test_every_command_is_in_the_readme() -> None:
    command: Any = typer.main.get_command(app)
    shown = {line.split()[0] for path, line in COMMANDS if path == README}
    assert set(command.commands) <= shown


# --- versions, links, paths ---


def test_one_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == VERSION
    newest = re.search(r"^## \[?v?(\d+\.\d+\.\d+)", CHANGELOG.read_text(), re.MULTILINE)
    assert newest, "CHANGELOG.md has no heading with a version"
    assert newest[1] == VERSION


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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_path_of_one_machine(path: Path) -> None:
    found = re.findall(r"(?<![\w.~])/(?:home|root|work|Users|tmp|mnt|opt)/\S*", path.read_text(encoding="utf-8"))
    assert not found


def test_documents_are_found() -> None:
    assert {README, PROTOCOL, DESIGN, ROOT / "CONTRIBUTING.md"} <= set(DOCUMENTS)


# --- benchmarks/README.md ---


def test_every_benchmark_is_listed_with_a_section_of_its_own() -> None:
    folder = ROOT / "benchmarks"
    text = (folder / "README.md").read_text()
    table = {cells[0]: cells[2] for cells in rows(text)}
    for path in sorted(set(folder.rglob("*.py")) - set(folder.rglob("__init__.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        if f"python -m {module} " in path.read_text() or path.stem.startswith("bench_"):
            assert f"`python -m {module}`" in table, f"{module} has no row"
            title = table[f"`python -m {module}`"].partition("[")[2].partition("]")[0]
            assert section(text, title).strip(), f"{module} has no section"
        else:
            assert f"`{path.relative_to(folder)}`" in text, f"{path.name} is not named"

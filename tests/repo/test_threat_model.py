"""The threat model has a row for everything that somebody else can set, and its rules have tests that exist."""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from averaging.wire.messages import RosterEntry, ShardPlan, ShardResult, SignedInput
from dashboard.server.api_queries import PREFIX
from dashboard.server.api_routes import ENDPOINTS
from dht.admission.handshake_frames import Hello
from dht.records.peer_record import PeerRecord
from dht.records.profiles import Profile
from dht.records.signed_manifest import RunRecord
from peer.config.access_sections import ChangeSection
from peer.config.allowed_files import FileSection
from tests.fuzz.targets import all_targets
from tests.kit.documents import MESSAGES, ROOT, manifest_fields, names_in, rows, section

TEXT = (ROOT / "docs" / "contributor" / "threat-model.md").read_text(encoding="utf-8")
COMMON = names_in(section(TEXT, "Fields of every message").partition("\n### ")[0])


def fields_of(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def sections_with_fields() -> list[tuple[str, list[str]]]:
    """Title of a section, and the names that its rows must have between them."""
    found = [(f"`{message.KIND}`", [name for name in fields_of(message) if name not in COMMON]) for message in MESSAGES]
    found += [
        ("`roster entry`", fields_of(RosterEntry)),
        ("`planned shard`", fields_of(ShardPlan)),
        ("`shard result`", fields_of(ShardResult)),
        ("`signed input`", fields_of(SignedInput)),
        ("`hello`", fields_of(Hello)),
        ("Peer record", [name for name in fields_of(PeerRecord) if name != "peer_id"]),
        ("Run record", fields_of(RunRecord)),
        ("Profile", fields_of(Profile)),
        ("Files of a run", list(FileSection.model_fields)),
        ("Changes of a live run", list(ChangeSection.model_fields)),
        ("State requests", requests_of("averaging/transfer/server.py")),
        ("Probes", requests_of("peer/network/reachability/probe_server.py")),
        ("Bytes and files that are read", sorted(all_targets())),
        ("Routes of the page", sorted(routes())),
    ]
    return found


def requests_of(module: str) -> list[str]:
    """The kinds of request that a server matches: the texts that its patterns begin with."""
    kinds = []
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.MatchSequence) and node.patterns:
            first = node.patterns[0]
            first = first.pattern if isinstance(first, ast.MatchAs) and first.pattern is not None else first
            options = first.patterns if isinstance(first, ast.MatchOr) else [first]
            kinds += [option.value.value for option in options if isinstance(option, ast.MatchValue)]  # type: ignore[attr-defined]
    return sorted(set(kinds))


def routes() -> set[str]:
    """Every path that the page answers; those of the API come from its table."""
    found = {PREFIX + endpoint.path for endpoint in ENDPOINTS}
    for path in (ROOT / "dashboard").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_get":
                argument = node.args[0]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.add(argument.value)
    return found


@pytest.mark.parametrize(("title", "expected"), sections_with_fields(), ids=lambda value: str(value)[:40])
def test_everything_that_others_can_set_has_a_row(title: str, expected: list[str]) -> None:
    assert sorted(names_in(section(TEXT, title))) == sorted(expected)


def test_rows_of_the_manifest_are_of_fields_that_exist() -> None:
    assert set(names_in(section(TEXT, "Fields of the manifest"))) <= {name for name, _ in manifest_fields()}


def test_a_field_of_every_message_is_in_some_message() -> None:
    used = {name for message in MESSAGES for name in fields_of(message)}
    used |= set(fields_of(ShardResult))
    assert set(COMMON) <= used
    assert len(set(COMMON)) == len(COMMON)


RULES = {cells[0].strip("`"): cells for cells in rows(section(TEXT, "Rules"))}


def tables_with_rules() -> list[tuple[str, str]]:
    """(what, cell) of every table cell that names rules: the last of each row of an actor or a field."""
    found = []
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4 and cells[1] != "what it says":
            found.append((cells[0], cells[3]))
    actors = [line.strip("|").split("|") for line in section(TEXT, "Actors").splitlines() if line.startswith("| ")][1:]
    found += [(cells[0].strip(), cells[2].strip()) for cells in actors]
    return found


def test_every_row_names_rules_that_exist_and_every_rule_is_used() -> None:
    named = set()
    for what, cell in tables_with_rules():
        rules = re.findall(r"`([^`]+)`", cell)
        assert rules, f"the row of {what} names no rule"
        assert set(rules) <= set(RULES), f"the row of {what} names {set(rules) - set(RULES)}"
        named |= set(rules)
    for paragraph in re.findall(r"^No field of its own\..*$", TEXT, re.MULTILINE):
        named |= set(re.findall(r"`([a-z-]+)`", paragraph))
    assert set(RULES) <= named


@cache
def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_")}


NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test(rule: str) -> None:
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", RULES[rule][2]), f"rule {rule} names no test"


@pytest.mark.parametrize(("path", "name"), NAMED_TESTS)
def test_named_tests_exist(path: str, name: str) -> None:
    assert name in names_of_tests(ROOT / path)

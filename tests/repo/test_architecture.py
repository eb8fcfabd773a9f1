"""The rules of the layout hold, and each of them is shown a source that breaks it.

A file that does not exist yet breaks no rule. `room_table.py` has the plan, `layout_rules.py` the rules.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.repo.layout_rules import (
    FOLDERS,
    RULES,
    Source,
    all_imports,
    cycles,
    files_of_others,
    is_in,
    libraries,
    maps,
    mirror,
    names,
    no_hidden_imports,
    one_meaning,
    own_attributes,
    own_processes,
    purity,
    quick_start,
    read_sources,
    room_of,
    room_of_import,
    rooms,
    safe_loading,
    tensors_and_bytes_apart,
    torch_where_tensors_are_trained,
)
from tests.repo.room_table import LIBRARY_OBJECTS, OWN_FILES, PACKAGES, PURE_FILES, ROOMS, TWO_MEANINGS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Sequence[Source]], Iterator[str]]) -> None:
    complaints = sorted(set(rule(read_sources(FOLDERS))))
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(complaints)


def test_sources_are_found() -> None:
    modules = {source.module for source in read_sources(FOLDERS)}
    assert {"dht", "dht.records.peer_record", "averaging", "peer", "tests.repo.test_architecture"} <= modules
    assert set(ROOMS) - {"dashboard.web"} <= modules, "every room has an __init__.py, or is a file"
    assert {*PURE_FILES, *OWN_FILES, *LIBRARY_OBJECTS} <= modules


def test_no_room_stands_on_one_above_it() -> None:
    """So the table itself has no cycle."""
    rows = list(ROOMS)
    for room, (allowed, _, _) in ROOMS.items():
        for name in allowed.split():
            start = name.removesuffix(".*")
            assert any(is_in(row, start) for row in rows[: rows.index(room)]), f"{room} may import {name}: not above it"


def test_the_table_allows_nothing_that_no_file_needs() -> None:
    sources = read_sources(PACKAGES)
    modules = {source.module for source in sources}
    used = defaultdict(set)
    for source in sources:
        for name in all_imports(source):
            used[room_of(source.module)] |= {name.partition(".")[0], room_of_import(name, modules)}
    spare = {
        (room, name)
        for room, (allowed, _, known) in ROOMS.items()
        for name in (*allowed.split(), *known.split())
        if not name.endswith(".*") and name not in used[room]
    }
    assert spare == set()


def test_names_with_two_meanings_are_listed_only_as_long_as_there_are_two() -> None:
    homes = Counter(
        node.name for source in read_sources(PACKAGES) for node in source.tree.body if isinstance(node, ast.ClassDef)
    )
    assert {name for name in TWO_MEANINGS if homes[name] < 2} == set()


BROKEN: list[tuple[Callable[[Sequence[Source]], Iterator[str]], dict[str, str]]] = [
    (rooms, {"dht.x": "import averaging.wire"}),
    (rooms, {"averaging.rounds.x": "def f():\n    from peer.network.node import node"}),
    (rooms, {"averaging.rounds.x": "from averaging.exchange.exchange import Exchange"}),
    (rooms, {"peer.network.node.x": "from dashboard.app import serve"}),
    (rooms, {"peer.network.node.x": "from peer.trainer.loop.trainer import Trainer"}),
    (rooms, {"dashboard.page.x": "from peer.network.node.node import Node"}),
    (rooms, {"dashboard.page.x": "from peer import __main__"}),
    (rooms, {"dht.x": "from tests.kit import host_contract"}),
    (rooms, {"dht.x": "from ..averaging import arrays"}),
    (rooms, {"dht.attic.x": ""}),
    (libraries, {"dht.simulated.store": "def f():\n    from hivemind.p2p import P2P"}),
    (libraries, {"dht.p2pd.host": "import trio"}),
    (libraries, {"peer.panel.x": "import aiohttp.web"}),
    (libraries, {"peer.network.node.x": "import torch"}),
    (cycles, {"dht.a": "from dht.b import f", "dht.b": "import dht.c", "dht.c": "from dht import a"}),
    (cycles, {"dht.a": "if True:\n    from dht.b import f", "dht.b": "class A:\n    import dht.a"}),
    (maps, {"dht.records": "", "dht.records.a": ""}),
    (maps, {"dht.records": '"""Records."""', "dht.records.a": ""}),
    (maps, {"dht.records": '"""Records.\n\n    a.py\n"""', "dht.records.a": ""}),
    (maps, {"dht.records": '"""Records.\n\n    a.py  one\n    b.py  two\n"""', "dht.records.a": ""}),
    (maps, {"dht.records": '"""Records.\n\n    a.py  one\n    a.py  one\n"""', "dht.records.a": ""}),
    (maps, {"dht.records": '"""Records.\n\n    a.py  one\n"""\nimport dht.records.a', "dht.records.a": ""}),
    (
        maps,
        {
            "dht.records": '"""Records.\n\n    a.py  one\n    b.py  two\n"""',
            "dht.records.a": "from dht.records.b import f",
            "dht.records.b": "",
        },
    ),
    (maps, {"peer.network": '"""The network process."""', "peer.network.node.node": ""}),
    (purity, {"dht.records.x": "from time import time"}),
    (purity, {"averaging.rounds.round_machine": "async def f(): ..."}),
    (purity, {"averaging.outer.outer_step": "def f():\n    return open('x')"}),
    (purity, {"dashboard.observe.dashboard_state": "import os\nHOME = os.environ['HOME']"}),
    (tensors_and_bytes_apart, {"averaging.wire.frames": "def f():\n    import torch"}),
    (tensors_and_bytes_apart, {"averaging.wire.x": "from averaging.a import f", "averaging.a": "import numpy"}),
    (tensors_and_bytes_apart, {"averaging.wire.frames": "from averaging.a import f", "averaging.a": "import torch.nn"}),
    (tensors_and_bytes_apart, {"averaging.codec.codec": "from msgpack import packb"}),
    (quick_start, {"peer.cli.app": "from peer.x import Node", "peer.x": "import torch", "peer": ""}),
    (quick_start, {"peer.cli.app": "from peer import x", "peer.x": "import hivemind", "peer": ""}),
    (quick_start, {"peer.cli.app": "", "peer": "import aiohttp"}),
    (quick_start, {"peer.cli.app": "from peer.join.x import f", "peer.join.x": "", "peer.join": "import numpy"}),
    (torch_where_tensors_are_trained, {"peer.network.node.x": "from peer.a import f", "peer.a": "import torch.nn"}),
    (torch_where_tensors_are_trained, {"peer.join.seed": "import torch"}),
    (no_hidden_imports, {"dht.x": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dht.ground.host"}),
    (no_hidden_imports, {"dht.x": "import typing\nif typing.TYPE_CHECKING:\n    import dht.ground.host"}),
    (safe_loading, {"peer.x": "import pickle"}),
    (safe_loading, {"peer.x": "eval('1')"}),
    (safe_loading, {"peer.x": "import torch\ntorch.load('f')"}),
    (safe_loading, {"peer.x": "import torch\ntorch.load('f', weights_only=False)"}),
    (safe_loading, {"peer.x": "import numpy\nnumpy.load('f', allow_pickle=True)"}),
    (own_processes, {"peer.x": "import sys\nCOMMAND = [sys.executable, '-m', 'peer']"}),
    (own_processes, {"dht.x": "def f():\n    from multiprocessing import Process"}),
    (files_of_others, {"peer.x": "from pathlib import Path\nPath('x').read_bytes()"}),
    (files_of_others, {"dashboard.x": "def f(path):\n    return path.open('rb')"}),
    (files_of_others, {"dht.x": "open('x')"}),
    (own_attributes, {"dht.x": "def f(exchange, links):\n    exchange.links = links"}),
    (own_attributes, {"peer.x": "class A:\n    def __init__(self, b):\n        self.b = b\n        self.b.limit = 3"}),
    (own_attributes, {"peer.x": "class A:\n    def f(self):\n        self.on_end = None\ndef f(a):\n    a.on_end = f"}),
    (own_attributes, {"peer.x": "def f(a):\n    a.count += 1"}),
    (own_attributes, {"peer.x": "def f(a, b):\n    a.one, (b.two, *c) = 1, (2, 3)"}),
    (own_attributes, {"peer.x": "def f(a):\n    del a.count"}),
    (names, {"averaging.utils": ""}),
    (one_meaning, {"dht.a": "class Line: ...", "peer.panel.b": "class Line: ..."}),
    (mirror, {"tests.dht.attic.test_x": ""}),
]


@pytest.mark.parametrize(("rule", "modules"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_rules_can_fail(rule: Callable[[Sequence[Source]], Iterator[str]], modules: dict[str, str]) -> None:
    assert list(rule([Source(module, text) for module, text in modules.items()]))


def test_rules_allow_what_is_right() -> None:
    modules = {
        "dht.a": "from dht.b import f\nimport os, time, hashlib",
        "dht.b": "def f():\n    import dht.a",
        "dht.kademlia.dht_store": "from hivemind.dht import DHTNode\nfrom dht.records.profiles import Profile",
        "dht.records": '"""Records.\n\n    profiles.py    one\n    swarm_view.py  two\n"""',
        "dht.records.profiles": "from dht.ground.fields import text",
        "dht.records.swarm_view": "from dht.records.profiles import Profile",
        "averaging.wire.frames": "import msgpack\nfrom averaging.wire import messages",
        "averaging.wire.messages": "import dht.ground.errors",
        "averaging.codec.codec": "import numpy\nfrom averaging.codec.blocks import EncodedBlocks",
        "averaging.codec.blocks": "import dht.ground.errors",
        "peer.cli.status_and_dashboard": "import typer\ndef run():\n    from dashboard.app import serve",
        "dashboard.app": "import aiohttp\nfrom dashboard.server.routes import routes",
        "peer.network.node.node": "import numpy\nfrom peer.mailbox import mailbox",
        "peer.mailbox.mailbox": "import numpy",
        "peer.trainer.model.gpt": "import torch\ntorch.load('f', weights_only=True)\nmodel.eval()",
        "dht.simulated.lines": (
            "class Line:\n    is_up: bool\n    def copy(self):\n        one = Line()\n        one._side = self._side\n"
            "def f(line):\n    line.is_up = False"
        ),
        "peer.network.node.x": "def f(mailbox):\n    mailbox.network.ready = 1\n    mailbox.states[0].version = 2",
        "tests.dht.records.test_profiles": "import dht.records.profiles",
        "tests.peer.trainer.test_gpt": "",
    }
    sources = [Source(module, text) for module, text in modules.items()]
    for rule in RULES:
        assert not list(rule(sources)), rule.__name__


def test_only_one_module_makes_consoles() -> None:
    """So nothing that others wrote reaches a terminal as markup or with control characters."""
    makers = [
        source.module
        for source in read_sources(("dht", "averaging", "peer", "dashboard"))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom)
        and node.module in ("rich", "rich.console", "rich.markup")
        and any(alias.name in ("Console", "print", "escape", "get_console") for alias in node.names)
    ]
    assert makers == ["peer.console.plain_console"]

"""The rules of the layout, checked on the syntax trees. A file that does not exist yet breaks no rule.

Each rule is a function from sources to complaints; at the end every rule is shown a source that breaks it.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("dht", "averaging", "peer", "dashboard")
FOLDERS = (*PACKAGES, "tests", "examples", "benchmarks")
MAX_LINES = 500
PURE = (
    *(
        "dht.fields",
        "dht.records.signed_records",
        "dht.records.profiles",
        "dht.records.swarm_view",
        "dht.admission.hello",
        "dht.records.lineages",
    ),
    *("dht.admission.tickets", "dht.admission.proofs", "dht.admission.admission"),
    *(
        "averaging.outer.layout",
        "averaging.codec",
        "averaging.codec.blocks",
        "averaging.wire.frames",
        "averaging.signing.chains",
    ),
    *(
        "averaging.wire.checks",
        "averaging.wire.cell_messages",
        "averaging.wire.cell_checks",
        "averaging.cells.formation",
    ),
    *("averaging.cells.seat", "averaging.cells.top_leader", "averaging.cells.machine"),
    *(
        "averaging.outer.outer_step",
        "averaging.outer.combine",
        "averaging.outer.schedule",
        "averaging.rounds.machine",
        "averaging.trust.blame",
    ),
    *("averaging.outer.contributions", "averaging.trust.failed_commits", "averaging.rounds.later_versions"),
    "averaging.trust.mean_checks",
    *(
        "averaging.signing.notary",
        "averaging.signing.credit",
        "averaging.signing.receipt_file",
        "averaging.signing.commit_log",
        "dashboard.credit.credit",
    ),
    "dashboard.observe.state",
    *("dashboard.facts", "dashboard.history.rows", "dashboard.credit.known_versions", "dashboard.observe.lanes"),
    *(
        "dashboard.credit.counting",
        "dashboard.credit.ledger",
        "dashboard.history.trend",
        "dashboard.credit.commit_traffic",
    ),
    *("peer.network.node.round_clock", "peer.network.membership.tally"),
    *(
        "peer.doctor.facts",
        "peer.doctor.findings",
        "peer.doctor.prediction",
        "peer.network.reachability.probe_messages",
    ),
    *(
        "peer.plan.planning",
        "peer.plan.memory",
        "peer.plan.round_traffic",
        "peer.plan.utilisation",
        "peer.plan.bandwidth_table",
    ),
)
TRAINS_NOTHING = (
    "peer.network.process.main",
    "peer.network.process.network_side",
    "peer.join.seed",
    "peer.observe.entry",
    "peer.plan.planning",
)
SHOWS_THE_DASHBOARD = "peer.cli.watching"
MAY_IMPORT = {
    "dht": ("dht",),
    "averaging": ("dht", "averaging"),
    "peer": ("dht", "averaging", "peer"),
    "dashboard": ("dht", "averaging", "peer.events.log", "peer.config.manifest", "peer.quantities", "dashboard"),
}


@dataclass(frozen=True)
class Source:
    module: str
    """Dotted name, e.g. ``dht.records.signed_records``; a package's ``__init__`` is the package."""
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def read_sources(folders: Sequence[str]) -> list[Source]:
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append(Source(".".join(parts).removesuffix(".__init__"), path.read_text(encoding="utf-8")))
    return found


def imports_in(nodes: Iterator[ast.AST] | Sequence[ast.AST], module: str) -> list[str]:
    """Dotted names of what is imported; ``from a import b`` gives ``a.b`` (a module or a name in one)."""
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                start = ".".join([*module.split(".")[: -node.level], *([start] if start else [])])
            names += [f"{start}.{alias.name}" for alias in node.names]
    return names


def all_imports(source: Source) -> list[str]:
    return imports_in(list(ast.walk(source.tree)), source.module)


def imports_when_loaded(source: Source) -> list[str]:
    """Without those inside functions."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [source.tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return imports_in(found, source.module)


def is_in(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def own_modules(names: Sequence[str], sources: Sequence[Source]) -> set[str]:
    """Those of our modules that importing `names` loads."""
    known = {source.module for source in sources}
    return {
        candidate for name in names for candidate in (name, name.rpartition(".")[0]) if candidate in known and candidate
    }


# --- the rules ---


def layers(sources: Sequence[Source]) -> Iterator[str]:
    """dht < averaging < peer; dashboard reads them; only the command line knows the dashboard."""
    for source in sources:
        if source.package not in MAY_IMPORT:
            continue
        for name in all_imports(source):
            if not any(is_in(name, package) for package in (*PACKAGES, "tests")):
                continue
            allowed = MAY_IMPORT[source.package] + (("dashboard",) if source.module == SHOWS_THE_DASHBOARD else ())
            if not any(is_in(name, module) for module in allowed):
                yield f"{source.module} imports {name}; it may import {', '.join(allowed)}"


def cycles(sources: Sequence[Source]) -> Iterator[str]:
    """No module needs itself to be loaded."""
    graph = {
        source.module: own_modules(imports_when_loaded(source), sources) - {source.module, source.package}
        for source in sources
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"modules import each other: {' <- '.join(error.args[1])}"


def adapters(sources: Sequence[Source]) -> Iterator[str]:
    """Each big dependency has its rooms."""
    for source in sources:
        if source.package not in PACKAGES:
            continue
        for name in all_imports(source):
            library = name.partition(".")[0]
            allowed = {
                "hivemind": source.module == "dht.p2pd.host" or source.module.startswith("dht.hivemind_"),
                "libp2p": source.module.startswith("dht.libp2p_"),
                "noise": source.module.startswith("dht.libp2p_"),
                "trio": False,
                "aiohttp": source.package == "dashboard",
            }.get(library, True)
            if not allowed:
                yield f"{source.module} imports {name}; {library} stays behind its adapter"


def purity(sources: Sequence[Source]) -> Iterator[str]:
    """Pure modules wait for nothing, and get time and randomness as arguments."""
    waiting = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    banned = ("asyncio", "socket", "time", "random", "secrets", "logging", "os.environ", "os.getenv", "datetime")
    for source in sources:
        if source.module not in PURE:
            continue
        for name in all_imports(source):
            if any(is_in(name, module) for module in banned):
                yield f"{source.module} imports {name}; pure modules do not"
        for node in ast.walk(source.tree):
            if isinstance(node, waiting):
                yield f"{source.module}:{node.lineno} waits; pure modules do not"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "input"):
                yield f"{source.module}:{node.lineno} calls {node.func.id}; pure modules do not"
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                yield f"{source.module}:{node.lineno} reads the environment; pure modules do not"


def tensors_and_bytes_apart(sources: Sequence[Source]) -> Iterator[str]:
    """Frames know no tensors, tensors know no frames; they meet in `averaging.codec.blocks`, which knows neither."""
    for module, banned in (
        ("averaging.wire.frames", ("torch", "numpy")),
        ("averaging.codec.blocks", ("torch", "msgpack")),
        ("averaging.codec", ("msgpack",)),
    ):
        for name in loaded_by(module, sources):
            if any(is_in(name, library) for library in banned):
                yield f"{module} loads {name}, itself or through what it imports"
    for source in sources:
        if source.module == "averaging.wire.frames" and any(is_in(name, "torch") for name in all_imports(source)):
            yield "averaging.wire.frames imports torch"
        if source.module == "averaging.codec" and any(is_in(name, "msgpack") for name in all_imports(source)):
            yield "averaging.codec imports msgpack"


def quick_start(sources: Sequence[Source]) -> Iterator[str]:
    """`peer --help` loads nothing heavy: commands import what they need."""
    for name in loaded_by("peer.cli.app", sources):
        if name.partition(".")[0] in ("torch", "hivemind", "aiohttp", "numpy", "safetensors"):
            yield f"loading peer.cli.app loads {name}; import it inside the command"


def torch_where_tensors_are_trained(sources: Sequence[Source]) -> Iterator[str]:
    """torch costs a process 190 MB and most of a second: who trains nothing takes numpy's arrays."""
    for module in TRAINS_NOTHING:
        for name in loaded_by(module, sources):
            if is_in(name, "torch"):
                yield f"{module} loads {name}, itself or through what it imports"


def loaded_by(module: str, sources: Sequence[Source]) -> list[str]:
    """Everything that importing `module` imports, followed through our own modules."""
    by_name = {source.module: source for source in sources}
    waiting, seen, found = [module, module.partition(".")[0]], set(), []
    while waiting:
        current = waiting.pop()
        if current in seen or current not in by_name:
            continue
        seen.add(current)
        names = imports_when_loaded(by_name[current])
        found += names
        own = own_modules(names, sources)
        waiting += [*own, *(name.partition(".")[0] for name in own)]
    return sorted(set(found))


def no_hidden_imports(sources: Sequence[Source]) -> Iterator[str]:
    """An import that only the type checker sees hides a cycle."""
    for source in sources:
        for node in ast.walk(source.tree):
            is_name = isinstance(node, ast.Name) and node.id == "TYPE_CHECKING"
            if is_name or (isinstance(node, ast.Attribute) and node.attr == "TYPE_CHECKING"):
                yield f"{source.module} uses TYPE_CHECKING; break the cycle instead"


def safe_loading(sources: Sequence[Source]) -> Iterator[str]:
    """Nothing that runs code hidden in bytes."""
    for source in sources:
        if source.package == "tests":
            continue
        for name in all_imports(source):
            if name.partition(".")[0] in ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"):
                yield f"{source.module} imports {name}; bytes may come from a peer"
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in ("eval", "exec", "builtins.eval", "builtins.exec"):
                yield f"{source.module}:{node.lineno} calls {called}"
            if called.endswith("torch.load") and given.get("weights_only") != "True":
                yield f"{source.module}:{node.lineno} calls torch.load without weights_only=True"
            if given.get("allow_pickle", "False") != "False":
                yield f"{source.module}:{node.lineno} passes allow_pickle"


def own_processes(sources: Sequence[Source]) -> Iterator[str]:
    """What we start takes no code from the working folder."""
    for source in sources:
        if source.package not in PACKAGES or source.module == "peer.import_path":
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable":
                yield f"{source.module}:{node.lineno} starts Python itself; use peer.import_path.python_command"
            # That one looks whether locks can be made, and starts nothing.
            is_free = source.module != "dht.kademlia.lazy_hivemind"
            if (
                is_free
                and isinstance(node, ast.Import | ast.ImportFrom)
                and any(is_in(name, "multiprocessing") for name in imports_in([node], source.module))
            ):
                yield f"{source.module}:{node.lineno} imports multiprocessing, which starts Python itself"


OWN_FILES = (
    *("dht.p2pd.congestion_control", "peer.config.least_memory"),  # of the kernel
    *("averaging.codec.build_kernels", "dashboard.page.assets", "dashboard.web.build"),  # of this software
    *("dht.regular_files", "peer.demo.demo"),
)


def files_of_others(sources: Sequence[Source]) -> Iterator[str]:
    """A file that somebody may have put there is opened without a wait, and only if it is one."""
    for source in sources:
        if source.package not in PACKAGES or source.module in OWN_FILES:
            continue
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            modes = [part.value for part in node.args if isinstance(part, ast.Constant)]
            reads = any(isinstance(mode, str) and mode in ("r", "rb", "rt") for mode in modes)
            is_plain = isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords
            if name in ("read_text", "read_bytes") or (name == "open" and (reads or is_plain)):
                yield f"{source.module}:{node.lineno} calls {name}; use dht.regular_files"


def size(sources: Sequence[Source]) -> Iterator[str]:
    """A file of 500 lines holds more than one concept."""
    for source in sources:
        num_lines = source.text.count("\n")
        if num_lines > MAX_LINES:
            yield f"{source.module} has {num_lines} lines; at most {MAX_LINES}: split it by concept"


def names(sources: Sequence[Source]) -> Iterator[str]:
    """A file is named after what it is about."""
    for source in sources:
        if source.module.rpartition(".")[2] in ("utils", "util", "common", "helpers", "helper", "base", "misc"):
            yield f"{source.module} says nothing about its content; name it after its concept"


RULES: list[Callable[[Sequence[Source]], Iterator[str]]] = [
    layers,
    cycles,
    adapters,
    purity,
    tensors_and_bytes_apart,
    quick_start,
    torch_where_tensors_are_trained,
    no_hidden_imports,
    safe_loading,
    own_processes,
    files_of_others,
    size,
    names,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Sequence[Source]], Iterator[str]]) -> None:
    complaints = sorted(set(rule(read_sources(FOLDERS))))
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(complaints)


def test_sources_are_found() -> None:
    modules = {source.module for source in read_sources(FOLDERS)}
    assert {"dht", "dht.records.signed_records", "averaging", "peer", "tests.repo.test_architecture"} <= modules


BROKEN: list[tuple[Callable[[Sequence[Source]], Iterator[str]], dict[str, str]]] = [
    (layers, {"dht.x": "import averaging.wire.frames"}),
    (layers, {"averaging.x": "def f():\n    from peer import node"}),
    (layers, {"peer.network.node.node": "from dashboard.app import serve"}),
    (layers, {"dashboard.x": "from peer.network.node.node import Node"}),
    (layers, {"dht.x": "from tests import host_contract"}),
    (layers, {"dht.x": "from ..averaging import wire"}),
    (cycles, {"dht.a": "from dht.b import f", "dht.b": "import dht.c", "dht.c": "from dht import a"}),
    (cycles, {"dht.a": "if True:\n    from dht.b import f", "dht.b": "class A:\n    import dht.a"}),
    (adapters, {"dht.store": "def f():\n    from hivemind.p2p import P2P"}),
    (adapters, {"dht.p2pd.host": "import trio"}),
    (adapters, {"peer.x": "import aiohttp.web"}),
    (purity, {"dht.records.swarm_view": "from time import time"}),
    (purity, {"averaging.rounds.machine": "async def f(): ..."}),
    (purity, {"averaging.outer.outer_step": "def f():\n    return open('x')"}),
    (purity, {"dashboard.observe.state": "import os\nHOME = os.environ['HOME']"}),
    (tensors_and_bytes_apart, {"averaging.wire.frames": "def f():\n    import torch"}),
    (tensors_and_bytes_apart, {"averaging.wire.frames": "from averaging.a import f", "averaging.a": "import torch.nn"}),
    (tensors_and_bytes_apart, {"averaging.codec": "from msgpack import packb"}),
    (
        quick_start,
        {
            "peer.cli.app": "from peer.network.node.node import Node",
            "peer.network.node.node": "import torch",
            "peer": "",
        },
    ),
    (quick_start, {"peer.cli.app": "from peer import node", "peer.network.node.node": "import hivemind", "peer": ""}),
    (quick_start, {"peer.cli.app": "", "peer": "import aiohttp"}),
    (
        torch_where_tensors_are_trained,
        {"peer.network.process.network_side": "from peer.a import f", "peer.a": "import torch.nn"},
    ),
    (no_hidden_imports, {"dht.x": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dht.host"}),
    (no_hidden_imports, {"dht.x": "import typing\nif typing.TYPE_CHECKING:\n    import dht.host"}),
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
    (size, {"dht.x": "\n" * 501}),
    (names, {"averaging.utils": ""}),
]


@pytest.mark.parametrize(("rule", "modules"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_rules_can_fail(rule: Callable[[Sequence[Source]], Iterator[str]], modules: dict[str, str]) -> None:
    assert list(rule([Source(module, text) for module, text in modules.items()]))


def test_rules_allow_what_is_right() -> None:
    modules = {
        "dht.a": "from dht.b import f\nimport os, time, hashlib",
        "dht.b": "def f():\n    import dht.a",
        "dht.kademlia.store": "from hivemind.dht import DHTNode",
        "dht.records.swarm_view": "from dht.records.signed_records import PeerRecord",
        "averaging.wire.frames": "import msgpack\nfrom averaging.codec.blocks import EncodedBlocks",
        "averaging.codec": "import torch\nfrom averaging.codec.blocks import EncodedBlocks",
        "averaging.codec.blocks": "import dht.errors",
        "peer.cli.watching": "import typer\ndef run():\n    from dashboard.app import serve\n    import torch",
        "dashboard.app": "import aiohttp\nfrom peer.events.log import Event",
        "peer.network.process.network_side": "import numpy\nfrom peer import mailbox",
        "peer.mailbox.mailbox": "import numpy\ndef f():\n    import torch",
        "peer.trainer.model.gpt": "import torch\ntorch.load('f', weights_only=True)\nmodel.eval()",
    }
    sources = [Source(module, text) for module, text in modules.items()]
    for rule in RULES:
        assert not list(rule(sources)), rule.__name__

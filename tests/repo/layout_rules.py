"""The rules of the layout: functions from sources to complaints, on syntax trees. The table is `room_table.py`."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.repo.room_table import (
    FRONT,
    GROUND,
    LIBRARY_OBJECTS,
    OWN_FILES,
    PACKAGES,
    PURE_FILES,
    ROOMS,
    SHARED_MEMORY,
    TRAINS,
    TRAINS_NOTHING,
    TWO_MEANINGS,
)

ROOT = Path(__file__).parents[2]
FOLDERS = (*PACKAGES, "tests", "examples", "benchmarks")


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@dataclass(frozen=True)
class Source:
    module: str
    """Dotted name, e.g. ``dht.records.profiles``; a package's ``__init__`` is the package."""
    text: str

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def read_sources(folders: Sequence[str]) -> list[Source]:
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "node_modules" not in parts:
                found.append(Source(".".join(parts).removesuffix(".__init__"), path.read_text(encoding="utf-8")))
    return found


def room_of(module: str) -> str:
    """The row of the table for a module: its own, or that of its folder."""
    return module if module in ROOMS else module.rpartition(".")[0]


def allowed_rooms(room: str) -> list[str]:
    """`x.*` written out."""
    above = list(ROOMS)[: list(ROOMS).index(room)]
    found = [GROUND]
    for name in ROOMS[room][0].split():
        start = name.removesuffix(".*")
        found += [one for one in above if is_in(one, start)] if name.endswith(".*") else [name]
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


def room_of_import(name: str, modules: set[str]) -> str:
    """Which row an imported dotted name belongs to; it may be a module, or a name in one."""
    module = name if name in modules or name in ROOMS else name.rpartition(".")[0]
    return room_of(module)


# --- the rules ---


def rooms(sources: Sequence[Source]) -> Iterator[str]:
    """A room imports what its row in the table allows."""
    modules = {source.module for source in sources}
    for source in sources:
        if source.package not in PACKAGES:
            continue
        room = room_of(source.module)
        if room not in ROOMS:
            yield f"{source.module} is in no room of the table; add a row for {room}"
            continue
        allowed = allowed_rooms(room)
        for name in all_imports(source):
            if not any(is_in(name, folder) for folder in FOLDERS):
                continue
            wanted = room_of_import(name, modules)
            if wanted != room and wanted not in allowed:
                yield f"{source.module} imports {name}, of room {wanted}; {room} may import {' '.join(allowed)}"


def libraries(sources: Sequence[Source]) -> Iterator[str]:
    """Each library has its rooms."""
    for source in sources:
        room = room_of(source.module)
        if source.package not in PACKAGES or room not in ROOMS:
            continue
        for name in all_imports(source):
            library = name.partition(".")[0]
            if library not in sys.stdlib_module_names and library not in (*FOLDERS, *ROOMS[room][2].split()):
                yield f"{source.module} imports {name}; {library} is no library of {room}"


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


def maps(sources: Sequence[Source]) -> Iterator[str]:
    """A room's docstring has one line per file, in the order in which they need each other, and nothing follows it."""
    by_name = {source.module: source for source in sources}
    for room in sources:
        inside = [source.module for source in sources if source.module.startswith(f"{room.module}.")]
        if not inside or not any(is_in(room.module, top) for top in (*PACKAGES, "tests.kit")):
            continue
        text = ast.get_docstring(room.tree, clean=False)
        if not text or (len(room.tree.body) != 1 and room.module != FRONT):
            yield f"{room.module} holds something else than a docstring that says what is in the room"
            continue
        lines = [line.split() for line in text.splitlines() if line.startswith("    ")]
        if room.module == FRONT:  # it shows its use too
            lines = [line for line in lines if line[0].endswith((".py", "/"))]
        names = [module.removeprefix(f"{room.module}.").partition(".") for module in inside]
        folders = {f"{first}/" for first, dot, _ in names if dot}
        files = {f"{first}.py" for first, dot, _ in names if not dot and f"{first}/" not in folders}
        for name, number in Counter(line[0] for line in lines).items():
            if number > 1 or name not in files | folders:
                yield f"{room.module} describes {name}, which is not there or is there twice"
        for name in sorted(files | folders - {line[0] for line in lines if len(line) > 1}):
            if name not in [line[0] for line in lines if len(line) > 1]:
                yield f"{room.module} says nothing about {name}"
        seen = {room.module}
        for line in lines:
            module = f"{room.module}.{line[0].removesuffix('.py')}"
            seen.add(module)
            if line[0] in files:
                needed = own_modules(imports_when_loaded(by_name[module]), sources)
                beside = {one for one in needed if one.rpartition(".")[0] == room.module and f"{one}/" not in folders}
                late = sorted(one for one in beside - seen if f"{one.rpartition('.')[2]}.py" in files)
                if late:
                    yield f"{room.module} names {line[0]} before {late[0]}, which it needs"


def purity(sources: Sequence[Source]) -> Iterator[str]:
    """Pure modules wait for nothing, and get time and randomness as arguments."""
    waiting = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    banned = ("asyncio", "socket", "time", "random", "secrets", "logging", "os.environ", "os.getenv", "datetime")
    for source in sources:
        is_pure = ROOMS.get(room_of(source.module), ("", False, ""))[1]
        if not is_pure and source.module not in PURE_FILES:
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
    """Frames know no tensors, tensors know no frames; they meet in `codec.blocks`, which knows neither."""
    frames = [source.module for source in sources if room_of(source.module) == "averaging.wire"]
    for module, banned in (
        *((module, ("torch", "numpy")) for module in frames),
        ("averaging.codec.blocks", ("torch", "msgpack")),
        ("averaging.codec.codec", ("msgpack",)),
    ):
        for name in loaded_by(module, sources):
            if any(is_in(name, library) for library in banned):
                yield f"{module} loads {name}, itself or through what it imports"
    for source in sources:
        if source.module == "averaging.wire.frames" and any(is_in(name, "torch") for name in all_imports(source)):
            yield "averaging.wire.frames imports torch"
        if source.module == "averaging.codec.codec" and any(is_in(name, "msgpack") for name in all_imports(source)):
            yield "averaging.codec.codec imports msgpack"


def quick_start(sources: Sequence[Source]) -> Iterator[str]:
    """`peer --help` loads nothing heavy: commands import what they need."""
    for name in loaded_by("peer.cli.app", sources):
        if name.partition(".")[0] in ("torch", "hivemind", "aiohttp", "numpy", "safetensors"):
            yield f"loading peer.cli.app loads {name}; import it inside the command"


def torch_where_tensors_are_trained(sources: Sequence[Source]) -> Iterator[str]:
    """torch costs a process 190 MB and most of a second: a module that trains nothing takes numpy's arrays."""
    for source in sources:
        if source.package not in PACKAGES or "torch" in ROOMS.get(source.module, ("", False, ""))[2]:
            continue
        is_trainer = any(is_in(source.module, room) for room in TRAINS)
        if is_trainer and not any(is_in(source.module, room) for room in TRAINS_NOTHING):
            continue
        for name in loaded_by(source.module, sources):
            if is_in(name, "torch"):
                yield f"{source.module} loads {name}, itself or through what it imports"


def loaded_by(module: str, sources: Sequence[Source]) -> list[str]:
    """Everything that importing `module` imports, followed through our own modules and their packages."""
    by_name = {source.module: source for source in sources}
    waiting, seen, found = [module], set(), []
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        waiting.append(current.rpartition(".")[0])
        if current in by_name:
            names = _loaded(by_name[current])
            found += names
            waiting += own_modules(names, sources)
    return sorted(set(found))


@cache
def _loaded(source: Source) -> list[str]:
    return imports_when_loaded(source)


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
            is_free = source.module != "dht.p2pd.lazy_hivemind"
            if (
                is_free
                and isinstance(node, ast.Import | ast.ImportFrom)
                and any(is_in(name, "multiprocessing") for name in imports_in([node], source.module))
            ):
                yield f"{source.module}:{node.lineno} imports multiprocessing, which starts Python itself"


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
                yield f"{source.module}:{node.lineno} calls {name}; use dht.ground.regular_files"


def own_attributes(sources: Sequence[Source]) -> Iterator[str]:
    """Nobody sets another object's attributes: what it needs comes in its constructor, what happens is a call.

    A file may change the records (annotated fields) of classes that it defines, and an object of them that it makes.
    """
    for source in sources:
        if source.package not in PACKAGES or source.module in LIBRARY_OBJECTS:
            continue
        classes = {node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)}
        names = {one.name for one in classes}
        fields = {
            line.target.id
            for one in classes
            for line in one.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        made = {
            node.targets[0].id
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in names
        }
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store | ast.Del):
                continue
            owner = ast.unparse(node.value)
            last = owner.partition("[")[0].rpartition(".")[2].lstrip("_")
            if owner not in {"self", "cls", "sys", *made} and node.attr not in fields and last not in SHARED_MEMORY:
                yield f"{source.module}:{node.lineno} sets {owner}.{node.attr}: use its constructor, or call a method"


def names(sources: Sequence[Source]) -> Iterator[str]:
    """A file is named after what it is about."""
    for source in sources:
        if source.module.rpartition(".")[2] in ("utils", "util", "common", "helpers", "helper", "base", "misc"):
            yield f"{source.module} says nothing about its content; name it after its concept"


def one_meaning(sources: Sequence[Source]) -> Iterator[str]:
    """A public class has a name of its own."""
    homes = defaultdict(list)
    for source in sources:
        if source.package in PACKAGES:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(source.module)
    for name, modules in homes.items():
        if len(modules) > 1 and name not in TWO_MEANINGS:
            yield f"class {name} is in {' and in '.join(modules)}; give one of them another name"


def mirror(sources: Sequence[Source]) -> Iterator[str]:
    """Tests of a package stand in folders that are called like its rooms."""
    for source in sources:
        room = source.module.rpartition(".")[0].removeprefix("tests.")
        if source.package == "tests" and room.partition(".")[0] in PACKAGES and source.module.count(".") > 1:
            is_test = source.module.rpartition(".")[2].startswith("test_")
            if is_test and not any(is_in(row, room) for row in ROOMS):
                yield f"{source.module} is in the folder of a room that there is not: {room}"


RULES: list[Callable[[Sequence[Source]], Iterator[str]]] = [
    rooms,
    libraries,
    cycles,
    maps,
    purity,
    tensors_and_bytes_apart,
    quick_start,
    torch_where_tensors_are_trained,
    no_hidden_imports,
    safe_loading,
    own_processes,
    files_of_others,
    own_attributes,
    names,
    one_meaning,
    mirror,
]

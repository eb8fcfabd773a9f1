"""Where our processes take code from: never from the folder in which somebody happens to type `peer`.

`python -m` and `python -c` put the working folder before everything else, so that a `random.py` in a folder of
downloads would run in its reader's name. This module imports nothing that is not loaded when Python starts, and nothing
of ours: `murmuration` loads it by its place.
"""

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"
"""Tells every Python below us, those that libraries start too, to leave the working folder alone (Python 3.11)."""

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

DISTRIBUTION = "murmuration-swarm"
"""What `pip install` calls this software; `murmuration` alone is another project."""

_MARK = f"# A part of {DISTRIBUTION}:".encode()

PACKAGES = ("dht", "averaging", "peer", "dashboard", "murmuration")

_RUN = (
    "import sys; name, root = sys.argv[1:3]; del sys.argv[1:3]; sys.path.insert(0, root); import peer.import_path; "
    "del sys.path[0]; peer.import_path.take_own_packages(); import runpy; "
    "runpy.run_module(name, run_name='__main__', alter_sys=True)"
)
"""`python -m NAME` without a look into the working folder, with the very code that runs here."""


def python_command(module: str, *arguments: str) -> list[str]:
    """What starts one of our modules as a process of its own; give it `python_environment` too."""
    return [sys.executable, "-P", "-c", _RUN, module, _ROOT, *arguments]


def python_environment() -> dict[str, str]:
    """This process's environment, for a process that takes no code from its working folder."""
    environment = {**os.environ, SAFE_PATH: "1"}
    if "PYTHONPATH" in environment:
        # PYTHONPATH=$PYTHONPATH:/somewhere leaves an empty entry, which means the working folder; nobody wrote that.
        entries = [entry for entry in environment["PYTHONPATH"].split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join(entries)
    return environment


def leave_working_folder() -> None:
    """Take the working folder off this process's path, as far as nobody named it in PYTHONPATH."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""  # it was deleted: then nothing is found there
    library = os.path.dirname(os.path.abspath(os.__file__))
    sys.path[:] = path_without(sys.path, here, os.environ.get("PYTHONPATH", ""), library)
    os.environ[SAFE_PATH] = "1"
    take_own_packages()


def take_own_packages() -> None:
    """Have all of our packages come from one place, whatever else is installed, and nothing but them from there.

    Raises:
        SystemExit: one of them has been written over, with a sentence.
    """
    if faults := [_overwritten(name) for name in PACKAGES if not _is_own(name)]:
        raise SystemExit(f"peer: {faults[0]}")
    sys.path.insert(0, _ROOT)
    try:
        for name in PACKAGES:
            __import__(name)
    finally:
        del sys.path[0]


def package_fault(names: tuple[str, ...]) -> str:
    """Why a script does not get our packages `names`, with the file that is to blame; empty: it gets them."""
    # Not before: this module may be loaded where a script's own files stand before the library's.
    import importlib.util

    for name in names:
        own = os.path.join(_ROOT, name, "__init__.py")
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:
            spec = None  # a module that somebody made by hand
        found = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if found is None or os.path.realpath(found) != os.path.realpath(own):
            return (
                f"Python finds {found or 'nothing'} under the name {name!r}, which is one of Murmuration's packages "
                f"({own}); rename yours, or start your script from another folder"
            )
        if not _is_own(name):
            return _overwritten(name)
    return ""


def _is_own(name: str) -> bool:
    try:
        with open(os.path.join(_ROOT, name, "__init__.py"), "rb") as file:
            return _MARK in file.read()
    except OSError:
        return False


def _overwritten(name: str) -> str:
    return (
        f"{os.path.join(_ROOT, name, '__init__.py')} is not Murmuration's, another package has written over it; "
        f"find it with: pip show --files {name}; then run: pip uninstall {name}, and install Murmuration again"
    )


def path_without(path: list[str], here: str, python_path: str, library: str) -> list[str]:
    """`path` without the folder `here`, where Python has put it before its own `library`.

    Args:
        python_path: PYTHONPATH; a folder that stands there was asked for.
    """
    if any(entry and os.path.abspath(entry) == here for entry in python_path.split(os.pathsep)):
        return path
    end = path.index(library) if library in path else len(path)
    return [entry for entry in path[:end] if entry not in ("", here)] + path[end:]

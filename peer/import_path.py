"""The import path of our processes, which never contains the working folder of the user.

`python -m` and `python -c` put the working folder first, so a `random.py` in a folder of downloads would be executed.
This module only imports modules that Python has already loaded at its start, and none of ours: `murmuration` loads this
module by its path.
"""

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"
"""Variable that keeps all Python processes started from here from using the working folder (Python 3.11)."""

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

DISTRIBUTION = "murmuration-swarm"
"""Name of this software for `pip install`; `murmuration` without a suffix is a different project."""

_MARK = f"# A part of {DISTRIBUTION}:".encode()

PACKAGES = ("dht", "averaging", "peer", "dashboard", "murmuration")

_RUN = (
    "import sys; name, root = sys.argv[1:3]; del sys.argv[1:3]; sys.path.insert(0, root); import peer.import_path; "
    "del sys.path[0]; peer.import_path.take_own_packages(); import runpy; "
    "runpy.run_module(name, run_name='__main__', alter_sys=True)"
)
"""Runs the equivalent of `python -m NAME` without the working folder, with the code of this installation."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that starts one of our modules as a separate process; also pass `python_environment`."""
    return [sys.executable, "-P", "-c", _RUN, module, _ROOT, *arguments]


def python_environment() -> dict[str, str]:
    """Return this process's environment for a process that imports nothing from its working folder."""
    environment = {**os.environ, SAFE_PATH: "1"}
    if "PYTHONPATH" in environment:
        # PYTHONPATH=$PYTHONPATH:/somewhere leaves an empty entry, which accidentally means the working folder.
        entries = [entry for entry in environment["PYTHONPATH"].split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join(entries)
    return environment


def leave_working_folder() -> None:
    """Remove the working folder from this process's path, unless PYTHONPATH contains it."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""  # the folder was deleted, so nothing is found there
    library = os.path.dirname(os.path.abspath(os.__file__))
    sys.path[:] = path_without(sys.path, here, os.environ.get("PYTHONPATH", ""), library)
    os.environ[SAFE_PATH] = "1"
    take_own_packages()


def take_own_packages() -> None:
    """Import all of our packages from one place, whatever else is installed, and nothing else from there.

    Raises:
        SystemExit: another package has overwritten one of them; the message is a sentence.
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
    """Return why a script cannot import our packages `names`, with the file that causes it; empty: it can."""
    # Imported here, because a script's own files may precede the standard library when this module is loaded.
    import importlib.util

    for name in names:
        own = os.path.join(_ROOT, name, "__init__.py")
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:
            spec = None  # a module created by hand
        found = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if found is None or os.path.realpath(found) != os.path.realpath(own):
            return (
                f"Python finds {found or 'nothing'} for the name {name!r}, which is a package of Murmuration "
                f"({own}); rename your file, or start your script from another folder"
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
        f"{os.path.join(_ROOT, name, '__init__.py')} is not from Murmuration: another package has overwritten it; "
        f"find it with: pip show --files {name}; then run: pip uninstall {name}, and install Murmuration again"
    )


def path_without(path: list[str], here: str, python_path: str, library: str) -> list[str]:
    """Return `path` without the folder `here`, if Python has put it before its own `library`.

    Args:
        python_path: PYTHONPATH; a folder in it was requested, so it stays.
    """
    if any(entry and os.path.abspath(entry) == here for entry in python_path.split(os.pathsep)):
        return path
    end = path.index(library) if library in path else len(path)
    return [entry for entry in path[:end] if entry not in ("", here)] + path[end:]

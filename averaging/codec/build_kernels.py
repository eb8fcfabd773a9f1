"""Compile `kernels.c`: ``python averaging/codec/build_kernels.py``.

Uses the standard library only, because `hatch_build.py` runs this file while the package is built or installed, before
its dependencies exist. Keeps an existing library if its source is unchanged. Without a C compiler the package uses
numpy kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCE = FOLDER / "kernels.c"
BUILT_LIBRARY = FOLDER / "built" / "kernels.so"
COMPILER_SECONDS = 120.0
"""A slow computer needs ten seconds."""

FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")
EXACT_FLAGS = ("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math")
"""Each operation rounds once. The last two flags change no bit: they only declare that the code reads neither errno nor
floating-point exception flags."""
MACHINES = (
    '-DCLONES="arch=x86-64-v4","arch=x86-64-v3","default"',
    '-DCLONES="avx512f","avx2","default"',
    None,
)
"""Compilers differ in which processors they can compile for at once. The build uses the first setting that works."""


class NotCompiled(Exception):
    """The library was not compiled. The text is one sentence with the reason."""


def source_mark(source: Path = SOURCE) -> str:
    """Return the mark that a compiled library carries: the name of its source, and 16 hexadecimal digits of its
    SHA-256.
    """
    return f"{source.name} {hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"


def is_current(source: Path = SOURCE, library: Path = BUILT_LIBRARY) -> bool:
    """Return whether `library` was compiled from this source."""
    try:
        return source_mark(source).encode() in library.read_bytes()
    except OSError:
        return False


def compiler() -> list[str]:
    """Return the command of the C compiler: the environment variable CC if it is set, otherwise the system's compiler.

    Raises:
        NotCompiled: there is no C compiler.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    raise NotCompiled(f"no C compiler was found ({' '.join(named) or 'cc, gcc, clang'}); install one, such as gcc")


def compile_library(source: Path, library: Path, machines: Sequence[str | None] = MACHINES) -> None:
    """Compile `source` into `library`, and create its folder.

    Raises:
        NotCompiled: no compiler is installed, or the compiler failed with all settings.
        OSError: the folder cannot be written.
    """
    command = compiler()
    library.parent.mkdir(parents=True, exist_ok=True)
    draft = library.with_name(f"{library.name}.{os.getpid()}")
    told = ""
    try:
        for machine in machines:
            arguments = [*command, *FLAGS, *EXACT_FLAGS, f'-DSOURCE="{source_mark(source)}"']
            arguments += [] if machine is None else [machine]
            try:
                subprocess.run(
                    [*arguments, "-o", str(draft), str(source), "-lm"],
                    check=True,
                    capture_output=True,
                    timeout=COMPILER_SECONDS,
                )
                ctypes.CDLL(str(draft))
            except subprocess.CalledProcessError as error:
                told = error.stderr.decode("utf-8", "replace").strip()
            except (OSError, subprocess.TimeoutExpired) as error:
                told = str(error)
            else:
                os.replace(draft, library)
                return
    finally:
        draft.unlink(missing_ok=True)
    raise NotCompiled(f"{' '.join(command)} did not compile {source.name}: {(told.splitlines() or ['no reason'])[0]}")


def build(source: Path = SOURCE, library: Path = BUILT_LIBRARY, machines: Sequence[str | None] = MACHINES) -> bool:
    """Compile the library unless a current one exists. Return whether it was compiled.

    Raises:
        NotCompiled: the library does not exist and could not be compiled.
    """
    if is_current(source, library):
        return False
    try:
        # Loading would refuse a library from a different source.
        library.unlink(missing_ok=True)
        compile_library(source, library, machines)
    except OSError as error:
        raise NotCompiled(f"{library} was not written: {error}") from error
    return True


def main() -> int:
    """Compile the kernels. On failure, print one sentence and return 1."""
    try:
        has_compiled = build()
    except NotCompiled as reason:
        print(f"The kernels were not compiled: {reason}", file=sys.stderr)
        return 1
    if has_compiled:
        print(f"Compiled {BUILT_LIBRARY.relative_to(FOLDER.parents[1])}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

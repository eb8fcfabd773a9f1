"""Compiled kernels: made where there is a compiler, refused when they are others, and numpy in their place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from averaging.codec import compiled_kernels
from averaging.codec.build_kernels import SOURCE, NotCompiled, build, compile_library, source_mark
from averaging.codec.compiled_kernels import KernelLibrary, KernelsMissing

HAS_COMPILER = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler on this machine")


def other_source(folder: Path, text: str) -> Path:
    path = folder / "kernels.c"
    path.write_text(text)
    return path


@needs_compiler
def test_where_there_is_a_compiler_this_installation_has_its_kernels() -> None:
    assert compiled_kernels.missing_reason() == "", "make venv"
    assert compiled_kernels.kernels() is not None


@needs_compiler
def test_what_is_there_already_is_kept_and_what_is_of_another_source_is_not(tmp_path: Path) -> None:
    library, text = tmp_path / "built" / "kernels.so", SOURCE.read_text()
    source = other_source(tmp_path, text)
    assert build(source, library, [None])
    KernelLibrary(library, source_mark(source))
    first = library.stat().st_mtime_ns
    assert not build(source, library)
    assert library.stat().st_mtime_ns == first
    other_source(tmp_path, text + "/* edited */\n")
    with pytest.raises(KernelsMissing, match=f"built from '?{source_mark(SOURCE)}'?; expected kernels.c"):
        KernelLibrary(library, source_mark(source))
    assert build(source, library, [None])
    # A process that has loaded a library keeps it for as long as its path.
    KernelLibrary(library.rename(library.with_name("edited.so")), source_mark(source))
    assert os.listdir(library.parent) == ["edited.so"]


@needs_compiler
@pytest.mark.parametrize("text", ["int encode_blocks(", '#error "not here"\n'])
def test_a_source_that_does_not_compile_is_told_in_a_line_and_leaves_nothing(tmp_path: Path, text: str) -> None:
    library = tmp_path / "built" / "kernels.so"
    library.parent.mkdir()
    library.write_bytes(b"of an earlier source")
    with pytest.raises(NotCompiled, match=r"did not compile kernels\.c: [^\n]+$"):
        build(other_source(tmp_path, text), library)
    assert os.listdir(library.parent) == []


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(NotCompiled, match=r"no C compiler was found .no-such-compiler -O2.; install one, such as gcc"):
        build(SOURCE, tmp_path / "kernels.so")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotCompiled, match=r"no C compiler was found .cc, gcc, clang."):
        build(SOURCE, tmp_path / "kernels.so")
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (1, "", 1)
    assert told.stderr.startswith("The kernels were not compiled: no C compiler was found")


SCRIPT = """
import sys
sys.path.insert(0, "averaging/codec")
import build_kernels
build_kernels.is_current = lambda *paths: False
build_kernels.Path.unlink = lambda *arguments, **options: None
sys.exit(build_kernels.main())
"""


@needs_compiler
def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "built").write_bytes(b"a file, not a folder")
    with pytest.raises(NotCompiled, match="was not written: "):
        build(SOURCE, tmp_path / "built" / "kernels.so")


def test_damaged_and_missing_libraries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    with pytest.raises(KernelsMissing, match="were not built when this software was installed"):
        KernelLibrary(path, source_mark())
    path.write_bytes(b"\x7fELF and then nothing of use")
    with pytest.raises(KernelsMissing, match="cannot be loaded"):
        KernelLibrary(path, source_mark())


@needs_compiler
def test_a_library_without_our_functions_is_refused(tmp_path: Path) -> None:
    source = other_source(tmp_path, "int nothing_of_ours(void) { return 1; }\n")
    compile_library(source, tmp_path / "kernels.so", machines=[None])
    with pytest.raises(KernelsMissing, match="cannot be loaded"):
        KernelLibrary(tmp_path / "kernels.so", source_mark(source))


def test_numpy_takes_their_place_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiled_kernels, "BUILT_LIBRARY", tmp_path / "kernels.so")
    for cached in (compiled_kernels._found, compiled_kernels.kernels):
        cached.cache_clear()
    try:
        assert "were not built" in compiled_kernels.missing_reason()
        assert not caplog.text
        assert compiled_kernels.kernels() is None
        assert compiled_kernels.kernels() is None
    finally:
        for cached in (compiled_kernels._found, compiled_kernels.kernels):
            cached.cache_clear()
    assert caplog.text.count("numpy is used instead") == 1
    assert "install a C compiler" in caplog.text

"""Counts of the repository: lines of code, classes, fields, kinds, flags, tests and words, at one commit or two.

    python -m benchmarks.weight [--at COMMIT] [--json]

Prints the counts of the working tree, and beside them those of COMMIT. The script reads syntax trees and imports
nothing, so that it counts any commit with the same rules. The counts are not limits; no test compares them.

- code lines: without blank lines, comments, docstrings (also those below constants and fields) and imports
- module constants: assignments to names in capitals at the top level of a module
- manifest fields: those of `RunManifest` and of the sections in it; the fields of a list's entries count once
- event kinds: subclasses of `Fact` that have no subclass themselves
- wire kinds: classes with a `KIND`
- flags: different ones in docs/reference/cli.md, which is generated from the commands
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("dht", "averaging", "peer", "dashboard", "murmuration")
PAGE_SUFFIXES = (".py", ".js", ".ts", ".css", ".html", ".j2")
GENERATED = ("node_modules", "built")


def weigh(root: Path) -> dict[str, int]:
    """The counts of a checkout, in the order in which they are printed."""
    product = {path: path.read_text(encoding="utf-8") for path in files(root, PRODUCT, (".py",))}
    trees = [ast.parse(text) for text in product.values()]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    pages = [path.read_text(encoding="utf-8") for path in files(root, PRODUCT, PAGE_SUFFIXES)]
    tests = [path.read_text(encoding="utf-8") for path in files(root, ("tests",), (".py",))]
    log = root / "benchmarks" / "log"
    documents = [path for path in files(root, ("",), (".md",)) if log not in path.parents]
    return {
        "product, code lines": sum(map(code_lines, product.values())),
        "product, lines in all": sum(text.count("\n") for text in product.values()),
        "scripts, styles and templates, lines": sum(text.count("\n") for text in pages)
        - sum(text.count("\n") for text in product.values()),
        "classes": len(classes),
        "module constants": sum(map(module_constants, trees)),
        "manifest fields": manifest_fields({node.name: node for node in classes}, "RunManifest"),
        "event kinds": len(leaves_below("Fact", classes)),
        "wire kinds": sum(map(has_wire_kind, classes)),
        "flags": flags(root / "docs" / "reference" / "cli.md"),
        "test lines": sum(text.count("\n") for text in tests),
        "words of Markdown without the log": sum(len(path.read_text(encoding="utf-8").split()) for path in documents),
        "files with validation_loss": sum(bool(re.search(r"\bvalidation_loss\b", text)) for text in pages),
    }


def files(root: Path, folders: Sequence[str], suffixes: Sequence[str]) -> Iterator[Path]:
    """Files below the folders, without hidden folders and those that a build made."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.suffix in suffixes and not any(part.startswith(".") or part in GENERATED for part in parts):
                yield path


def code_lines(text: str) -> int:
    """Lines that hold code other than imports and docstrings."""
    lines: set[int] = set()
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
        if isinstance(node, ast.stmt) and (is_docstring or isinstance(node, ast.Import | ast.ImportFrom)):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def module_constants(tree: ast.Module) -> int:
    names: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names += node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            names.append(node.target)
    return sum(isinstance(name, ast.Name) and name.id.isupper() for name in names)


def bases_of(node: ast.ClassDef) -> list[str]:
    return [base.id if isinstance(base, ast.Name) else ast.unparse(base) for base in node.bases]


def leaves_below(base: str, classes: Sequence[ast.ClassDef]) -> set[str]:
    """Classes that derive from `base`, also through others, and that no other class derives from."""
    below = {base}
    while more := {node.name for node in classes if below & set(bases_of(node))} - below:
        below |= more
    return below - {name for node in classes for name in bases_of(node)} - {base}


def manifest_fields(classes: dict[str, ast.ClassDef], name: str) -> int:
    """Fields of a section and of the sections that its fields hold."""
    count = 0
    for base in bases_of(classes[name]):
        if base in classes:
            count += manifest_fields(classes, base)
    for line in classes[name].body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        if line.target.id.startswith("_") or line.target.id == "model_config":
            continue
        kinds = {node.id for node in ast.walk(line.annotation) if isinstance(node, ast.Name)}
        sections = [kind for kind in sorted(kinds & set(classes)) if kind.endswith("Section")]
        count += sum(manifest_fields(classes, kind) for kind in sections) or 1
    return count


def has_wire_kind(node: ast.ClassDef) -> bool:
    return any(
        isinstance(line, ast.AnnAssign)
        and ast.unparse(line.target) == "KIND"
        and isinstance(line.value, ast.Constant)
        and bool(line.value.value)
        for line in node.body
    )


def flags(page: Path) -> int:
    return len(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", page.read_text(encoding="utf-8"))))


def weigh_commit(commit: str) -> dict[str, int]:
    """The counts of a commit, which is unpacked into a temporary folder.

    Raises:
        subprocess.CalledProcessError: git knows no such commit.
    """
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
        return weigh(Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", metavar="COMMIT", help="also count this commit, and print it first")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    columns = {"now": weigh(ROOT)}
    if arguments.at:
        try:
            columns = {arguments.at: weigh_commit(arguments.at), **columns}
        except subprocess.CalledProcessError:
            print(f"git has no commit {arguments.at}; expected a name that `git log` shows.", file=sys.stderr)
            return 2
    if arguments.json:
        print(json.dumps(columns))
        return 0
    print(f"{'':36}" + "".join(f"{title:>12}" for title in columns))
    for name in columns["now"]:
        print(f"{name:36}" + "".join(f"{counts[name]:12,}".replace(",", " ") for counts in columns.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

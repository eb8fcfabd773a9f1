"""A volunteer's home folder in which nothing may be opened, and a process that follows a manifest there.

`python -m tests.kit.trainer.canary_home ORDERS` reads a list of manifests, does for each what `peer join` and `peer
export` do with the names in it, and prints what was opened below the home folder.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "the canary's secret"
PACKAGED = ("text", "json", "imagefolder")
"""Some names that the `datasets` library takes for readers of local files, and of folders."""
_WATCHED = (
    "open",
    "os.listdir",
    "os.scandir",
    "os.chdir",
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.system",
)


def make_home(home: Path) -> None:
    """Files of every kind that a name could mean, below a home folder."""
    rows = json.dumps({"text": SECRET, "label": 0}) + "\n"
    folders = ("victim/folder", "org/name", *PACKAGED, "data", ".cache/huggingface/hub", ".ssh")
    for folder in (home, *(home / name for name in folders)):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("secret.txt", "train.txt", "train.jsonl", "train.json", "train.csv", "id_rsa", "meta.json"):
            (folder / name).write_text(rows)
        (folder / "model.safetensors").write_text(SECRET)
        (folder / "tokenizer.json").write_text("{}")
        (folder / "config.json").write_text("{}")
        (folder / "logo.png").write_text(SECRET)
    (home / ".cache" / "huggingface" / "token").write_text("hf_volunteer")
    (home / ".netrc").write_text("default login volunteer password secret\n")
    (home / "link").symlink_to(home / ".ssh")


def spellings(home: Path, web: str, *, with_kinds: bool) -> list[str]:
    """Names that could lead to a file of the home folder, as many as there are ways to write one.

    Args:
        with_kinds: also behind words such as `hf:` and `https:`.
    """
    paths = [
        *(str(home), f"{home}/secret.txt", f"{home}/train.jsonl", "secret.txt", "./secret.txt", "train.jsonl", ".", ""),
        *(f"../{home.name}/secret.txt", "~", "~/secret.txt", "~/.ssh/id_rsa", "$HOME/secret.txt", "%USERPROFILE%"),
        *(f"file://{home}/secret.txt", "file:secret.txt", f"local://{home}", "C:\\Users\\victim\\secret.txt"),
        *("C:/Users/victim", "\\\\server\\share", "\\\\?\\C:\\secret.txt", "link", "link/id_rsa", "/dev/stdin", "NUL"),
        *("victim/folder", "org/name", "data", ".ssh", ".cache/huggingface/hub", "logo.png", "tokenizer.json"),
        *("zip://train.jsonl::secret.txt", "hf://datasets/text", f"hf://datasets/victim/folder::{home}/secret.txt"),
        *PACKAGED,
    ]
    found = list(paths)
    for path in paths if with_kinds else ():
        found += [f"{kind}:{path}" for kind in ("text", "jsonl", "parquet", "tokens", "stdlib", "folder", "hub", "hf")]
        found += [f"hf:{path}@main", f"hf:{path}@main/{path}", f"hf:{path}@main:train", f"hub:{path}@v1"]
        found += [f"hf:org/name@{path}", f"hf:org/name@main/{path}", f"hf:org/name@main:{path}", f"hub:org/name@{path}"]
        found += [
            f"https:{path}/meta.json",
            f"https://{path}/meta.json",
            f"http://{path}",
            f"https://{path}@{'0' * 40}",
        ]
    found += [f"{web}/meta.json", f"{web}/x/meta.json", web, web.replace("127.0.0.1", "localhost"), "https://[::1]/"]
    return list(dict.fromkeys(found))


def follow(manifest: bytes, folder: Path) -> None:
    """Do what a peer does with the names in a manifest, as far as each of them leads."""
    from dht.ground.errors import LocalFault
    from peer.config.data_source import source_here
    from peer.config.manifest import RunManifest
    from peer.export.formats.model_card import model_card  # noqa: F401 (loaded before the first manifest)
    from peer.export.formats.tokenizer_files import tokenizer_files
    from peer.observe.run_page import ask_page
    from peer.trainer.data.corpus import open_run_corpus
    from peer.trainer.data.prepared_folder import data_facts
    from peer.trainer.hf.base_weights import base_facts, find_base

    read = RunManifest.from_bytes(manifest)
    data = read.data

    def train() -> None:
        source = source_here(data.source, None, read.tokenizer is not None, data.digest)
        open_run_corpus(read, source, folder, tokenizer_path=folder / "files" / "tokenizer.json").close()

    actions: list[Callable[[], Any]] = [
        *([] if data.source == "stdlib:" else [train, lambda: data_facts(read, None)]),
        lambda: base_facts(read, None, print),
        lambda: find_base(read, None),
        lambda: tokenizer_files(read, folder / "files"),
    ]
    if read.page_address is not None:
        page = read.page_address
        actions.append(lambda: ask_page(page, 2.0, of_manifest=True))
    for action in actions:
        with contextlib.suppress(LocalFault):
            action()


class InThisProcess:
    """Stands for the process that tokenizes, so that what it opens is seen."""

    def __init__(self, tokenizer: Path, end: str | None) -> None:
        from peer.trainer.data.loaded_tokenizer import loaded
        from peer.trainer.data.tokenizing import tokenizer_content

        file, content, end = tokenizer_content(tokenizer, end)
        self._tokenizer = loaded(content, str(file), end)

    def tokenize(self, order: Any) -> Any:
        from tests.kit.trainer.prepared_data import tokenize_part

        return tokenize_part(order, self._tokenizer)

    def close(self) -> None:
        pass


class ChildInThisProcess:
    """Stands for the limited child that loads a tokenizer: one process for each manifest would take minutes."""

    def __init__(self, module: str, setup: dict[str, Any], *_limits: Any) -> None:
        self._answer = importlib.import_module(module).prepare(setup)

    def ask(self, question: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        return self._answer(question, body), b""

    def close(self) -> None:
        pass


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    home, folder = orders["home"], Path(orders["folder"])
    from peer.trainer.data import fetching_within_disk_limit as patience
    from peer.trainer.data import text_fetching, tokenizing

    vars(patience)["PAUSES_SECONDS"] = (0.0,)
    vars(tokenizing)["LimitedChild"] = ChildInThisProcess
    vars(text_fetching)["TokenizeWorker"] = InThisProcess
    ours = socket.getaddrinfo

    def known(host: Any, *others: Any, **choices: Any) -> Any:
        """No name of the test is looked up in the world."""
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise socket.gaierror(socket.EAI_NONAME, "no such host")
        return ours(host, *others, **choices)

    vars(socket)["getaddrinfo"] = known
    opened: list[str] = []
    at = "before"

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED:
            return
        for argument in arguments[: 1 if event == "open" else 2]:
            for one in argument if isinstance(argument, list | tuple) else [argument]:
                if isinstance(one, str | bytes | os.PathLike):
                    name = os.fsdecode(one)
                    path = os.path.abspath(name)
                    if event == "subprocess.Popen" and not os.path.exists(path):
                        continue  # an option of a program
                    if path == home or path.startswith(f"{home}/"):
                        opened.append(f"{at}: {event} {name}")

    follow(bytes.fromhex(orders["first"]), folder)  # what the libraries read of their own when they are loaded
    os.chdir(home)
    sys.addaudithook(watch)
    for number, manifest in enumerate(orders["manifests"]):
        at = str(number)
        follow(bytes.fromhex(manifest), folder)
    print(json.dumps(opened))


if __name__ == "__main__":
    main()

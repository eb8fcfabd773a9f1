"""A hub of data sets and models on a port of this machine, which dies, stalls and lies, and has closed repositories."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from unittest.mock import patch

COMMIT = "0123456789abcdef0123456789abcdef01234567"

Mood = Literal["well", "dead", "garbage", "stalled"]

_API = re.compile(
    r"/api/(?:datasets|models)/(?P<id>[^/]+/[^/]+)(?:/(?P<what>revision|tree|paths-info)/(?P<revision>[^/?]+))?"
)
_FILE = re.compile(r"(?:/datasets)?/(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>[^?]+)")
TOKEN = "hf_volunteer"
"""Opens the closed repositories."""


class LocalHub:
    """The folders `ORG/NAME` in a folder as data sets or models, each at one commit whatever revision is asked for.

    Attributes:
        mood: how it answers: dead: by closing the connection; garbage: files of other bytes; stalled: never.
        num_bytes: of files that it has sent.
        paths: of what was asked for, in order.
        heads: the headers of each of these.
        closed: repositories that only `TOKEN` opens.
        extra_files: names that a repository claims to have.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.mood: Mood = "well"
        self.num_bytes = 0
        self.paths: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.closed: set[str] = set()
        self.extra_files: list[str] = []
        self._over = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.paths.append(self.path)
                hub.heads.append({name.lower(): value for name, value in self.headers.items()})
                if hub.mood == "dead":
                    self.close_connection = True
                    return
                if hub.mood == "stalled":
                    hub._over.wait()
                    self.close_connection = True
                    return
                asked = _API.match(self.path) or _FILE.match(self.path)
                is_open = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                if asked is not None and asked["id"] in hub.closed and not is_open:
                    self._refuse("RepoNotFound", 401)
                    return
                if (api := _API.match(self.path)) is not None:
                    self._answer_api(api)
                elif (file := _FILE.match(self.path)) is not None:
                    self._answer_file(folder / file["id"], file["path"])
                else:
                    self._refuse("EntryNotFound")

            do_HEAD = do_GET

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def _answer_api(self, asked: re.Match[str]) -> None:
                root = folder / asked["id"]
                if not root.is_dir():
                    self._refuse("RepoNotFound")
                    return
                files = [path for path in sorted(root.rglob("*")) if path.is_file()]
                entries = [
                    {"type": "file", "path": str(path.relative_to(root)), "size": path.stat().st_size, "oid": "0" * 40}
                    for path in files
                ]
                names = [(one["path"], one["size"]) for one in entries] + [(name, 1) for name in hub.extra_files]
                siblings = [{"rfilename": name, "size": size} for name, size in names]
                facts = {"id": asked["id"], "sha": COMMIT, "siblings": siblings}
                content = json.dumps(entries if asked["what"] in ("tree", "paths-info") else facts).encode()
                self._send(200, content, {"Content-Type": "application/json"})

            def _answer_file(self, root: Path, name: str) -> None:
                path = root / name
                if not path.is_file():
                    self._refuse("EntryNotFound" if root.is_dir() else "RepoNotFound")
                    return
                content = path.read_bytes()
                if hub.mood == "garbage":
                    content = bytes(byte ^ 0x5A for byte in content)
                headers = {"ETag": '"' + "1" * 40 + '"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                status = 200
                if asked is not None:
                    start, stop = int(asked[1]), int(asked[2] or len(content) - 1) + 1
                    headers["Content-Range"] = f"bytes {start}-{min(stop, len(content)) - 1}/{len(content)}"
                    content, status = content[start:stop], 206
                if self.command == "GET":
                    hub.num_bytes += len(content)
                self._send(status, content, headers)

            def _refuse(self, code: str, status: int = 404) -> None:
                self._send(status, b"", {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

            def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextlib.contextmanager
    def asked_here(self, cache: Path) -> Iterator[None]:
        """In this process the library asks this hub, keeps what it keeps in `cache`, and has the login `TOKEN`."""
        import huggingface_hub.constants as constants

        with (
            patch.dict(os.environ, HF_HUB_OFFLINE="0", HF_TOKEN=TOKEN),
            patch.object(constants, "ENDPOINT", self.url),
            patch.object(constants, "HF_HUB_CACHE", str(cache / "hub")),
            patch.object(constants, "HF_HUB_OFFLINE", False),
        ):
            yield

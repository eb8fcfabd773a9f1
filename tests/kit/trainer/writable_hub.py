"""A hub of models on a port of this machine that takes a pushed folder; it can refuse, and cut uploads off."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_a_test"


class WritableHub:
    """One repository, ORG/NAME, as `huggingface_hub` writes to one without its storage for chunks (xet).

    Attributes:
        files: by path, as committed.
        exists: the repository is there.
        cuts: so many uploads of a large file are cut off.
        commits: their messages.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.exists = False
        self.cuts = 0
        self.commits: list[str] = []
        self._large: dict[str, bytes] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self._send(401, {"error": "Invalid username or password."})
                elif self.path == "/api/repos/create":
                    address = {"url": f"{hub.url}/org/name"}
                    self._send(409 if hub.exists else 200, address | ({"error": "exists"} if hub.exists else {}))
                    hub.exists = True
                elif self.path == "/api/validate-yaml":
                    self._send(200, {"errors": [], "warnings": []})
                elif self.path == "/api/models/org/name/preupload/main":
                    self._send(200, {"files": [_mode(one["path"]) for one in json.loads(body)["files"]]})
                elif self.path == "/org/name.git/info/lfs/objects/batch":
                    self._send(200, {"transfer": "basic", "objects": [self._place(one) for one in _objects(body)]})
                elif self.path.startswith("/api/models/org/name/commit/main"):
                    hub._commit([json.loads(line) for line in body.splitlines()])
                    self._send(200, {"commitOid": "0" * 40, "commitUrl": f"{hub.url}/org/name/commit/{'0' * 40}"})
                else:
                    self._send(404, {"error": self.path})

            def _place(self, one: dict[str, Any]) -> dict[str, Any]:
                return one | {"actions": {"upload": {"href": f"{hub.url}/large/{one['oid']}"}}}

            def do_PUT(self) -> None:
                num_bytes = int(self.headers["Content-Length"])
                if hub.cuts:
                    hub.cuts -= 1
                    self.rfile.read(num_bytes // 2)
                    self.close_connection = True
                    return
                hub._large[self.path.rpartition("/")[2]] = self.rfile.read(num_bytes)
                self._send(200, {})

            def _send(self, status: int, facts: dict[str, Any]) -> None:
                content = json.dumps(facts).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self._large[value["oid"]]
            else:
                self.files[value["path"]] = base64.b64decode(value["content"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(".safetensors") else "regular", "shouldIgnore": False}


def _objects(body: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(body)["objects"]
    return found

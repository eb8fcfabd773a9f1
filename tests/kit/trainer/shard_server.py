"""Prepared shards on a web server that breaks off and lies."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(path: Path) -> Path:
    """Write key and certificate of 127.0.0.1; a process believes it with the path in SSL_CERT_FILE."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1)).add_extension(address, critical=False)
    signed = builder.sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + signed.public_bytes(serialization.Encoding.PEM))
    return path


class ShardServer:
    """A folder on a port of this machine.

    Args:
        certificate: a file with key and certificate, for https; see `self_signed`.

    Attributes:
        cut: bytes after which each answer breaks off.
        wrong: names of files whose first byte it changes.
        answer: what it says, byte for byte, whatever it is asked; None: what is right.
        requests: (path, Range header) of each.
    """

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        self.requests: list[tuple[str, str | None]] = []
        self.cut: int | None = None
        self.wrong: set[str] = set()
        self.answer: bytes | None = None
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                server.requests.append((self.path, asked))
                if server.answer is not None:
                    self.wfile.write(server.answer)
                    return
                path = folder / self.path.lstrip("/")
                if not path.exists():
                    self.send_error(404)
                    return
                content, start = path.read_bytes(), 0
                if path.name in server.wrong:
                    content = bytes([content[0] ^ 1]) + content[1:]
                if asked is not None:
                    start = int(asked.removeprefix("bytes=").rstrip("-"))
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start : None if server.cut is None else start + server.cut])

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/meta.json"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""The common parts of the servers that simulate object stores: storage, faults, and the commands of
tests, which are requests below /_control/."""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit


def version_of(content: bytes) -> str:
    """Return what stands for an object's version, as an ETag and as a generation."""
    return str(1 + zlib.crc32(content))


class Files(dict[str, bytes]):
    """Objects that are also stored as files of a directory, for access without the API."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def __setitem__(self, name: str, content: bytes) -> None:
        if not name.endswith("/"):  # the libraries mark directories with a slash
            (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self._directory / name).write_bytes(content)
        super().__setitem__(name, content)

    def pop(self, name: str, *default: Any) -> Any:
        if not name.endswith("/"):
            (self._directory / name).unlink(missing_ok=True)
        return super().pop(name, *default)


@dataclass
class ServerState:
    """The state of a server. The keys of `objects` are BUCKET/NAME."""

    objects: dict[str, bytes] = field(default_factory=dict)
    pending_uploads: dict[str, bytes] = field(default_factory=dict)
    failures: int = 0
    """The number of next requests that are answered with 503."""
    authorized: set[bool] = field(default_factory=set)
    """Contains True if a request had credentials, and False if one had none."""
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Makes a condition and its write one operation."""

    def below(self, bucket: str, prefix: str) -> dict[str, bytes]:
        """Return a bucket's objects below a prefix, by their names in the bucket."""
        cut, now = len(bucket) + 1, self.objects.copy()  # other threads change them
        names = sorted(name for name in now if name.startswith(f"{bucket}/{prefix}"))
        return {name[cut:]: now[name] for name in names}


class CloudHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body waits for 40 ms
    state: ClassVar[ServerState] = ServerState()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.decoded_path = unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.decoded_path.startswith("/_control/"):
            self._run_command(self.decoded_path.removeprefix("/_control/"), json.loads(self.body))
            return
        self.state.requests += 1
        self.state.authorized.add("Authorization" in self.headers or "sig" in self.query)
        if self.state.failures > 0:
            self.state.failures -= 1
            self.answer(503, {"Retry-After": "0", "x-ms-request-id": "1"})
        else:
            with self.state.lock:
                getattr(self, f"serve_{self.command.lower()}")()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - http.server's names

    def _run_command(self, command: str, values: dict[str, Any]) -> None:
        state, result = self.state, None
        match command:
            case "put":
                state.objects[values["name"]] = base64.b64decode(values["content"])
            case "fail":
                state.failures = values["times"]
            case "requests":
                result, state.requests = state.requests, 0
            case "state":
                contents = state.objects.items()
                encoded = {name: base64.b64encode(content).decode() for name, content in contents}
                result = [encoded, list(state.authorized)]
        self.answer(200, {}, json.dumps(result).encode())

    def answer(self, status: int, headers: dict[str, Any], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_object(self, content: bytes, headers: dict[str, Any]) -> None:
        """Send an object, or the requested range of it."""
        asked = self.headers.get("x-ms-range") or self.headers.get("Range")
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        if match is None or not content:
            self.answer(200, headers, content)
            return
        first, last = int(match[1]), min(int(match[2] or len(content)), len(content) - 1)
        span = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self.answer(206, {**headers, **span}, content[first : last + 1])


def serve(handler: type[CloudHandler]) -> None:
    """Serve forever on a free loopback port, and print the port. If the command line has a
    directory, objects are also stored as files in it."""
    if sys.argv[1:]:
        handler.state.objects = Files(Path(sys.argv[1]))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()

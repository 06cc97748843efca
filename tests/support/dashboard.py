"""A dashboard that serves reports of drivers, for tests in which no Ray runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from batchinference.spec.report import REPORT_FILE, Report

PORT = 8265
Place = tuple[str, str]
"""A service's host, and the address of the head on which the file lies."""


@dataclass
class Dashboard:
    """All dashboards of a cluster in one: they differ by the name under which they are asked."""

    address: str
    tokens: dict[str, str] = field(default_factory=dict)
    """Host to the token that its Ray cluster was started with."""
    reports: dict[Place, Report] = field(default_factory=dict)

    def answer(self, host: str, token: str, query: dict[str, list[str]]) -> tuple[int, str]:
        """As Ray 2.60 answers a request for the whole of a log file."""
        if self.tokens.get(host) != token:
            return 401, "Unauthorized"
        report = self.reports.get((host, query["node_ip"][0]))
        if report is None or query["filename"] != [REPORT_FILE] or query["lines"] != ["-1"]:
            return 500, f"A file is not found at: /tmp/ray/{query['filename'][0]}"
        return 200, report.serialized().decode()


@contextmanager
def served() -> Iterator[Dashboard]:
    """Dashboards on a port of this machine for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            host = self.headers["Host"].removesuffix(f":{PORT}")
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            known = asked.path == "/api/v0/logs/file"
            code, text = (
                dashboard.answer(host, token, parse_qs(asked.query))
                if known
                else (404, "Not Found")
            )
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    dashboard = Dashboard(f"127.0.0.1:{server.server_port}")
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    try:
        yield dashboard
    finally:
        server.shutdown()
        server.server_close()

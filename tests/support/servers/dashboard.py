"""A dashboard that serves reports of drivers, for tests without Ray."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from batchinference.spec.report import REPORT_FILE, Report
from support.servers.loopback import handled_by

PORT = 8265
Place = tuple[str, str]
"""Host of the Service, and IP address of the head that has the file."""


@dataclass
class Dashboard:
    """The dashboards of all Ray clusters, distinguished by host name."""

    address: str
    tokens: dict[str, str] = field(default_factory=dict)
    """The token of each host."""
    reports: dict[Place, Report] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds that the dashboard of a host takes to answer."""
    answered: Counter[str] = field(default_factory=Counter)
    """The number of answers by host."""

    def answer(self, host: str, token: str, query: dict[str, list[str]]) -> tuple[int, str]:
        """Answer a request for a whole log file as Ray 2.60 does."""
        if self.tokens.get(host) != token:
            return 401, "Unauthorized"
        report = self.reports.get((host, query["node_ip"][0]))
        if report is None or query["filename"] != [REPORT_FILE] or query["lines"] != ["-1"]:
            return 500, f"A file is not found at: /tmp/ray/{query['filename'][0]}"
        return 200, report.serialized().decode()


@contextmanager
def served() -> Iterator[Dashboard]:
    """Serve dashboards on a local port during the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            host = self.headers["Host"].removesuffix(f":{PORT}")
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            known = asked.path == "/api/v0/logs/file"
            time.sleep(dashboard.slow.get(host, 0.0))
            dashboard.answered[host] += 1
            code, text = (
                dashboard.answer(host, token, parse_qs(asked.query))
                if known
                else (404, "Not Found")
            )
            with suppress(BrokenPipeError):  # the operator stops waiting for slow dashboards
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

    with handled_by(Handler) as port:
        dashboard = Dashboard(f"127.0.0.1:{port}")
        yield dashboard

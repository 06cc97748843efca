"""Serves the pages over HTTP to the browser of the user who started the program."""

import hmac
import traceback
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from batchinference.ui.site import Answer, Site

HOST = "127.0.0.1"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, token: str, site: Site) -> None:
        super().__init__((HOST, port), _Handler)
        self.token, self.site = token, site


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests whose path begins with a secret token. Other users of this machine, and
    websites in the user's browser, can also send requests, but do not know the token."""

    server: _Server

    def do_GET(self) -> None:
        token, *parts = urlsplit(self.path).path.removeprefix("/").split("/")
        if not parts or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        path = "/".join(unquote(part) for part in parts)
        try:
            answer = self.server.site.answer(path)
        except Exception:  # noqa: BLE001 - the error is printed, and other pages still work
            traceback.print_exc()
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.content)),
            "Content-Security-Policy": answer.policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the paths of requests contain the token."""


def serving(ports: Sequence[int], token: str, site: Site) -> _Server:
    """Return a server, which is a context manager. It listens on the loopback address and the first
    free port of `ports`. Port 0 means any free port. Raises OSError if no port can be used."""
    *others, last = ports
    for port in others:
        with suppress(OSError):
            return _Server(port, token, site)
    return _Server(last, token, site)


def address_of(server: _Server) -> str:
    """Return the address of the first page."""
    return f"http://{HOST}:{server.server_port}/{server.token}/"

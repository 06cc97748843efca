"""A web server on loopback for files, which can be told to fail."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answers = list[int | bytes]
"""What a path answers, one request after the other, the last one for ever: a status alone, or a
content with status 200."""


@dataclass
class Web:
    """A server that is up. `paths` says what it answers; anything else is 404."""

    url: str
    paths: dict[str, Answers] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every answer."""

    def answer(self, path: str) -> int | bytes:
        answers = self.paths.get(path, [404])
        self.asked[path] += 1
        return answers[min(self.asked[path], len(answers)) - 1]


@contextmanager
def web_server() -> Iterator[Web]:
    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = web.answer(self.path.partition("?")[0])
            content = answer if isinstance(answer, bytes) else b""
            if answer == 0:  # no answer at all
                self.close_connection = True
                return
            self.send_response(200 if isinstance(answer, bytes) else answer)
            for name, value in web.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests look at `asked`."""

    with Server(("127.0.0.1", 0), Handler) as server:
        web = Web(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()

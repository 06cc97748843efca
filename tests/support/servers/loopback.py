"""HTTP servers on loopback, in threads of the test process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


@contextmanager
def handled_by(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on a free port during the block, without a log; yield the port."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    with _Server(("127.0.0.1", 0), quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()

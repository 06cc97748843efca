"""Counts the rows that the steps of jobs have processed, and answers whether a job may end.

The request `JOB ROWS` adds a line to the counter's file. The response to `JOB open?` is + or -.
"""

from __future__ import annotations

import socketserver
import sys
from pathlib import Path


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline()
        job, _, request = line.decode().strip().partition(" ")
        if request == "open?":
            self.wfile.write(b"+" if Path(f"{sys.argv[1]}-{job}").exists() else b"-")
            return
        with Path(sys.argv[1]).open("ab") as file:
            file.write(line)
        self.wfile.write(b"+")


if __name__ == "__main__":
    with socketserver.ThreadingTCPServer(("", 7072), Handler) as server:
        server.serve_forever()

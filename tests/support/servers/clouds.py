"""Small servers on loopback that simulate Google Cloud Storage and Azure Blob Storage, with
faults."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ACCOUNT, ACCOUNT_KEY = "account", base64.b64encode(b"a key of the tests 2718").decode()
TESTS = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cloud:
    """A running server. It is a separate process, because the libraries hold Python's GIL while
    they wait for the server."""

    url: str
    kind: str

    @property
    def endpoint(self) -> str:
        """The endpoint as a job specifies it."""
        return f"{self.url}/{ACCOUNT}" if self.kind == "azure" else self.url

    @property
    def objects(self) -> dict[str, bytes]:
        """All objects by bucket/key."""
        return {name: base64.b64decode(content) for name, content in self._state()[0].items()}

    @property
    def authorized(self) -> list[bool]:
        """Whether requests had credentials: [False], [True], or both if requests differed."""
        return sorted(self._state()[1])

    def put(self, name: str, content: bytes) -> None:
        self._control("put", name=name, content=base64.b64encode(content).decode())

    def fail(self, times: int) -> None:
        """Answer the next requests with 503."""
        self._control("fail", times=times)

    def requests(self) -> int:
        """Return the number of requests since the last call of this method."""
        return int(self._control("requests"))

    def _state(self) -> Any:
        return self._control("state")

    def _control(self, command: str, **values: object) -> Any:
        request = Request(f"{self.url}/_control/{command}", json.dumps(values).encode())
        with urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


@contextmanager
def served(kind: str, directory: Path | None = None) -> Iterator[Cloud]:
    """Run a server that simulates `google` or `azure`. If given, `directory` also stores the
    objects as files."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            f"support.servers.{kind}_storage",
            *([str(directory)] if directory else []),
        ],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield Cloud(f"http://127.0.0.1:{int(process.stdout.readline())}", kind)
    finally:
        process.terminate()
        process.communicate()

"""A real Prometheus on loopback, and promtool."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml

from support.cluster.kubectl import eventually, run
from support.engines import prometheus_directory
from support.servers.ports import free_port

Object = dict[str, Any]


def promtool(*arguments: str | Path) -> None:
    """Run promtool. Raises AssertionError with its output if it fails."""
    run([str(prometheus_directory() / "promtool"), *map(str, arguments)])


def nodes(query: Any, field: str) -> Iterator[Object]:
    """Yield the nodes of a parsed query that have a field."""
    if isinstance(query, dict) and field in query:
        yield query
    for child in query.values() if isinstance(query, dict) else query:
        if isinstance(child, dict | list):
            yield from nodes(child, field)


@dataclass(frozen=True)
class Prometheus:
    """The HTTP API of a running Prometheus."""

    url: str

    def ready(self) -> bool:
        try:
            return urllib3.request("GET", f"{self.url}/-/ready", retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer. Raises AssertionError with the error of Prometheus."""
        answer = urllib3.request("GET", f"{self.url}/api/v1/{path}", fields=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer['error']}"
        return answer["data"]

    def results(self, query: str, seconds: float = 0) -> list[Object]:
        """Return the labels of the series to which a query gives numbers, now or at any time in the
        last `seconds`."""
        end = time.time()
        times = {"start": str(end - seconds), "end": str(end), "step": "1"}
        series = self.get("query_range", query=query, **times)["result"]
        return [
            each["metric"] for each in series if any(value != "NaN" for _, value in each["values"])
        ]

    def selected(self, query: str) -> dict[str, list[Object]]:
        """Return the labels of all series that a query selects, by selector."""
        result = {}
        for node in nodes(self.get("parse_query", query=query), "matchers"):
            matchers = [f"{m['name']}{m['type']}{json.dumps(m['value'])}" for m in node["matchers"]]
            selector = f"{{{', '.join(matchers)}}}"
            result[selector] = self.get("series", **{"match[]": selector})
        return result


@contextmanager
def running(config: Object, directory: Path) -> Iterator[Prometheus]:
    """Run a Prometheus with this configuration during the block. Skip if it is missing."""
    program, port = prometheus_directory() / "prometheus", free_port()
    file, log = directory / "prometheus.yml", directory / "prometheus.log"
    file.write_text(yaml.safe_dump(config))
    flags = [f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(program), *flags, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        eventually("a ready Prometheus", prometheus.ready, 60, 0.1)
        yield prometheus
    finally:
        process.kill()
        process.wait()
        print(log.read_text())

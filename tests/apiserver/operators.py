"""Creates operators that run as processes with the rights that the chart gives them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.cluster.chart import Chart
from support.operator.process import OperatorProcess
from support.servers.api_server import ApiServer, new_namespace
from support.servers.dashboard import Dashboard

Object = dict[str, Any]


@dataclass(frozen=True)
class Operators:
    """Creates operators, not started yet, with the rights that the chart gives them."""

    server: ApiServer
    chart: Chart
    dashboard: Dashboard
    directory: Path
    made: list[OperatorProcess] = field(default_factory=list)

    def __call__(self, **values: Any) -> OperatorProcess:
        system = new_namespace(self.server, f"system-{uuid.uuid4().hex[:8]}").name
        values = {"fullnameOverride": system, **values}
        manifests = self.chart.manifests(values, "--namespace", system)
        directory = self.directory / system
        directory.mkdir()
        self.made.append(OperatorProcess(self.server, manifests, directory, self.dashboard))
        return self.made[-1]

    def close(self) -> None:
        """Stop the operators. Fail the test if one sent a request that it has no right to."""
        for operator in self.made:
            operator.close()
            print(operator.output())
            assert not _refused(self.server.requests_of(operator.user))


def _refused(events: list[Object]) -> set[str]:
    """Return the requests that were refused every time.

    A starting API server refuses some requests that it allows later. A request that was answered
    with 404 was allowed: its object was gone.
    """
    codes: dict[int, set[str]] = {403: set(), 200: set(), 201: set(), 404: set()}
    for event in events:
        asked = f"{event['verb']} {event['requestURI'].partition('?')[0]}"
        codes.setdefault(event["responseStatus"]["code"], set()).add(asked)
    return codes[403] - codes[200] - codes[201] - codes[404]

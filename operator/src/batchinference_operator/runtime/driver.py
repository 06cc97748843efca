"""Asking the driver of a job how it goes.

The driver keeps its report among Ray's logs on the head, and Ray's dashboard serves it from there,
also when the driver has gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import aiohttp

from batchinference.spec.report import REPORT_FILE, Report
from batchinference_operator.status.observations import DASHBOARD_PORT, RayJobView

TIMEOUT_SECONDS = 10
_NO_FILE = "not found at"


@dataclass(frozen=True)
class Answer:
    """`reached` tells whether an answer came; `report` is None when there is none yet."""

    reached: bool
    report: Report | None = None


class Driver(Protocol):
    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer: ...


class Dashboard:
    """Asks through the dashboard of the job's Ray cluster."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        if not ray_job.head_ip:
            return Answer(reached=False)
        host = f"{ray_job.head_service}.{namespace}.svc"
        url = f"http://{host}:{DASHBOARD_PORT}/api/v0/logs/file"
        query = {"node_ip": ray_job.head_ip, "filename": REPORT_FILE, "lines": "-1"}
        headers = {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(
                url, params=query, headers=headers, timeout=timeout
            ) as response:
                return _answer(response.status, await response.text())
        except (TimeoutError, aiohttp.ClientError):
            return Answer(reached=False)


def _answer(status: int, text: str) -> Answer:
    if status != 200:
        return Answer(reached=_NO_FILE in text)
    try:
        return Answer(reached=True, report=Report.parse(text))
    except ValueError:
        return Answer(reached=False)

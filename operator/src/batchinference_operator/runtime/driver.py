"""Asking the driver of a job how it goes, and to stop.

The driver keeps its report among Ray's logs on the head, and Ray's dashboard serves it from there,
also when the driver has gone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp

from batchinference.spec.report import REPORT_FILE, Report
from batchinference_operator.status.observations import DASHBOARD_PORT, RayJobView

TIMEOUT_SECONDS = 5
MAX_BYTES = 1 << 20
"""A report has some kilobytes. The head is the user's: it may send anything."""
NOT_REACHED = (TimeoutError, aiohttp.ClientError, UnicodeError)  # the last from DNS
_NO_FILE = b"not found at"


@dataclass(frozen=True)
class Answer:
    """`reached` tells whether an answer came; `report` is None when there is none yet."""

    reached: bool
    report: Report | None = None


class Driver(Protocol):
    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer: ...

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        """Have it commit what is under way and end. That it cannot be reached is no error: it is
        ended anyway."""


class Dashboard:
    """Asks through the dashboard of the job's Ray cluster."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        if not (ray_job.head_ip and ray_job.head_service):
            return Answer(reached=False)
        url = f"{_dashboard(namespace, ray_job)}/api/v0/logs/file"
        query = {"node_ip": ray_job.head_ip, "filename": REPORT_FILE, "lines": "-1"}
        try:
            async with self._session.get(url, params=query, **_options(token)) as response:
                return _answer(response.status, await _read(response))
        except NOT_REACHED:
            return Answer(reached=False)

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        if not (ray_job.job_id and ray_job.head_service):
            return
        url = f"{_dashboard(namespace, ray_job)}/api/jobs/{ray_job.job_id}/stop"
        with suppress(*NOT_REACHED):
            async with self._session.post(url, **_options(token)):
                pass


def _dashboard(namespace: str, ray_job: RayJobView) -> str:
    return f"http://{ray_job.head_service}.{namespace}.svc:{DASHBOARD_PORT}"


def _options(token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    return {"headers": headers, "timeout": timeout, "allow_redirects": False}


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, or as much of it as is read of any."""
    content = b""
    async for chunk in response.content.iter_chunked(MAX_BYTES):
        content += chunk
        if len(content) > MAX_BYTES:
            break
    return content


def _answer(status: int, content: bytes) -> Answer:
    if status != HTTPStatus.OK:
        return Answer(reached=_NO_FILE in content)
    try:
        return Answer(reached=True, report=Report.parse(content))
    except ValueError:
        return Answer(reached=False)

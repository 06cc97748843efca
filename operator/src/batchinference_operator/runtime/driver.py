"""Asking the driver of a job how it goes.

The driver keeps its report among Ray's logs on the head, and Ray's dashboard serves it from there,
also when the driver has gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import aiohttp

from batchinference.spec.report import REPORT_FILE, Report
from batchinference_operator.status.observations import DASHBOARD_PORT, RayJobView

TIMEOUT_SECONDS = 5
MAX_BYTES = 1 << 20
"""A report has some kilobytes. The head is the user's: it may send anything."""
_NO_FILE = b"not found at"


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
        if not (ray_job.head_ip and ray_job.head_service):
            return Answer(reached=False)
        host = f"{ray_job.head_service}.{namespace}.svc"
        url = f"http://{host}:{DASHBOARD_PORT}/api/v0/logs/file"
        query = {"node_ip": ray_job.head_ip, "filename": REPORT_FILE, "lines": "-1"}
        headers = {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(
                url, params=query, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                return _answer(response.status, await _read(response))
        except (TimeoutError, aiohttp.ClientError, UnicodeError):  # the last from DNS
            return Answer(reached=False)


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

"""Reads the report of a job's driver, and asks the driver to stop.

The driver writes its report into Ray's log directory on the head. Ray's dashboard serves the file,
even after the driver has exited.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import aiohttp

from batchinference.spec.report import REPORT_FILE, Report
from batchinference_operator.status.ray_job import DASHBOARD_PORT, RayJobView

CLUSTER_DOMAIN = "cluster.local"
TIMEOUT_SECONDS = 2
MAX_BYTES = 1 << 16
"""Maximum size of a report. Reports have a few kilobytes, but users control the head and may send
anything. Parsing takes up to half a second of the event loop per MiB."""
_UNUSED: dict[str, Any] = {
    "seconds": {},
    "batch_sizes": {},
    "steps": {},
    "versions": {},
    "rows_over_time": None,
    "notes": [],
}
"""Values of the fields that no reconcile reads. Parsed, they may take 20 times their size."""
NOT_REACHED = (
    TimeoutError,
    aiohttp.ClientError,
    UnicodeError,
)  # host name lookups raise UnicodeError
_FILE_NOT_FOUND = b"not found at"
_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Matches the name of a Service. The name comes from the RayJob's status, which users may write.
Any other text could address another host."""


@dataclass(frozen=True)
class Answer:
    """The result of polling a driver.

    `reached` is whether the driver answered. `report` is None if there is none yet. `problem` is
    why the driver did not answer. `age` is the age of the answer in seconds.
    """

    reached: bool
    report: Report | None = None
    problem: str = ""
    unauthorized: bool = False
    age: float = 0.0


class Driver(Protocol):
    async def poll(self, namespace: str, ray_job: RayJobView, token: str) -> Answer: ...

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        """Ask the driver to commit the work in progress and exit.

        An unreachable driver is not an error, because the operator later deletes its RayJob.
        """


class DashboardClient:
    """Reaches the driver through the dashboard of the job's Ray cluster."""

    def __init__(
        self, session: aiohttp.ClientSession, cluster_domain: str = CLUSTER_DOMAIN
    ) -> None:
        self._session = session
        self._domain = cluster_domain

    def _address(self, namespace: str, ray_job: RayJobView) -> str:
        """Return the URL of the dashboard.

        The host name ends with a dot, so that DNS does not try search domains first. Otherwise pods
        in a namespace named `svc` could answer for any head.
        """
        host = f"{ray_job.head_service}.{namespace}.svc.{self._domain}."
        return f"http://{host}:{DASHBOARD_PORT}"

    async def poll(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        if not (ray_job.head_ip and _SERVICE.fullmatch(ray_job.head_service)):
            return Answer(reached=False, problem="it has no address yet")
        url = f"{self._address(namespace, ray_job)}/api/v0/logs/file"
        query = {"node_ip": ray_job.head_ip, "filename": REPORT_FILE, "lines": "-1"}
        try:
            async with self._session.get(url, params=query, **_request_options(token)) as response:
                return _parse_answer(_host(ray_job), response.status, await _read_body(response))
        except TimeoutError:
            problem = f"does not answer the operator within {TIMEOUT_SECONDS} s"
            return Answer(reached=False, problem=f"{_host(ray_job)} {problem}")
        except NOT_REACHED:
            problem = "cannot be reached from the operator"
            return Answer(reached=False, problem=f"{_host(ray_job)} {problem}")

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        if not (ray_job.job_id and _SERVICE.fullmatch(ray_job.head_service)):
            return
        url = f"{self._address(namespace, ray_job)}/api/jobs/{ray_job.job_id}/stop"
        with suppress(*NOT_REACHED):
            async with self._session.post(url, **_request_options(token)):
                pass


def _host(ray_job: RayJobView) -> str:
    return f"{ray_job.head_service}:{DASHBOARD_PORT}"


def _request_options(token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    return {"headers": headers, "timeout": timeout, "allow_redirects": False}


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body. Stop reading once it exceeds MAX_BYTES."""
    content = b""
    async for chunk in response.content.iter_chunked(MAX_BYTES):
        content += chunk
        if len(content) > MAX_BYTES:
            break
    return content


def _parse_answer(host: str, status: int, content: bytes) -> Answer:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        problem = f"{host} rejects the operator's token ({status}): {_WRONG_KEY}"
        return Answer(reached=False, problem=problem, unauthorized=True)
    if status != HTTPStatus.OK:
        reached = _FILE_NOT_FOUND in content
        return Answer(reached, problem="" if reached else f"{host} answers {status}")
    try:
        report = Report.parse(content).model_copy(update=_UNUSED)
        return Answer(reached=True, report=report)
    except ValueError:
        return Answer(reached=False, problem=f"{host} returned an invalid report")


_WRONG_KEY = (
    "the operator's token key was replaced while the job was running, "
    "or another release of the operator created the job's Secret"
)

"""Reads the report of a driver, and stops the driver, through the dashboard of its Ray cluster."""

import re
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from batchinference.spec.report import REPORT_FILE, Report
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.status.ray_job_view import DASHBOARD_PORT, RayJobView

CLUSTER_DOMAIN = "cluster.local"
TIMEOUT_SECONDS = 2.0
MAX_BYTES = 1 << 16
"""Maximum size of a report. Reports have a few kilobytes, but they are untrusted, and parsing one
MiB may block the event loop for half a second."""
_UNUSED: dict[str, Any] = {
    "seconds": {},
    "batch_sizes": {},
    "steps": {},
    "versions": {},
    "rows_over_time": None,
    "notes": [],
}
"""Empty values that replace the fields of a report that no reconcile reads. Parsed fields may take
20 times the memory of their text."""
NOT_REACHED = TimeoutError, aiohttp.ClientError, UnicodeError
"""Errors of unreachable drivers. The lookup of a host name may raise UnicodeError."""
_FILE_NOT_FOUND = b"not found at"
"""A part of the dashboard's answer if the driver has not written its report yet."""
_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Matches the name of a Service. The name in the RayJob's status is untrusted: another text could
address another host."""


@dataclass(frozen=True)
class DashboardClient:
    """Reaches the driver through the dashboard of the job's Ray cluster."""

    session: aiohttp.ClientSession
    cluster_domain: str = CLUSTER_DOMAIN
    timeout_seconds: float = TIMEOUT_SECONDS

    def _address(self, namespace: str, ray_job: RayJobView) -> str:
        """Return the URL of the dashboard."""
        # the dot at the end prevents DNS search domains, with which a Service in a namespace named
        # `svc` could answer instead of the head
        host = f"{ray_job.head_service}.{namespace}.svc.{self.cluster_domain}."
        return f"http://{host}:{DASHBOARD_PORT}"

    async def poll(self, namespace: str, ray_job: RayJobView, token: str) -> DriverAnswer:
        """Read the driver's report through the dashboard, and return the result."""
        if not (ray_job.head_ip and _SERVICE.fullmatch(ray_job.head_service)):
            return DriverAnswer(reached=False, problem="it has no address yet")
        url = f"{self._address(namespace, ray_job)}/api/v0/logs/file"
        query = {"node_ip": ray_job.head_ip, "filename": REPORT_FILE, "lines": "-1"}
        try:
            async with self.session.get(url, params=query, **self._options(token)) as response:
                return _parse_answer(_host(ray_job), response.status, await _read_body(response))
        except TimeoutError:
            problem = f"does not answer the operator within {self.timeout_seconds:g} s"
        except NOT_REACHED:
            problem = "cannot be reached from the operator"
        return DriverAnswer(reached=False, problem=f"{_host(ray_job)} {problem}")

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        """Ask the driver to commit what it has computed and exit. An unreachable driver is not an
        error, because the operator later deletes its RayJob."""
        if not (ray_job.job_id and _SERVICE.fullmatch(ray_job.head_service)):
            return
        url = f"{self._address(namespace, ray_job)}/api/jobs/{ray_job.job_id}/stop"
        with suppress(*NOT_REACHED):
            async with self.session.post(url, **self._options(token)):
                pass

    def _options(self, token: str) -> dict[str, Any]:
        """Return the arguments of a request with a token."""
        headers = {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        return {"headers": headers, "timeout": timeout, "allow_redirects": False}


def _host(ray_job: RayJobView) -> str:
    return f"{ray_job.head_service}:{DASHBOARD_PORT}"


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, or only its beginning if it exceeds MAX_BYTES."""
    content = b""
    async for chunk in response.content.iter_chunked(MAX_BYTES):
        content += chunk
        if len(content) > MAX_BYTES:
            break
    return content


def _parse_answer(host: str, status: int, content: bytes) -> DriverAnswer:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        problem = f"{host} rejects the operator's token ({status}): {_WRONG_KEY}"
        return DriverAnswer(reached=False, problem=problem, unauthorized=True)
    if status != HTTPStatus.OK:
        reached = _FILE_NOT_FOUND in content
        return DriverAnswer(reached, problem="" if reached else f"{host} answers {status}")
    try:
        report = Report.parse(content).model_copy(update=_UNUSED)
        return DriverAnswer(reached=True, report=report)
    except ValueError:
        return DriverAnswer(reached=False, problem=f"{host} returned an invalid report")


_WRONG_KEY = (
    "the operator's token key was replaced while the job was running, "
    "or another release of the operator created the job's Secret"
)

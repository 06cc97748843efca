"""Checks at the start that the API server has all required kinds and lets the operator list them.

If no namespace passes, the operator logs the reason and exits, and Kubernetes restarts the
operator. The reason for the check: kopf does not report a missing kind. Without the right to watch
CustomResourceDefinitions, kopf waits for the kind forever.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus

import aiohttp
import kopf

from batchinference.rendering import RAY_JOB
from batchinference.spec.job import KIND, SCHEDULE_KIND
from batchinference_operator.kube.api_errors import message_of
from batchinference_operator.kube.http import send
from batchinference_operator.kube.object_client import path_of

logger = logging.getLogger("batchinference.operator")


class NotReady(Exception):
    """The operator cannot start. The message says what is missing and how to fix it."""


class ApiUnreachable(NotReady):
    """The API server does not answer."""


_INSTALL_CRDS = "install the operator's chart with crds.enabled=true"
_FIXES = {
    KIND: _INSTALL_CRDS,
    SCHEDULE_KIND: _INSTALL_CRDS,
    RAY_JOB: "install KubeRay, or set kuberay.enabled=true in the chart",
}
"""What to do if one of the required kinds is missing."""


async def check_api(session: kopf.AiohttpSession, namespaces: Sequence[str]) -> list[str]:
    """Return the namespaces that cannot be watched, and log a warning for each. Raises NotReady if
    no namespace can be watched, or if the API server fails."""
    results = {name: await _first_problem(session, name) for name in namespaces or [""]}
    problems = {name: problem for name, problem in results.items() if problem}
    if len(problems) == len(results):
        raise NotReady(next(iter(problems.values())))
    for problem in problems.values():
        logger.warning("%s; the operator continues with the other namespaces", problem)
    return list(problems)


async def _first_problem(session: kopf.AiohttpSession, namespace: str) -> str | None:
    """Return why a required kind cannot be listed in a namespace; None if all kinds can. An empty
    namespace means all namespaces. Raises NotReady or ApiUnreachable."""
    for kind in _FIXES:
        path = f"{path_of(kind, namespace)}?limit=1"
        try:
            status, answer, _ = await send(session, "GET", path)
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = f"the API server cannot be reached: {error or 'no answer'}"
            raise ApiUnreachable(problem) from None
        if status >= HTTPStatus.BAD_REQUEST:
            problem = _describe_problem(kind, namespace, status, message_of(answer))
            if status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
                return problem
            raise NotReady(problem)
    return None


def _describe_problem(kind: str, namespace: str, status: int, message: str) -> str:
    _, _, group, version, plural = path_of(kind, "").split("/")
    name = f"{plural}.{group}"
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    if status == HTTPStatus.NOT_FOUND:
        return f"CustomResourceDefinition {name} ({version}) is missing: {_FIXES[kind]}"
    if status == HTTPStatus.FORBIDDEN:
        return f"the right to list {name} {where} is missing; the chart's roles have it: {message}"
    return f"cannot list {name} {where}: {status}: {message}"

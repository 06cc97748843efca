"""Sends the notifications about jobs that have ended.

A tenant chooses the URL, so it must be below a URL in the policy of the platform. Redirects are not
followed, and nothing of an answer but its status is shown. A URL and the text of an error about it
may be secret."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from batchinference.rendering.policy import NONE, PlatformPolicy, refusal
from batchinference.spec.notifications import (
    SECRET,
    EndedJob,
    Notification,
    Request,
    is_allowed,
    is_repeated,
    problem_of,
)
from batchinference_operator.controller.workqueue import WorkQueue
from batchinference_operator.kube.client import KubeClient
from batchinference_operator.kube.errors import Refused, Unreachable
from batchinference_operator.observability.logging import log_context
from batchinference_operator.reconcile.job_view import JobKey, JobView
from batchinference_operator.reconcile.notification import ended_job, unsent_notifications

MAX_TRIES = 10
"""Tries of the notifications of a job: over about four minutes, if the endpoint answers at once."""
TIMEOUT = aiohttp.ClientTimeout(total=10)
WORKERS = 8
logger = logging.getLogger("batchinference.operator")


class _Repeated(Exception):
    """A request that has failed and is sent again."""


@dataclass
class _Delivery:
    """The notifications about one end of a job. A name without a result has not been sent yet."""

    job: EndedJob
    notifications: list[Notification]
    tries: int = 0
    results: dict[str, str] = field(default_factory=dict)
    """Why each one could not be sent; empty texts for those that were sent."""

    @property
    def ended(self) -> bool:
        return len(self.results) == len(self.notifications)


class Notifier:
    """Sends notifications in the background, round-robin by namespace. `done` is called with the
    key of a job whose notifications were sent or given up. All methods must be called in one event
    loop."""

    def __init__(
        self, api: KubeClient, policy: Callable[[], PlatformPolicy], done: Callable[[JobKey], None]
    ) -> None:
        self._api, self._policy, self._done = api, policy, done
        self._queue: WorkQueue[JobKey] = WorkQueue(flow=lambda key: key[0])
        self._deliveries: dict[JobKey, _Delivery] = {}

    def results(self, job: JobView) -> dict[str, str] | None:
        """Return why each notification about the end of a job could not be sent; None until all
        were sent or given up."""
        found = self._deliveries.get(job.key)
        known = found is not None and found.ended and found.job.id == ended_job(job).id
        return found.results if found and known else None

    def start(self, job: JobView) -> None:
        """Begin to send the notifications about a job that has ended, once."""
        ended, known = ended_job(job), self._deliveries.get(job.key)
        if known is None or known.job.id != ended.id:
            self._deliveries[job.key] = _Delivery(ended, unsent_notifications(job))
            self._queue.add(job.key)

    def forget(self, key: JobKey) -> None:
        """Forget a job whose notifications are recorded, or that is gone."""
        if self._deliveries.pop(key, None) is not None:
            self._queue.drop(key)

    async def work(self) -> None:
        """Run one worker until it is cancelled."""
        # with the proxy of the environment
        cookies = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(cookie_jar=cookies, trust_env=True) as session:
            while True:
                key = await self._queue.get()
                if (delivery := self._deliveries.get(key)) is not None:
                    with log_context(*key):
                        await self._deliver(session, key, delivery)
                self._queue.done(key)

    async def _deliver(
        self, session: aiohttp.ClientSession, key: JobKey, delivery: _Delivery
    ) -> None:
        delivery.tries += 1
        for one in delivery.notifications:
            if one.name not in delivery.results:
                await self._try(session, one, delivery)
        if delivery.ended:
            self._queue.forget(key)
            self._done(key)
        else:
            self._queue.add_rate_limited(key)

    async def _try(
        self, session: aiohttp.ClientSession, one: Notification, delivery: _Delivery
    ) -> None:
        try:
            problem = await self._send(session, one, delivery.job)
        except _Repeated as error:
            logger.info("notification %s is not sent yet: %s", one.name, error)
            if delivery.tries < MAX_TRIES:
                return
            problem = f"{error}, after {MAX_TRIES} tries"
        except Exception as error:  # noqa: BLE001 - no failure may affect jobs, or show a URL
            problem = f"it cannot be sent ({type(error).__name__})"
        if problem:
            logger.warning("notification %s was not sent: %s", one.name, problem)
        delivery.results[one.name] = problem

    async def _send(self, session: aiohttp.ClientSession, one: Notification, job: EndedJob) -> str:
        """Send a notification. Return why that is impossible; empty if it was sent. Raises
        _Repeated."""
        allowed = self._policy().notifications
        if not allowed:
            return f"a notification {refusal('notifications', NONE)}"
        try:
            request = one.request(job, await self._variables(job.namespace or ""))
        except KeyError as missing:
            return f"the Secret {SECRET} of the namespace has no key {missing.args[0]}"
        except (Refused, ValueError) as error:
            if isinstance(error, Unreachable):
                raise _Repeated("the API server is unreachable") from None
            return f"the Secret {SECRET} of the namespace cannot be read ({type(error).__name__})"
        if not is_allowed(request.url, allowed):
            return f"the URL in {one.url_env} {refusal('notifications', ', '.join(allowed))}"
        status = await _post(session, request)
        if is_repeated(status):
            raise _Repeated(problem_of(status))
        return problem_of(status)

    async def _variables(self, namespace: str) -> dict[str, str]:
        secret = await self._api.get_object("Secret", namespace, SECRET) or {}
        entries = (secret.get("data") or {}).items()
        return {name: base64.b64decode(value).decode() for name, value in entries}


async def _post(session: aiohttp.ClientSession, request: Request) -> int:
    """Send a request, and return the status of the answer. Its body is not read."""
    try:
        async with session.post(
            request.url,
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
            timeout=TIMEOUT,
        ) as answer:
            return answer.status
    except TimeoutError:
        raise _Repeated(f"the endpoint gives no answer within {TIMEOUT.total:g} s") from None
    except (aiohttp.ClientError, OSError):
        raise _Repeated("the endpoint cannot be reached") from None

"""Sends the notifications about jobs that have ended.

A tenant chooses the URL, so it must be below a URL in the policy of the platform. Redirects are not
followed, and only the status of an answer is shown. URLs, and so also errors that contain them, are
secret and not logged.
"""

import logging
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from batchinference.rendering.policy import NONE, PlatformPolicy, not_allowed
from batchinference.spec.notifications import (
    SECRET,
    EndedJob,
    Notification,
    is_allowed,
    is_retryable,
    problem_of,
)
from batchinference_operator.controller.work_queue import WorkQueue
from batchinference_operator.kube.api_errors import Refused, Unreachable
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.observability.logging import log_context
from batchinference_operator.reconcile.job_view import JobKey, JobView
from batchinference_operator.reconcile.unsent_notifications import ended_job, unsent_notifications

MAX_TRIES = 10
"""Number of tries to send the notifications of a job. The backoffs add up to three minutes."""
TIMEOUT_SECONDS = 10.0
WORKERS = 8
logger = logging.getLogger("batchinference.operator")


@dataclass
class _Delivery:
    """The notifications about one end of a job, and the results so far."""

    job: EndedJob
    notifications: list[Notification]
    tries: int = 0
    results: dict[str, str] = field(default_factory=dict)
    """By name of a notification, why it could not be sent; empty if it was sent."""

    @property
    def ended(self) -> bool:
        return len(self.results) == len(self.notifications)


@dataclass
class Notifier:
    """Sends notifications in the background, round-robin by namespace."""

    api: KubeClient
    policy: Callable[[], PlatformPolicy]
    on_done: Callable[[JobKey], None]
    """Called with the key of a job when all its notifications were sent or given up."""
    max_tries: int = MAX_TRIES
    timeout_seconds: float = TIMEOUT_SECONDS
    queue: WorkQueue[JobKey] = field(default_factory=WorkQueue)
    _deliveries: dict[JobKey, _Delivery] = field(default_factory=dict)

    def results(self, job: JobView) -> dict[str, str] | None:
        """Return `_Delivery.results` about the end of a job; None until these are complete."""
        delivery = self._deliveries.get(job.key)
        if delivery is None or not delivery.ended or delivery.job.id != ended_job(job).id:
            return None
        return delivery.results

    def start(self, job: JobView) -> None:
        """Begin to send the notifications about the end of a job, unless this has begun before."""
        ended, delivery = ended_job(job), self._deliveries.get(job.key)
        if delivery is None or delivery.job.id != ended.id:
            self._deliveries[job.key] = _Delivery(ended, unsent_notifications(job))
            self.queue.add(job.key)

    def forget(self, key: JobKey) -> None:
        """Forget a job whose notifications are recorded, or that is gone."""
        if self._deliveries.pop(key, None) is not None:
            self.queue.drop(key)

    async def work(self) -> None:
        """Run one worker until it is cancelled."""
        cookies = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(cookie_jar=cookies, trust_env=True) as session:
            while True:
                key = await self.queue.get()
                if (delivery := self._deliveries.get(key)) is not None:
                    with log_context(*key):
                        await self._deliver(session, key, delivery)
                self.queue.done(key)

    async def _deliver(
        self, session: aiohttp.ClientSession, key: JobKey, delivery: _Delivery
    ) -> None:
        delivery.tries += 1
        for one in delivery.notifications:
            if one.name in delivery.results:
                continue
            problem, retryable = await self._try(session, one, delivery.job)
            if retryable and delivery.tries < self.max_tries:
                continue
            if problem:
                logger.warning("notification %s was not sent: %s", one.name, problem)
            delivery.results[one.name] = problem
        if delivery.ended:
            self.queue.forget(key)
            self.on_done(key)
        else:
            self.queue.add_rate_limited(key)

    async def _try(
        self, session: aiohttp.ClientSession, one: Notification, job: EndedJob
    ) -> tuple[str, bool]:
        """Send a notification. Return why it failed (empty if not), and whether to try again."""
        try:
            return await self._send(session, one, job)
        except TimeoutError:
            return f"the endpoint gives no answer within {self.timeout_seconds:g} s", True
        except (aiohttp.ClientError, OSError):
            return "the endpoint cannot be reached", True
        except Unreachable:
            return "the API server is unreachable", True
        except KeyError as missing:
            return f"the Secret {SECRET} of the namespace has no key {missing.args[0]}", False
        except Refused as error:
            return f"the Secret {SECRET} cannot be read ({type(error).__name__})", False
        except Exception as error:  # noqa: BLE001 - no failure may affect jobs, or show a URL
            return f"it cannot be sent ({type(error).__name__})", False

    async def _send(
        self, session: aiohttp.ClientSession, one: Notification, job: EndedJob
    ) -> tuple[str, bool]:
        allowed = self.policy().notifications
        if not allowed:
            return f"a notification {not_allowed('notifications', NONE)}", False
        secret = await self.api.get_object("Secret", job.namespace or "", SECRET) or {}
        data = (secret.get("data") or {}).items()
        variables = {name: b64decode(value).decode(errors="replace") for name, value in data}
        url, body, headers = one.request(job, variables)
        if not is_allowed(url, allowed):
            why = not_allowed("notifications", ", ".join(allowed))
            return f"the URL in {one.url_env} {why}", False
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        sent = session.post(url, data=body, headers=headers, allow_redirects=False, timeout=timeout)
        async with sent as answer:
            return problem_of(answer.status), is_retryable(answer.status)

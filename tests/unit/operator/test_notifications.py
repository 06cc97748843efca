"""Notifications of jobs that have ended: the operator sends them, and records how that went."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.notifications import SECRET
from batchinference.spec.report import JobState
from batchinference_operator.controller.notifier import Notifier
from batchinference_operator.controller.work_queue import WorkQueue
from batchinference_operator.kube.api_errors import Forbidden, Unreachable
from batchinference_operator.reconcile.job_view import JobKey, JobView
from batchinference_operator.status.conditions import NOTIFIED, find_condition
from batchinference_operator.status.job_events import events_between
from plugins.messages import Messages
from support.operator.harness import Harness
from support.operator.objects import NAMESPACE, job_body
from support.operator.reconcile_loop import ReconcileLoop
from support.operator.virtual_time import in_virtual_time, until
from support.servers.scripted_http import Answer, Serve, Server, answering

HOOK = [{"name": "chat", "urlEnv": "URL"}]
POLICY = PlatformPolicy(notifications=["http://127.0.0.1:1/"])
ENDED = {
    "conditions": [{"type": "Complete", "status": "True", "reason": "Succeeded", "message": ""}],
    "completionTime": "2026-03-01T12:00:00Z",
    "counts": {"read": 3, "written": 3},
}


def ended_job(notifications: Any = HOOK, **ttl: str) -> ReconcileLoop:
    loop = ReconcileLoop(notifications=notifications, ttl=ttl)
    loop.allow(notifications=POLICY.notifications)
    loop.run()
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile()
    return loop


def job(uid: str = "u", namespace: str = NAMESPACE, hooks: Any = HOOK) -> JobView:
    body = job_body(status=ENDED, uid=uid, namespace=namespace)
    body["spec"]["notifications"] = hooks
    return JobView.of(body)


# --- what is recorded ------------------------------------------------------------------


def test_notifications_are_sent_once_after_the_end_is_recorded() -> None:
    loop = ended_job()
    assert loop.reconcile().notify
    loop.notified = {"chat": ""}
    actions = loop.reconcile()
    assert not actions.notify
    condition = find_condition(loop.status, NOTIFIED)
    assert (condition["status"], condition["reason"]) == ("True", "Sent")
    loop.notified = None
    assert not loop.reconcile(60).notify


def test_failed_notification_is_an_event_and_not_a_failure_of_the_job() -> None:
    loop = ended_job()
    before = loop.status
    loop.notified = {"chat": "the endpoint answers 404"}
    loop.reconcile()
    (event,) = events_between(before, loop.status)
    assert (event.type, event.reason) == ("Warning", "NotificationFailed")
    assert "the endpoint answers 404" in event.note
    assert loop.phase == "Succeeded"
    assert find_condition(loop.status, "Complete") == find_condition(before, "Complete")


def test_job_is_deleted_after_its_notifications() -> None:
    loop = ended_job(afterFinished="2s", cluster="0s", rayJob="1s")
    actions = loop.reconcile(60)
    assert actions.notify
    assert not actions.delete_job
    assert actions.delete_ray_jobs, "its cluster does not wait for them"
    loop.notified = {"chat": "no answer"}
    loop.reconcile()
    assert loop.reconcile().delete_job


def test_jobs_that_want_none_send_none() -> None:
    for hooks in ([], [{**HOOK[0], "when": "failed"}]):
        assert not ended_job(hooks).reconcile().notify
    loop = ReconcileLoop(notifications=[{"name": "invalid"}])
    loop.reconcile()
    assert (loop.phase, loop.reconcile().notify) == ("Failed", False)


def test_corrected_spec_notifies_again_about_its_new_end() -> None:
    loop = ReconcileLoop(notifications=HOOK)
    loop.reconcile()
    assert (loop.phase, loop.reconcile().notify) == ("Failed", True), "the policy allows none"
    loop.notified = {"chat": "refused"}
    loop.reconcile()
    loop.notified, loop.generation = None, 2
    loop.allow(notifications=POLICY.notifications)
    loop.reconcile()
    assert find_condition(loop.status, NOTIFIED) == {}


# --- how it is sent --------------------------------------------------------------------


class Sending:
    """A notifier with one worker, and a namespace with a Secret."""

    def __init__(self, server: Server, timeout_seconds: float) -> None:
        self.url = f"{server.url}/hook/secret"
        self.allowed = [f"{server.url}/hook/"]
        self.secret: Any = {"URL": self.url}
        self.ended: asyncio.Queue[JobKey] = asyncio.Queue()
        policy = lambda: PlatformPolicy(notifications=self.allowed)  # noqa: E731
        self.notifier = Notifier(
            self,  # type: ignore[arg-type]
            policy,
            self.ended.put_nowait,
            max_tries=3,
            timeout_seconds=timeout_seconds,
            queue=WorkQueue(first_retry_seconds=0.0),
        )

    async def get_object(self, kind: str, namespace: str, name: str) -> Any:
        assert (kind, name) == ("Secret", SECRET)
        if isinstance(self.secret, Exception):
            raise self.secret
        data = {key: base64.b64encode(text.encode()).decode() for key, text in self.secret.items()}
        return {"data": data}

    async def send(self, one: JobView) -> dict[str, str]:
        """Send the notifications of a job, and return their results."""
        self.notifier.start(one)
        self.notifier.start(one)
        assert await asyncio.wait_for(self.ended.get(), 30) == one.key
        return self.notifier.results(one) or {}


@pytest.fixture
def sending(serve: Serve) -> Callable[..., Any]:
    @asynccontextmanager
    async def start(
        answer: Answer, timeout_seconds: float = 10.0
    ) -> AsyncIterator[tuple[Sending, Server]]:
        server = await serve(answer)
        made = Sending(server, timeout_seconds)
        work = asyncio.create_task(made.notifier.work())
        yield made, server
        work.cancel()

    return start


async def test_request_has_an_id_and_the_result_of_the_job(sending: Any) -> None:
    async with sending(answering(200, {})) as (made, server):
        assert await made.send(job()) == {"chat": ""}
    (request,) = server.requests
    assert request.headers["Idempotency-Key"] == "u/2026-03-01T12:00:00Z/chat"
    assert request.body["data"]["written"] == 3


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_transient_errors_are_repeated_with_the_same_id(sending: Any, status: int) -> None:
    statuses = iter([status, status, 204])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=next(statuses))

    async with sending(answer) as (made, server):
        assert await made.send(job()) == {"chat": ""}
    assert len({request.headers["Idempotency-Key"] for request in server.requests}) == 1
    assert len(server.requests) == 3


async def test_endpoint_that_fails_is_given_up(sending: Any, messages: Messages) -> None:
    async with sending(answering(500, "internal: secret")) as (made, server):
        messages.check((await made.send(job()))["chat"])
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [301, 307, 400, 404])
async def test_redirects_and_other_answers_are_not_followed(sending: Any, status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "/hook/elsewhere"})

    async with sending(answer) as (made, server):
        assert await made.send(job()) == {"chat": f"the endpoint answers {status}"}
    assert len(server.requests) == 1


async def test_silent_endpoint_ends_within_bounded_time(sending: Any) -> None:
    silence = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        await silence.wait()
        return web.Response()

    async with sending(answer, 0.05) as (made, _):
        assert "gives no answer" in (await made.send(job()))["chat"]
        silence.set()


async def test_notifications_of_a_job_are_independent(sending: Any) -> None:
    hooks = [*HOOK, {"name": "other", "urlEnv": "OTHER"}]
    async with sending(answering(200, {})) as (made, server):
        answer = await made.send(job(hooks=hooks))
    assert answer["chat"] == ""
    assert "OTHER" in answer["other"]
    assert len(server.requests) == 1


async def test_url_that_the_platform_does_not_allow_gets_no_request(
    sending: Any, messages: Messages
) -> None:
    async with sending(answering(200, {})) as (made, server):
        made.allowed = ["https://hooks.example/services/"]
        for url in (f"{server.url}/", "http://169.254.169.254/latest", "no url"):
            made.secret = {"URL": url}
            messages.check((await made.send(job(url)))["chat"])
        made.allowed = []
        messages.check((await made.send(job("later")))["chat"])
    assert server.requests == []


@pytest.mark.parametrize(
    "secret",
    [{}, Forbidden("403"), Unreachable("down"), {"URL": "\0"}],
    ids=["no key", "forbidden", "unreachable", "no URL"],
)
async def test_secret_without_the_url_is_explained(
    sending: Any, secret: Any, messages: Messages
) -> None:
    async with sending(answering(200, {})) as (made, _):
        made.secret = secret
        messages.check((await made.send(job()))["chat"])


async def test_no_secret_is_in_a_result_or_in_the_log(
    sending: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = [{**HOOK[0], "apiKeyEnv": "T"}]
    caplog.set_level("DEBUG", "batchinference.operator")
    async with sending(answering(500, "internal")) as (made, _):
        for number, token in enumerate(("s3cret", "s3cret\r\nX: y")):
            made.secret = {"URL": made.url, "T": token}
            shown = str(await made.send(job(str(number), hooks=hook))) + caplog.text
            assert not any(secret in shown for secret in ("s3cret", made.url, "internal"))
    assert "notification chat was not sent" in caplog.text


async def test_job_of_another_end_is_sent_again(sending: Any) -> None:
    async with sending(answering(200, {})) as (made, server):
        await made.send(job("first"))
        assert made.notifier.results(job("second")) is None
        await made.send(job("second"))
        made.notifier.forget(job("second").key)
        assert made.notifier.results(job("second")) is None
    assert len(server.requests) == 2


# --- in the operator ---------------------------------------------------------------------


@in_virtual_time
async def test_operator_that_restarts_sends_what_is_not_recorded() -> None:
    harness = Harness()
    harness.cluster.apply(notifications=HOOK)  # which the policy of this platform does not allow

    def condition() -> Any:
        return find_condition(harness.cluster.status("job"), NOTIFIED)

    async with harness.operator():
        await until(harness.is_finished)
        await asyncio.sleep(60)
        assert not condition(), "no worker sends notifications"
    async with harness.operator() as controller:
        work = asyncio.create_task(controller.notifier.work())
        await until(lambda: condition() or work.done())
        work.cancel()
    assert condition()["status"] == "False"

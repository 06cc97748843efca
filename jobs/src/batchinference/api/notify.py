"""Sends the notifications about a run on this machine. On a cluster, the operator does that."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread

from batchinference.spec import BatchInference
from batchinference.spec.notifications import EndedJob, Notification, is_repeated, problem_of
from batchinference.spec.report import JobState, Report

ATTEMPTS, FIRST_WAIT_SECONDS = 4, 1.0
TIMEOUTS = (5.0, 10.0)
"""Timeouts in seconds to connect, and until the answer."""
DEADLINE_SECONDS = 45.0
"""Deadline of all notifications of a run. A run that was interrupted waits for one attempt."""


def missing_variables(job: BatchInference) -> Iterator[str]:
    """Yield a line for each notification that cannot be sent."""
    for one in job.spec.notifications:
        for name in (one.url_env, one.api_key_env):
            if name and name not in os.environ:
                why = f"the environment variable {name} is not set"
                yield f"notification '{one.name}' will not be sent: {why}"


def notify(job: BatchInference, report: Report, say: Callable[[str], None]) -> None:
    """Send the notifications of a job that has ended, and say how that went. Raises nothing: the
    result of the job does not depend on them."""
    counts = report.counts.model_dump(by_alias=True) if report.counts else {}
    succeeded, times = report.state is JobState.SUCCEEDED, (report.started_at, report.updated_at)
    place = (report.reason, report.message, report.output)
    ended = EndedJob(uuid.uuid4().hex, report.name, succeeded, None, *place, *times, counts)
    interrupted = report.reason == "Interrupted"
    deadline = time.monotonic() + (sum(TIMEOUTS) if interrupted else DEADLINE_SECONDS)
    sent = [
        (one.name, _in_thread(one, ended, 1 if interrupted else ATTEMPTS))
        for one in ended.wanted(job.spec.notifications)
    ]
    for name, answer in sent:
        try:
            problem = answer.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            problem = "the endpoint gives no answer"
        result = f"was not sent: {problem}" if problem else "was sent"
        say(f"{report.name}: notification '{name}' {result}")


def _in_thread(one: Notification, ended: EndedJob, attempts: int) -> SimpleQueue[str]:
    """Return a queue that gets the problem. A thread, because the timeouts of a socket start again
    with each byte."""
    answers: SimpleQueue[str] = SimpleQueue()
    Thread(target=lambda: answers.put(_send(one, ended, attempts)), daemon=True).start()
    return answers


def _send(one: Notification, ended: EndedJob, attempts: int) -> str:
    """Return why a notification could not be sent; empty if it was sent. The text of an error may
    contain the URL."""
    import requests

    from batchinference.pipeline.storage.retry import RetryPolicy, TryAgain

    def post() -> str:
        try:
            request = one.request(ended, os.environ)
            with requests.post(
                request.url,
                data=request.body,
                headers=request.headers,
                auth=lambda prepared: prepared,  # not the credentials of ~/.netrc
                timeout=TIMEOUTS,
                stream=True,
                allow_redirects=False,
            ) as answer:
                status = answer.status_code
        except KeyError as missing:
            return f"the environment variable {missing.args[0]} is not set"
        except ValueError:
            return f"{one.url_env} holds no URL, or {one.api_key_env} no token"
        except requests.RequestException as error:
            raise TryAgain(f"the endpoint cannot be reached ({type(error).__name__})") from None
        if is_repeated(status):
            raise TryAgain(problem_of(status))
        return problem_of(status)

    policy = RetryPolicy(attempts, FIRST_WAIT_SECONDS, lambda error: isinstance(error, TryAgain))
    try:
        return policy.call(post)
    except TryAgain as problem:
        return str(problem)

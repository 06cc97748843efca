"""Sends the notifications about a run on this machine. On a cluster, the operator does that."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from batchinference.spec import BatchInference
from batchinference.spec.notifications import EndedJob, Notification, is_repeated, problem_of
from batchinference.spec.report import JobState, Report

if TYPE_CHECKING:
    from batchinference.pipeline.execution.stop_signals import StopSignal

ATTEMPTS, FIRST_WAIT_SECONDS = 4, 1.0
TIMEOUTS = (5.0, 10.0)
"""Timeouts in seconds to connect, and until the answer."""
MAX_SECONDS = 60.0
"""The longest time in seconds for all notifications of a run."""


def notify(
    job: BatchInference, report: Report, say: Callable[[str], None], stop: StopSignal
) -> None:
    """Send the notifications of a job that has ended, and say how that went. Its result does not
    depend on them. A run that was interrupted tries once. Another stop signal ends the attempts."""
    counts = report.counts.model_dump(by_alias=True) if report.counts else {}
    times = report.started_at, report.updated_at
    facts = report.state is JobState.SUCCEEDED, None, report.reason, report.message, report.output
    ended = EndedJob(uuid.uuid4().hex, report.name, *facts, *times, counts)
    tries = 1 if report.reason == "Interrupted" else ATTEMPTS
    stopped = stop.forced if stop.event.is_set() else stop.event
    deadline = time.monotonic() + MAX_SECONDS
    for one in ended.wanted(job.spec.notifications):
        send = partial(_send, one, ended, tries, stopped)
        problem = _unless_stopped(send, stopped, deadline)
        result = f"was not sent: {problem}" if problem else "was sent"
        say(f"{report.name}: notification '{one.name}' {result}")


def _unless_stopped(send: Callable[[], str], stopped: threading.Event, deadline: float) -> str:
    """Return the result of a call in a thread, or why it was not awaited: a signal does not end a
    request."""
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(send()), name="notify", daemon=True)
    if not stopped.is_set() and time.monotonic() < deadline:
        thread.start()
    while thread.is_alive() and not stopped.is_set() and time.monotonic() < deadline:
        thread.join(0.1)
    if results:
        return results[0]
    late = f"the time for all notifications, {MAX_SECONDS:g} s, is over"
    return "a signal has stopped it" if stopped.is_set() else late


def _send(one: Notification, ended: EndedJob, tries: int, stopped: threading.Event) -> str:
    """Return why a notification was not sent; empty if it was. Nothing is repeated after a stop."""
    from batchinference.pipeline.storage.retry import RetryPolicy, TryAgain

    def is_transient(error: BaseException) -> bool:
        return isinstance(error, TryAgain) and not stopped.is_set()

    policy = RetryPolicy(tries, FIRST_WAIT_SECONDS, is_transient, max_seconds=MAX_SECONDS)
    try:
        return policy.call(_post, *one.request(ended, os.environ))
    except KeyError as missing:
        return f"the environment variable {missing.args[0]} is not set"
    except ValueError:
        return f"{one.url_env} holds no URL, or {one.api_key_env} no token"
    except TryAgain as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - the text of an error may contain the URL
        return f"it cannot be sent ({type(error).__name__})"


def _post(url: str, body: bytes, headers: dict[str, str]) -> str:
    """Return why a request has failed; empty if it has not. The text of an error may contain the
    URL. Raises TryAgain, and ValueError for an invalid URL or header."""
    import requests

    from batchinference.pipeline.storage.retry import TryAgain

    try:
        # `auth` that does nothing: requests would send the credentials of ~/.netrc
        with requests.post(
            url, body, headers=headers, auth=lambda sent: sent,
            timeout=TIMEOUTS, stream=True, allow_redirects=False,
        ) as answer:  # fmt: skip
            status = answer.status_code
    except (requests.ConnectionError, requests.Timeout) as error:
        raise TryAgain(f"the endpoint gives no answer ({type(error).__name__})") from None
    if is_repeated(status):
        raise TryAgain(problem_of(status))
    return problem_of(status)

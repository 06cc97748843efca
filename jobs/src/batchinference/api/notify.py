"""Sends the notifications about a run on this machine. On a cluster, the operator sends them."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from batchinference.spec import BatchInference
from batchinference.spec.notifications import EndedJob, Notification, is_retryable, problem_of
from batchinference.spec.report import JobState, Report

if TYPE_CHECKING:
    from batchinference.pipeline.execution.stop_signals import StopSignal


@dataclass(frozen=True)
class SendLimits:
    """Limits of the notifications of a run."""

    tries: int = 4
    first_wait: float = 1.0
    """Seconds before the second try. Later waits are longer."""
    timeouts: tuple[float, float] = (5.0, 10.0)
    """Connect and read timeouts in seconds."""
    seconds: float = 60.0
    """Maximum number of seconds for all notifications together."""


def notify(
    job: BatchInference,
    report: Report,
    say: Callable[[str], None],
    stop: StopSignal,
    limits: SendLimits = SendLimits(),
) -> None:
    """Send the notifications of a job that has ended, and report each with `say`. A notification
    that fails does not change the result of the job. After an interrupted run, each notification is
    tried once, and a second stop signal cancels the notifications."""
    ended = EndedJob(
        id=uuid.uuid4().hex,
        name=report.name,
        succeeded=report.state is JobState.SUCCEEDED,
        reason=report.reason,
        message=report.message,
        output=report.output,
        start_time=report.started_at,
        completion_time=report.updated_at,
        counts=report.counts.model_dump(by_alias=True) if report.counts else {},
    )
    limits = replace(limits, tries=1) if report.reason == "Interrupted" else limits
    stop_event = stop.forced if stop.event.is_set() else stop.event
    deadline = time.monotonic() + limits.seconds
    for notification in ended.notifications_to_send(job.spec.notifications):
        send = partial(_send, notification, ended, limits, stop_event)
        problem = _call_until_stopped(send, stop_event, deadline)
        if problem is None:
            problem = f"the time for all notifications, {limits.seconds:g} s, is over"
        result = f"was not sent: {problem}" if problem else "was sent"
        say(f"{report.name}: notification '{notification.name}' {result}")


def _call_until_stopped(
    send: Callable[[], str], stop_event: threading.Event, deadline: float
) -> str | None:
    """Return the result of `send`. After a stop signal, return a message; after the deadline,
    return None. `send` runs in a thread, because a signal does not interrupt a request."""
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(send()), name="notify", daemon=True)
    if not stop_event.is_set() and time.monotonic() < deadline:
        thread.start()
    while thread.is_alive() and not stop_event.is_set() and time.monotonic() < deadline:
        thread.join(0.1)
    if results:
        return results[0]
    return "a signal has stopped it" if stop_event.is_set() else None


def _send(
    notification: Notification, ended: EndedJob, limits: SendLimits, stop_event: threading.Event
) -> str:
    """Send a notification, and return why it was not sent; empty if it was sent. Does not retry
    after a stop signal."""
    from batchinference.pipeline.storage.retry import RetryPolicy, TransientError

    def is_transient(error: BaseException) -> bool:
        return isinstance(error, TransientError) and not stop_event.is_set()

    tries, wait, seconds = limits.tries, limits.first_wait, limits.seconds
    policy = RetryPolicy(tries, wait, is_transient, max_seconds=seconds)
    try:
        return policy.call(_post, limits.timeouts, *notification.request(ended, os.environ))
    except KeyError as missing:
        return f"the environment variable {missing.args[0]} is not set"
    except ValueError:
        return f"{notification.url_env} holds no URL, or {notification.api_key_env} no token"
    except TransientError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - its text may contain the secret URL
        return f"it cannot be sent ({type(error).__name__})"


def _post(timeouts: tuple[float, float], url: str, body: bytes, headers: dict[str, str]) -> str:
    """Send a request, and return why it was refused; empty if it was accepted. Raises
    TransientError if a retry may succeed, and ValueError for an invalid URL or header."""
    import requests

    from batchinference.pipeline.storage.retry import TransientError

    try:
        # with an `auth` that does nothing, requests does not send credentials from ~/.netrc
        with requests.post(
            url, body, headers=headers, auth=lambda sent: sent,
            timeout=timeouts, stream=True, allow_redirects=False,
        ) as answer:  # fmt: skip
            status = answer.status_code
    except (requests.ConnectionError, requests.Timeout) as error:
        raise TransientError(f"the endpoint gives no answer ({type(error).__name__})") from None
    if is_retryable(status):
        raise TransientError(problem_of(status))
    return problem_of(status)

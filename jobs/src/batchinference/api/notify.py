"""Sends the notifications about a run on this machine. On a cluster, the operator does that."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

from batchinference.spec import BatchInference
from batchinference.spec.notifications import EndedJob, is_repeated, problem_of
from batchinference.spec.report import JobState, Report

ATTEMPTS, FIRST_WAIT_SECONDS = 4, 1.0
TIMEOUTS = (5.0, 10.0)
"""Timeouts in seconds to connect, and until the answer."""


def notify(job: BatchInference, report: Report, say: Callable[[str], None]) -> None:
    """Send the notifications of a job that has ended, and say how that went. Its result does not
    depend on them. A run that was interrupted tries once."""
    from batchinference.pipeline.storage.retry import RetryPolicy, TryAgain

    counts = report.counts.model_dump(by_alias=True) if report.counts else {}
    times = report.started_at, report.updated_at
    facts = report.state is JobState.SUCCEEDED, None, report.reason, report.message, report.output
    ended = EndedJob(uuid.uuid4().hex, report.name, *facts, *times, counts)
    tries = 1 if report.reason == "Interrupted" else ATTEMPTS
    policy = RetryPolicy(tries, FIRST_WAIT_SECONDS, lambda error: isinstance(error, TryAgain))
    for one in ended.wanted(job.spec.notifications):
        try:
            problem = policy.call(_post, *one.request(ended, os.environ))
        except KeyError as missing:
            problem = f"the environment variable {missing.args[0]} is not set"
        except ValueError:
            problem = f"{one.url_env} holds no URL, or {one.api_key_env} no token"
        except TryAgain as error:
            problem = str(error)
        result = f"was not sent: {problem}" if problem else "was sent"
        say(f"{report.name}: notification '{one.name}' {result}")


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

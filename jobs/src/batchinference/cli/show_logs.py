"""The command `logs`."""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from batchinference.api.cluster_error import ClusterError
from batchinference.api.jobs_on_cluster import JobStatus, running_log
from batchinference.api.output_status import last_log, logs_of, status_of, stored_jobs
from batchinference.api.targets import Target
from batchinference.cli.exit_on_error import exit_on_cluster_error, read_output
from batchinference.cli.printing import echo
from batchinference.pipeline.errors import JobFailure, redact

FOLLOW_SECONDS = 2.0
"""Seconds between two reads of a log."""
_FINAL = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""HTTP statuses of the API server after which a later request for the job would fail too."""


def list_logs(target: Target) -> None:
    """Print the addresses of all stored logs, oldest first."""
    for log in read_output("logs", target, lambda output: logs_of(stored_jobs(output)[0])):
        echo(log.uri)


def show_log(target: Target, *, previous: bool) -> None:
    """Print the stored log. For a running job on a cluster, print the driver's log, unless
    `previous` is set."""
    running = None
    if target.is_job and not previous:
        with exit_on_cluster_error("logs"):
            running = running_log(target.cluster(), target.text)
    echo(running if running is not None else _stored_log(target))


def follow_log(target: Target, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Print the log, and then its new lines until the run has ended. If the log cannot be read yet,
    print the reason to stderr. Each reason is printed once."""
    if target.is_job:
        with exit_on_cluster_error("logs"):
            target.cluster().get(target.text)
    shown: list[str] = []
    reasons: set[str] = set()
    while True:
        ended, log, reason = _current_log(target)
        if reason and reason not in reasons:
            echo(f"logs: {reason}", err=True)
            reasons.add(reason)
        if log is not None:
            lines = log.splitlines()
            if added := new_lines(shown, lines):
                echo("\n".join(added))
            shown = lines
        if ended:
            return
        sleep(FOLLOW_SECONDS)


def new_lines(shown: list[str], lines: list[str]) -> list[str]:
    """Return the new lines of a log. `shown` are the lines that were printed before. The log may
    have lost its first lines since then. If none of the shown lines remain, all lines are new.

    >>> new_lines(["a", "b"], ["b", "c"])
    ['c']
    """
    for left_out in range(len(shown)):
        common = len(shown) - left_out
        if lines[:1] == shown[left_out : left_out + 1] and lines[:common] == shown[left_out:]:
            return lines[common:]
    return lines


def _current_log(target: Target) -> tuple[bool, str | None, str]:
    """Return whether the run has ended, its log, and an empty text. If the log cannot be read yet,
    return False, None and the reason."""
    if not target.is_job:
        states = read_output("logs", target, status_of)
        return all(each.state != "running" for each in states), _stored_log(target), ""
    try:
        cluster = target.cluster()
        job = JobStatus.of(cluster.get(target.text))
        if job.ended:
            return True, _stored_log(target), ""
        running = running_log(cluster, target.text)
        return False, last_log(job.output).rstrip() if running is None else running, ""
    except ClusterError as error:
        if error.status in _FINAL:
            with exit_on_cluster_error("logs"):
                raise
        return False, None, str(error)
    except (JobFailure, OSError, ImportError) as error:
        return False, None, redact(str(error))


def _stored_log(target: Target) -> str:
    return str(read_output("logs", target, last_log)).rstrip()

"""The history of statuses survives the errors that an API server sends while it starts or stops."""

from __future__ import annotations

import json

import pytest

from support.cluster.statuses import History, objects

JOB = {"kind": "BatchInference", "metadata": {"name": "job"}, "status": {"phase": "Running"}}
GONE = {"kind": "Status", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410}


def test_status_object_of_the_api_server_is_ignored() -> None:
    history = History()
    printed = "".join(json.dumps(result, indent=4) + "\n" for result in (GONE, JOB))
    for result in objects(printed.splitlines(keepends=True)):
        history.record(result)
    assert history == {"job": [{"phase": "Running"}]}


def test_failed_watch_is_raised_when_the_history_is_read() -> None:
    history = History()
    history.failure = ValueError("no JSON")
    with pytest.raises(AssertionError, match="the watch has failed: ValueError"):
        history.last("job")

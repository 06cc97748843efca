"""Counts the tasks that Ray runs again because their process died."""

from __future__ import annotations

import json

from batchinference.pipeline.ray_compat.cluster import number_of_this_task, retries_of_this_task


def retry_notes(step: str) -> tuple[tuple[str, str], ...]:
    """Return a note for the report if the running task is a retry. A task may return it several
    times: it is counted once."""
    retries = retries_of_this_task()
    if not retries:
        return ()
    return ((step, json.dumps({"retries": retries, "task": number_of_this_task()})),)

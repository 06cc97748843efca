"""Converts a BatchInference to a batch of OpenAI's API."""

from typing import Any

from pydantic import BaseModel, ValidationError

from batchinference.service.line_check import LineError
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of, time_of
from batchinference.spec.job import CANCELLED_AT
from batchinference.spec.progress import TokenKind
from batchinference.spec.status import Phase

Object = dict[str, Any]
RECORD = "batchinference.dev/batch"
"""The key of a label of BatchInferences for batches, and of the annotation with the Record."""
NOT_RUN = {
    "expired": ("batch_expired", "before the completion window expired"),
    "cancelled": ("batch_cancelled", "before the batch was cancelled"),
}
"""The final statuses of batches whose lines may not all have run. Each status has the error code
of the lines that did not run, and the end of their error message."""
ENDED = ("failed", "completed", "expired", "cancelled")
"""The final statuses of a batch."""


class Record(BaseModel):
    """The request for a batch, and the result of checking its file."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    model: str | None = None
    lines: int = 0
    errors: list[LineError] = []
    more_errors: int = 0


def record_of(job: Object) -> Record | None:
    """Return the Record in a BatchInference; None if it does not belong to a batch."""
    try:
        return Record.model_validate_json(job["metadata"].get("annotations", {}).get(RECORD, ""))
    except ValidationError:
        return None


def created_at_of(job: Object) -> int:
    """Return the Unix time at which the BatchInference was created; 0 if it is unknown."""
    return _unix(job["metadata"].get("creationTimestamp")) or 0


def as_batch(job: Object) -> Object:
    """Return a BatchInference as a batch. Raises ValueError if it does not belong to a batch."""
    record = record_of(job)
    if record is None:
        raise ValueError("not a batch")
    status, number = status_of(job), job["metadata"]["name"].removeprefix("batch-")
    counts = job.get("status", {}).get("counts", {})
    written, failed = counts.get("written", 0), counts.get("failed", 0)
    has_errors = written < record.lines if status in NOT_RUN else status == "completed" and failed
    return {
        "id": f"batch_{number}",
        "object": "batch",
        "endpoint": record.endpoint,
        "model": record.model,
        "errors": _errors(job, record) if status == "failed" else None,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": status,
        "output_file_id": f"file-output-{number}" if status in ENDED and written else None,
        "error_file_id": f"file-errors-{number}" if has_errors else None,
        **_times(job, record, status),
        "request_counts": {"total": record.lines, "completed": written, "failed": failed},
        "usage": _usage(counts),
        "metadata": record.metadata,
    }


def _usage(counts: Object) -> Object | None:
    """Return the token usage of the finished lines; None if no step has counted tokens."""
    read, generated = (counts.get(kind) for kind in (TokenKind.INPUT, TokenKind.OUTPUT))
    if read is None and generated is None:
        return None
    return {
        "input_tokens": read or 0,
        "input_tokens_details": {"cached_tokens": counts.get(TokenKind.CACHED) or 0},
        "output_tokens": generated or 0,
        "output_tokens_details": None,
        "total_tokens": (read or 0) + (generated or 0),
    }


def status_of(job: Object) -> str:
    """Return the status that a batch has in OpenAI's API."""
    record, status = record_of(job), job.get("status", {})
    if record and record.errors:
        return "failed"
    match status.get("phase"):
        case Phase.SUCCEEDED:
            return "completed"
        case Phase.FAILED:
            expired = _condition(job, "Failed").get("reason") == Cause.DEADLINE_EXCEEDED
            return "expired" if expired else "failed"
        case phase if job["spec"].get("suspend") and _cancelled_at(job):
            return "cancelled" if phase == Phase.SUSPENDED else "cancelling"
        case Phase.FINALIZING:
            return "finalizing"
        case None:
            return "validating"
    return "in_progress"


def _times(job: Object, record: Record, status: str) -> Object:
    """Return the times of a batch. The time of an event that has not happened is None."""
    details, created_at = job.get("status", {}), created_at_of(job)
    end = _unix(details.get("completionTime")) or _since(job, "Failed") or created_at
    return {
        "created_at": created_at,
        "in_progress_at": _unix(details.get("startTime")),
        "expires_at": created_at + seconds_of(record.completion_window),
        "finalizing_at": _unix(details.get("completionTime")) if status == "completed" else None,
        "completed_at": end if status == "completed" else None,
        "failed_at": end if status == "failed" else None,
        "expired_at": end if status == "expired" else None,
        "cancelling_at": _cancelled_at(job) if status in ("cancelling", "cancelled") else None,
        "cancelled_at": _since(job, "Suspended") if status == "cancelled" else None,
    }


def _errors(job: Object, record: Record) -> Object:
    """Return the errors of the lines of the file. If there are none, return why the job failed."""
    errors = [error.model_dump() for error in record.errors]
    if not errors:
        failed = _condition(job, "Failed")
        code, message = failed.get("reason"), failed.get("message")
        errors = [{"code": code, "message": message, "line": None, "param": None}]
    if record.more_errors:
        message = f"There are {record.more_errors} more errors"
        errors.append({"code": "more_errors", "message": message, "line": None, "param": None})
    return {"object": "list", "data": errors}


def _cancelled_at(job: Object) -> int | None:
    text = job["metadata"].get("annotations", {}).get(CANCELLED_AT, "")
    return int(text) if text.isdecimal() and len(text) < 12 else None


def _condition(job: Object, kind: str) -> Object:
    conditions = job.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})


def _since(job: Object, kind: str) -> int | None:
    return _unix(_condition(job, kind).get("lastTransitionTime"))


def _unix(text: str | None) -> int | None:
    time = time_of(text) if text else None
    return int(time.timestamp()) if time else None

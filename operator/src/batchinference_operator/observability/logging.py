"""Configures logging as JSON or text. Each line names the job that is processed, if any."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from batchinference.spec.job import KIND
from batchinference.text import in_one_line

_current_job: ContextVar[tuple[str, int]] = ContextVar("current_job", default=("", 0))
_KOPF_ATTRIBUTES = ("k8s_ref", "k8s_skip", "settings")
"""Attributes that kopf adds to log records for its own use."""
_SUPPRESSED = {
    # asyncio complains at exit that kopf leaves generators of a watch open, which is harmless
    "asyncio": "closing of asynchronous generator <async_generator object infinite_watch ",
    # `WatchHealth` logs a refused watch once; kopf logs it at each retry
    "kopf._cogs.clients.watching": "APIForbiddenError(",
}
"""Messages that are not logged: the name of the logger, and a part of the message."""


@contextmanager
def log_context(namespace: str, name: str, attempt: int = 0) -> Iterator[None]:
    """Add a job and its attempt to each line that any logger writes in the block."""
    before = _current_job.set((f"{namespace}/{name}", attempt))
    try:
        yield
    finally:
        _current_job.reset(before)


def configure(log_format: str, level: str) -> None:
    """Log the messages of the operator, kopf and libraries from `level` on to stderr."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: _SUPPRESSED.get(record.name, "\0") not in record.getMessage())
    handler.addFilter(_add_job)
    handler.setFormatter(_JobJsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise one line per event


def _add_job(record: logging.LogRecord) -> bool:
    """Add the current job and its attempt to a log record. Return True to log the record. Records
    of kopf name their object in `k8s_ref` instead."""
    job, attempt = _current_job.get()
    ref: dict[str, Any] = getattr(record, "k8s_ref", {})
    if ref.get("kind") == KIND:
        job = f"{ref.get('namespace')}/{ref.get('name')}"
    elif ref:
        record.object = f"{ref.get('kind')} {ref.get('namespace')}/{ref.get('name')}"
    if job:
        record.job = job
    if attempt:
        record.attempt = attempt
    return True


class _JobJsonFormatter(JsonFormatter):
    def __init__(self) -> None:
        super().__init__("%(message)s", reserved_attrs=[*RESERVED_ATTRS, *_KOPF_ATTRIBUTES])

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        log_data |= {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        super().add_fields(log_data, record, message_dict)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = "\n".join(map(_without_control_characters, super().format(record).splitlines()))
        attempt = f" attempt {record.attempt}" if hasattr(record, "attempt") else ""
        name = getattr(record, "job", "") or getattr(record, "object", "")
        prefix = f"[{name}{attempt}] " if name else ""
        return f"{_timestamp(record)} {record.levelname:<8}{prefix}{message}"


def _without_control_characters(line: str) -> str:
    """Return a line with its indentation and without terminal control characters."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    return indent + in_one_line(line)


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

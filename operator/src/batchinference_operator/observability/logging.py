"""Logging as JSON or text. Each line names the job that it is about."""

from __future__ import annotations

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

_about: ContextVar[tuple[str, int]] = ContextVar("about", default=("", 0))
_OF_KOPF = ("k8s_ref", "k8s_skip", "settings")
"""Attributes that kopf adds to log records for its own use."""
_NOISE = {
    # kopf does not close the nested generators of a watch at exit, when nothing needs them any more
    "asyncio": "closing of asynchronous generator <async_generator object infinite_watch ",
    # watch_health.py logs a refused watch once, kopf at each retry
    "kopf._cogs.clients.watching": "APIForbiddenError(",
}
"""Texts of messages that are not logged, by the name of their logger."""


@contextmanager
def log_context(namespace: str, name: str, attempt: int = 0) -> Iterator[None]:
    """Add this job and its attempt to each line logged in the block, by any logger."""
    before = _about.set((f"{namespace}/{name}", attempt))
    try:
        yield
    finally:
        _about.reset(before)


def configure(log_format: str, level: str) -> None:
    """Log everything to stderr: the operator, kopf and libraries."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: _NOISE.get(record.name, "\0") not in record.getMessage())
    handler.addFilter(_named)
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else one line per event


def _named(record: logging.LogRecord) -> bool:
    """Add the job and its attempt to a record. kopf names its records' object in `k8s_ref`."""
    job, attempt = _about.get()
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


class _Json(JsonFormatter):
    def __init__(self) -> None:
        super().__init__("%(message)s", reserved_attrs=[*RESERVED_ATTRS, *_OF_KOPF])

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        log_data |= {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        super().add_fields(log_data, record, message_dict)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = "\n".join(map(_shown, super().format(record).splitlines()))
        attempt = f" attempt {record.attempt}" if hasattr(record, "attempt") else ""
        of = getattr(record, "job", "") or getattr(record, "object", "")
        log_context = f"[{of}{attempt}] " if of else ""
        return f"{_time(record)} {record.levelname:<8}{log_context}{message}"


def _shown(line: str) -> str:
    """Return a line without terminal control characters. Its indentation is kept."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    return indent + in_one_line(line)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

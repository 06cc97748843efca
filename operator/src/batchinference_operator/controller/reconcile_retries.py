"""Retries reconciles that failed, for instance because of a conflict with another write."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from batchinference_operator.controller.work_queue import WorkQueue
from batchinference_operator.kube.api_errors import Conflict, Refused, Unreachable
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.reconcile.job_view import JobKey

logger = logging.getLogger("batchinference.operator")


@contextmanager
def retry_failures(queue: WorkQueue[JobKey], key: JobKey, metrics: Metrics) -> Iterator[None]:
    """Measure the reconcile in the block. After an error, count it, and queue the key again with a
    backoff. A conflict is not logged, because another write is no problem."""
    kind = ""
    try:
        with metrics.reconcile_seconds.time():
            yield
    except Conflict:
        kind = "conflict"
        queue.add_rate_limited(key)
    except Refused as error:
        kind = "unreachable" if isinstance(error, Unreachable) else "refused"
        what = "the API server is unreachable" if kind == "unreachable" else "refused"
        logger.warning("%s: %s; retrying in %.1f s", what, error, queue.add_rate_limited(key))
    except Exception:
        kind = "error"
        delay = queue.add_rate_limited(key)
        logger.exception("reconcile failed; retrying in %.1f s", delay)
    if kind:
        metrics.reconcile_errors.labels(kind).inc()

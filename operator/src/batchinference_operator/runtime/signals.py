"""What the operator lets others know: metrics, and Events on jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from batchinference.text import in_one_line
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.runtime.gateway import Conflict, Refused, Unreachable
from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.recorder import Recorder
from batchinference_operator.status.attempts import number_of
from batchinference_operator.status.events import Event, events_between


@dataclass
class Signals:
    """Without a recorder nobody gets Events."""

    metrics: Metrics = field(default_factory=Metrics)
    recorder: Recorder | None = None

    @contextmanager
    def look(self) -> Iterator[None]:
        """The block is one look at a job."""
        begun = time.monotonic()
        try:
            yield
        except Exception as error:
            self.metrics.reconcile_errors.labels(_kind(error)).inc()
            raise
        finally:
            self.metrics.reconcile_seconds.observe(time.monotonic() - begun)

    async def work(self) -> None:
        """Post Events; it ends when it is cancelled."""
        if self.recorder is not None:
            await self.recorder.work()

    def changed(self, before: JobView, job: JobView) -> None:
        """A job is known to stand otherwise than before. That follows from what is seen of it and
        not from what was written, because the answer to a write may be lost."""
        self.metrics.happened(before.status, job.status)
        if self.recorder is not None:
            events = events_between(before.status, job.status)
            self.recorder.record(job, number_of(job.status), events)

    def rejected(self, job: JobView, words: str) -> None:
        """A status was refused by the CustomResourceDefinition."""
        self.wrote("rejected")
        if self.recorder is not None:
            note = f"upgrade the CustomResourceDefinition; it is older than the operator: {words}"
            event = Event("StatusRejected", "Write", in_one_line(note), "Warning")
            self.recorder.record(job, number_of(job.status), [event])

    def wrote(self, result: str) -> None:
        """What has become of the writing of a status."""
        self.metrics.status_writes.labels(result).inc()


def _kind(error: Exception) -> str:
    kinds = {Conflict: "conflict", Unreachable: "unreachable", Refused: "refused"}
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), "error")

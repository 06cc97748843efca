"""An operator of schedules on a cluster in memory."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from batchinference.spec.job import SCHEDULE_KIND
from batchinference_operator.controller.schedule_controller import ScheduleController
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.metrics import Metrics
from support.documents.minimal import schedule_document
from support.operator.fake_cluster import FakeCluster, FakeKubeApi
from support.operator.objects import CONFIG, NAMESPACE

Object = dict[str, Any]


class Schedules:
    """One schedule on a cluster in memory, with a clock that the test sets."""

    def __init__(self, now: datetime, **spec: Any) -> None:
        self.now = now
        self.cluster = FakeCluster(now=lambda: self.now)
        self.api = FakeKubeApi(self.cluster)
        self.created: list[str] = []
        """The names of all runs in the order of their creation."""
        self.cluster.watchers.append(self._record)
        self.cluster.put(schedule_document(**spec))
        self.start_operator()

    def _record(self, event: str | None, body: Object) -> None:
        if (event, body["kind"]) == ("ADDED", "BatchInference"):
            self.created.append(body["metadata"]["name"])

    def start_operator(self) -> None:
        """Replace the operator by another one."""
        self.recorder = EventRecorder(self.api, Metrics(), lambda: self.now)
        self.controller = ScheduleController(self.api, CONFIG, self.recorder, lambda: self.now)

    def reconcile(self, now: datetime | None = None) -> Object:
        """Reconcile the schedule once, at another time if it is given. Return its status."""
        self.now = now or self.now
        asyncio.run(self.controller._reconcile((NAMESPACE, "nightly")))
        return self.status

    @property
    def status(self) -> Object:
        body: Object = self.cluster.objects[SCHEDULE_KIND, "nightly"].get("status", {})
        return body

    @property
    def ready(self) -> tuple[str, str, str]:
        """Status, reason and message of the condition Ready."""
        (ready,) = (one for one in self.status["conditions"] if one["type"] == "Ready")
        return ready["status"], ready["reason"], ready["message"]

    @property
    def runs(self) -> list[str]:
        return [body["metadata"]["name"] for body in self.cluster.list("BatchInference")]

    def patch(self, **spec: Any) -> None:
        """Change the spec of the schedule."""
        known = self.cluster.objects[SCHEDULE_KIND, "nightly"]
        generation = {"generation": known["metadata"]["generation"] + 1}
        self.cluster.put({**known, "metadata": {**known["metadata"], **generation},
                          "spec": {**known["spec"], **spec}})  # fmt: skip

    def finish(self, name: str, condition: str = "Complete", at: str = "") -> None:
        """End a run."""
        conditions = [{"type": condition, "status": "True"}]
        status = {"conditions": conditions, "completionTime": at}
        self.cluster.patch("BatchInference", name, {"status": status})

    def events(self) -> list[tuple[str, str]]:
        """Return reason and note of the Events that were not returned yet."""
        recorder: Any = self.recorder
        flow = recorder._flows.pop(NAMESPACE, [])
        assert all(body["action"] for body in flow), "the API server requires it"
        return [(body["reason"], body["note"]) for body in flow]

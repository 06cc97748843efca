"""The control loop of schedules: take a key from the work queue, observe, decide, act.

Each reconcile reads the schedule and its runs from the API server. The loop is separate from that
of jobs, so that schedules with errors do not delay jobs.
"""

import logging
from dataclasses import dataclass, field, replace

from batchinference.spec.job import SCHEDULE_KIND
from batchinference.spec.schedule import SCHEDULE_LABEL
from batchinference_operator.controller.reconcile_retries import retry_failures
from batchinference_operator.controller.work_queue import WorkQueue
from batchinference_operator.kube.api_errors import Refused, Unreachable
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.logging import log_context
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobKey, key_of
from batchinference_operator.reconcile.schedule import (
    ObservedSchedule,
    Run,
    ScheduleActions,
    ScheduleView,
    decide,
)
from batchinference_operator.status.job_status import merge_patch
from batchinference_operator.status.ray_job_view import Object
from batchinference_operator.status.timestamps import Clock, utc_now

MAX_RUNS = 1000
"""Maximum number of runs that are listed for a schedule. The history limits allow 200 finished
runs. A tenant with more runs must not delay other schedules."""
logger = logging.getLogger("batchinference.operator")


@dataclass
class ScheduleController:
    """Reconciles the schedules whose keys are in the work queue."""

    api: KubeClient
    config: Config
    recorder: EventRecorder
    now: Clock = utc_now
    max_runs: int = MAX_RUNS
    queue: WorkQueue[JobKey] = field(default_factory=WorkQueue)
    known: dict[tuple[str, JobKey], object] = field(default_factory=dict)
    """The fields of schedules and runs that matter here, by kind and key. An event that does not
    change these fields, such as one about the progress of a run, needs no reconcile."""

    def handle_event(self, body: Object, *, deleted: bool = False) -> None:
        """Queue the schedule that an event about a schedule or a BatchInference affects."""
        metadata, key = body["metadata"], key_of(body)
        seen: object
        if body["kind"] == SCHEDULE_KIND:
            schedule, seen = key, (metadata["uid"], metadata["generation"])
        elif name := metadata.get("labels", {}).get(SCHEDULE_LABEL):
            schedule, seen = (key[0], name), Run.of(body)
        else:
            return
        object_key = body["kind"], key
        if deleted:
            self.known.pop(object_key, None)
        elif self.known.get(object_key) == seen:
            return
        else:
            self.known[object_key] = seen
        self.queue.add(schedule)

    def change_config(self, config: Config) -> None:
        """Set the config, and queue all schedules, so that their templates are checked again."""
        self.config = config
        for kind, key in self.known:
            if kind == SCHEDULE_KIND:
                self.queue.add(key)

    async def work(self) -> None:
        """Run one worker until it is cancelled."""
        while True:
            key = await self.queue.get()
            with log_context(*key), retry_failures(self.queue, key, self.recorder.metrics):
                await self._reconcile(key)
                self.queue.forget(key)
            self.queue.done(key)

    async def _reconcile(self, key: JobKey) -> None:
        """Observe a schedule, decide, and apply the actions."""
        body = await self.api.get_object(SCHEDULE_KIND, *key)
        if body is None:
            self.queue.drop(key)
            return
        observed = await self._with_runs(ScheduleView.of(body))
        actions = self._decide(observed, key)
        if actions.create is not None:
            created = await self._create(observed, actions.create)
            if created is not observed:
                observed, actions = created, self._decide(created, key)
        for run in actions.replace:
            await self.api.delete_job(key[0], run.name, run.uid)
            logger.info("deleted run %s, which another run replaces", run.name)
        await self._write(observed.schedule, actions)
        for run in actions.prune:
            await self.api.delete_job(key[0], run.name, run.uid)
        if observed.refused:
            raise Refused(observed.refused)
        self.queue.add_after(key, actions.requeue_after)

    def _decide(self, observed: ObservedSchedule, key: JobKey) -> ScheduleActions:
        with self.queue.count_cpu_time(key):
            return decide(observed, self.config, self.now())

    async def _with_runs(self, schedule: ScheduleView) -> ObservedSchedule:
        """Return a schedule and its runs in the order of their scheduled times.

        If there are too many runs to list them all, no run is created. A run that is not listed may
        be active.
        """
        runs, listed = list[Run](), 0
        async for body in self.api.list_runs(schedule.namespace, schedule.name, self.max_runs):
            listed += 1
            if schedule.owns(body):  # users may set the label
                runs.append(Run.of(body))  # a few fields, because a body may be large
        label = f"{SCHEDULE_LABEL}={schedule.name}"
        too_many = f"{self.max_runs} or more BatchInferences have the label {label}"
        refused = f"{too_many}. Delete those that are not needed" if listed >= self.max_runs else ""
        in_order = tuple(sorted(runs, key=lambda run: run.name))
        return ObservedSchedule(schedule, in_order, refused=refused)

    async def _create(self, observed: ObservedSchedule, body: Object) -> ObservedSchedule:
        """Create a run and return `observed`; a new observation if the run was refused or exists.
        An interrupted reconcile or somebody else may have created an object of that name."""
        name = body["metadata"]["name"]
        try:
            created = await self.api.create(body)
        except Unreachable:
            raise
        except Refused as error:
            return replace(observed, refused=str(error))
        if created is not None:
            logger.info("created run %s", name)
            return observed
        current = await self._with_runs(observed.schedule)
        may_be_ours = current.refused or any(run.name == name for run in current.runs)
        return current if may_be_ours else replace(current, name_in_use=name)

    async def _write(self, schedule: ScheduleView, actions: ScheduleActions) -> None:
        """Write the status if it has changed, and post the Events. Raises Conflict and Refused."""
        if actions.status is None:
            return
        if patch := merge_patch(schedule.status, actions.status):
            version = schedule.namespace, schedule.name, schedule.resource_version
            await self.api.patch_status(*version, patch, kind=schedule.kind)
        minute = int(self.now().timestamp()) // 60
        self.recorder.record(schedule, minute, actions.events)

"""Preemption: a waiting job takes the slot of a running job with a lower priority."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.cluster import Cluster
from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.admission_queue import AdmissionDecision, AdmissionQueue
from batchinference_operator.reconcile.concurrency_limits import Concurrency
from batchinference_operator.reconcile.driver_report import REPORT_GRACE_SECONDS
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.pending import CreateError, status_after_create_error
from batchinference_operator.reconcile.preemption import Preemptor, Slot, choose_slot
from batchinference_operator.reconcile.queue_entry import JobKey, QueueEntry, entry_of
from batchinference_operator.status.events import events_between
from support.operator.harness import Harness
from support.operator.objects import CONFIG, RUNNING, job_body
from support.operator.reconcile_loop import ReconcileLoop
from support.operator.virtual_time import in_virtual_time, until
from support.tiers import examples

URGENT = Preemptor("urgent", 5)
ONE = Concurrency(total=1, preemption=True)
FULL = AdmissionDecision(0, admitted=False, why="only 1 may run at a time")


# --- the choice -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "chosen"),
    [
        ({}, None),
        ({"higher": (6, "1"), "equal": (5, "2")}, None),
        ({"lower": (4, "1"), "lowest": (-1, "2"), "low": (0, "3")}, "lowest"),
        ({"first": (0, "1"), "last": (0, "3"), "second": (0, "2")}, "last"),
        ({"lowest": (0, "1"), "last": (1, "3")}, "lowest"),
    ],
    ids=["none", "none-lower", "lowest-priority", "started-last", "priority-before-start"],
)
def test_slot_of_the_lowest_priority_that_started_last_is_chosen(
    slots: dict[str, tuple[int, str]], chosen: str | None
) -> None:
    found = choose_slot((Slot(("team", name), *slot) for name, slot in slots.items()), 5)
    assert (found and found.key[1]) == chosen


# --- the admission queue ----------------------------------------------------------------


class Queue:
    """An admission queue with preemption. Later jobs are younger and started later."""

    def __init__(self, total: int | None = None, per_namespace: int | None = None) -> None:
        self.woken: list[str] = []
        limits = Concurrency(total, per_namespace, preemption=True)
        self.queue = AdmissionQueue(limits, wake=lambda key: self.woken.append(key[1]))
        self.version = 0

    def see(self, name: str, namespace: str = "team", **fields: Any) -> None:
        self.version += 1
        times = {"created_at": f"{self.version:06}", "started_at": f"{self.version:06}"}
        self.queue.update((namespace, name), QueueEntry(str(self.version), **{**times, **fields}))

    def run(self, name: str, priority: int = 0, namespace: str = "team", **fields: Any) -> None:
        self.queue.update_usage((namespace, name), running=True)
        self.see(name, namespace, running=True, priority=priority, **fields)

    def wait(self, name: str, priority: int = 0, namespace: str = "team", **fields: Any) -> None:
        self.see(name, namespace, waiting=True, priority=priority, **fields)
        self.queue.preempt((namespace, name))

    def stop(self, name: str, reserved_for: str, priority: int = 0) -> None:
        """Let a preempted job write its reservation, end its pods and wait again."""
        self.run(name, priority, stopping=True, reserved_for=reserved_for)
        self.queue.update_usage(("team", name), running=False)
        self.see(name, waiting=True, priority=priority, reserved_for=reserved_for)

    def preemptor(self, name: str, namespace: str = "team") -> str | None:
        preemptor = self.queue.preemptor((namespace, name))
        return preemptor and preemptor.name

    def admitted(self, name: str, namespace: str = "team") -> bool:
        decision = self.queue.decide((namespace, name))
        return decision is not None and decision.admitted


@pytest.mark.parametrize(("total", "per_namespace"), [(2, None), (None, 2)], ids=["all", "one"])
def test_no_more_jobs_are_preempted_than_needed(
    total: int | None, per_namespace: int | None
) -> None:
    queue = Queue(total, per_namespace)
    queue.run("low", 0)
    queue.run("middle", 3)
    queue.wait("urgent", 5)
    queue.queue.preempt(("team", "urgent"))
    assert (queue.preemptor("low"), queue.preemptor("middle")) == ("urgent", None)
    assert {"low", "urgent"} <= set(queue.woken)
    decision = queue.queue.decide(("team", "urgent"))
    assert decision is not None
    assert decision.message == "it is the next to start: job low is being stopped for it"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"namespace": "other"}, "priorities of namespaces are not compared"),
        ({"priority": 5}, "priorities are equal"),
        ({"stopping": True}, "its slot becomes free anyway"),
        ({"finalizing": True}, "it has processed all rows"),
    ],
    ids=["other-namespace", "equal", "stopping", "finalizing"],
)
def test_job_is_not_preempted_without_need(fields: dict[str, Any], why: str) -> None:
    queue = Queue(1)
    queue.run("low", **fields)
    queue.wait("urgent", 5)
    assert queue.preemptor("low", fields.get("namespace", "team")) is None, why


def test_another_job_is_preempted_if_the_chosen_one_becomes_finalizing() -> None:
    queue = Queue(2)
    queue.run("low")
    queue.run("middle", priority=1)
    queue.wait("urgent", 5)
    assert queue.preemptor("low") is not None
    queue.run("low", finalizing=True)
    queue.wait("urgent", 5)
    assert queue.preemptor("low") is None
    assert queue.preemptor("middle") is not None


def test_no_job_is_preempted_if_a_stopping_job_frees_a_slot() -> None:
    queue = Queue(2)
    queue.run("low")
    queue.run("suspended", stopping=True)
    queue.wait("urgent", 5)
    assert queue.preemptor("low") is None
    queue.wait("most-urgent", 9)
    assert queue.preemptor("low") is None, "the only slot that becomes free is its own"
    queue.queue.preempt(("team", "urgent"))
    assert queue.preemptor("low") == "urgent", "another job gets the slot that becomes free"


@pytest.mark.parametrize(
    ("namespace", "deleting", "preempted"),
    [("team", True, False), ("team", False, True), ("other", True, True)],
    ids=["deleted", "kept", "other-namespace"],
)
def test_only_ray_jobs_of_the_namespace_that_are_being_deleted_make_room(
    namespace: str, deleting: bool, preempted: bool
) -> None:
    """A RayJob without a running job may exist for a long time, for example by `ttl.cluster`."""
    queue = Queue(2)
    queue.run("low")
    queue.queue.update_usage((namespace, "ended"), running=True, deleting=deleting)
    queue.wait("urgent", 5)
    assert queue.preemptor("low") == ("urgent" if preempted else None)


def test_job_without_an_own_ray_job_is_not_preempted() -> None:
    """Kueue may manage its RayJob, or it is not created yet."""
    queue = Queue(1)
    queue.see("low", running=True)
    queue.wait("urgent", 5)
    assert queue.preemptor("low") is None


def test_running_job_to_which_a_queue_was_added_is_preempted() -> None:
    """The queue belongs to its next attempt. Its RayJob is not in a queue."""
    job = ReconcileLoop(cluster={"queue": "gpu"})
    job.run()
    entry = entry_of(JobView.of({**job_body(status=job.status), "spec": job.spec}), Cluster())
    assert (entry.running, entry.waiting, entry.queued) == (True, False, True)
    queue = Queue(1)
    queue.run("low", queued=True)
    queue.wait("urgent", 5)
    assert queue.preemptor("low") == "urgent"


def test_running_job_in_a_queue_holds_no_slot() -> None:
    queue = Queue(1)
    queue.see("queued", running=True, queued=True)
    queue.wait("urgent", 5)
    assert (queue.preemptor("queued"), queue.admitted("urgent")) == (None, True)


def test_slot_is_given_to_the_preemptor_and_not_to_a_third_job() -> None:
    queue = Queue(4)
    for name in ("low", "b", "c"):
        queue.run(name, 0 if name == "low" else 9)
    queue.run("d", namespace="other")
    queue.wait("urgent", 5)
    queue.wait("third", namespace="other")
    assert not queue.admitted("third", "other")
    queue.stop("low", "urgent")
    queue.wait("fourth", namespace="empty")
    assert queue.admitted("urgent")
    assert not queue.admitted("third", "other"), "namespace other runs fewer jobs"
    assert not queue.admitted("fourth", "empty"), "namespace empty runs none"
    assert not queue.admitted("low")


def test_reservation_survives_a_restart() -> None:
    queue = Queue(1)
    queue.see("low", waiting=True, reserved_for="urgent")
    queue.see("third", "other", waiting=True)
    queue.see("urgent", waiting=True, priority=5)
    assert queue.admitted("urgent")
    assert not queue.admitted("third", "other")


def test_reservation_of_a_deleted_job_has_no_effect() -> None:
    queue = Queue(1)
    queue.see("low", waiting=True, reserved_for="urgent")
    assert (queue.preemptor("low"), queue.admitted("low")) == (None, True)


@pytest.mark.parametrize("how", ["ended", "could-not-start", "lowered"])
def test_slot_of_an_unused_reservation_becomes_free(how: str) -> None:
    queue = Queue(1)
    queue.run("low")
    queue.wait("urgent", 5)
    queue.stop("low", "urgent")
    queue.woken.clear()
    if how == "ended":
        queue.see("urgent")
    elif how == "lowered":
        queue.see("urgent", waiting=True, priority=-1)
    else:
        queue.queue.release(("team", "urgent"))
        queue.queue.skip(("team", "urgent"))
    assert "low" in queue.woken
    assert queue.admitted("low")


@pytest.mark.parametrize("preemptor_starts", [True, False], ids=["starting", "waiting"])
def test_job_that_got_another_slot_is_not_preempted_again(preemptor_starts: bool) -> None:
    """Its status may still name the job that preempted it."""
    queue = Queue(2)
    queue.run("low")
    queue.run("other", 9)
    queue.wait("urgent", 5)
    queue.stop("low", "urgent")
    if preemptor_starts:
        queue.queue.admit(("team", "urgent"))
    queue.queue.update_usage(("team", "other"), running=False)
    queue.see("other")
    assert queue.admitted("low")
    queue.queue.admit(("team", "low"))
    queue.run("low", reserved_for="urgent")
    assert queue.preemptor("low") is None
    assert queue.admitted("urgent")


def test_job_is_not_preempted_for_a_job_that_got_another_slot() -> None:
    queue = Queue(2)
    queue.run("low")
    queue.run("other", 9)
    queue.wait("urgent", 5)
    queue.queue.update_usage(("team", "other"), running=False)
    queue.see("other")
    queue.queue.admit(("team", "urgent"))
    assert queue.preemptor("low") is None


def test_job_with_a_higher_priority_takes_over_the_reserved_slot() -> None:
    queue = Queue(1)
    queue.run("low")
    queue.wait("urgent", 5)
    queue.wait("most-urgent", 9)
    assert queue.preemptor("low") == "most-urgent"
    queue.stop("low", "most-urgent")
    assert (queue.admitted("most-urgent"), queue.admitted("urgent")) == (True, False)


def test_older_job_of_another_full_namespace_does_not_take_the_slot_of_a_stopping_job() -> None:
    queue = Queue(total=4, per_namespace=2)
    queue.run("stopping", stopping=True)
    queue.run("low")
    queue.run("first", namespace="other")
    queue.run("second", namespace="other")
    queue.wait("older", namespace="other")
    queue.wait("urgent", 5)
    assert queue.preemptor("low") is None


def test_no_job_is_preempted_while_a_lowered_limit_is_exceeded() -> None:
    queue = Queue(1)
    queue.run("low")
    queue.run("other-low")
    queue.wait("urgent", 5)
    assert {queue.preemptor("low"), queue.preemptor("other-low")} == {None}


NAMES = [("n0", "a"), ("n0", "b"), ("n0", "c"), ("n1", "a")]
KEYS = st.sampled_from(NAMES)
LIMITS = st.builds(
    Concurrency, st.none() | st.integers(1, 3), st.none() | st.integers(1, 2), st.just(True)
).filter(lambda limits: limits.limited)


@dataclass(frozen=True)
class Job:
    """A job as its status shows it."""

    priority: int
    created_at: str
    state: str = "waiting"
    reserved_for: str = ""
    started_at: str = ""


class PreemptionModel(RuleBasedStateMachine):
    """Jobs that come, change and end in any order, and an operator that restarts at any time."""

    @initialize(limits=LIMITS, priorities=st.lists(st.integers(-1, 2), max_size=len(NAMES)))
    def begin(self, limits: Concurrency, priorities: list[int]) -> None:
        self.limits = limits
        self.jobs: dict[JobKey, Job] = {}
        self.starting: set[JobKey] = set()
        """Admitted jobs whose status is being written."""
        self.version = 0
        self.restart()
        for key, priority in zip(NAMES, priorities, strict=False):
            self.create_or_change(key, priority)
            self.reconcile_several([key, key])

    @rule()
    def restart(self) -> None:
        self.queue = AdmissionQueue(self.limits)
        self.starting.clear()
        for key, job in self.jobs.items():
            self.queue.update_usage(key, job.state in ("running", "stopping"))
        for key in self.jobs:
            self.report(key)

    def report(self, key: JobKey) -> None:
        """Let the watch report a job."""
        self.version += 1
        self.starting.discard(key)  # a write of an older version is rejected
        job = self.jobs.get(key)
        self.queue.update(key, job and QueueEntry(
            str(self.version), job.priority, job.created_at,
            job.state in ("running", "stopping"), job.state == "waiting",
            job.state == "stopping", job.started_at, job.reserved_for,
        ))  # fmt: skip

    def write(self, key: JobKey, **fields: Any) -> None:
        self.jobs[key] = replace(self.jobs[key], **fields)
        self.report(key)

    @rule(key=KEYS, priority=st.integers(-1, 2))
    def create_or_change(self, key: JobKey, priority: int) -> None:
        self.version += 1
        job = self.jobs.get(key, Job(priority, f"{self.version:06}"))
        self.jobs[key] = replace(job, priority=priority)
        self.report(key)

    @rule(key=KEYS)
    def end(self, key: JobKey) -> None:
        self.jobs.pop(key, None)
        self.queue.update_usage(key, running=False)
        self.report(key)

    @rule(key=KEYS)
    def could_not_start(self, key: JobKey) -> None:
        if key not in self.starting:
            self.queue.release(key)
            self.queue.skip(key)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8))
    def reconcile_several(self, keys: list[JobKey]) -> None:
        for key in keys:
            self.reconcile(key)

    def reconcile(self, key: JobKey) -> None:
        """Reconcile a job as the operator does."""
        if (job := self.jobs.get(key)) is None:
            return
        decision, preemptor = self.queue.decide(key), self.queue.preemptor(key)
        if key in self.starting:
            self.queue.update_usage(key, running=True)
            self.write(key, state="running", started_at=f"{self.version:06}")
        elif job.state == "running" and preemptor is not None:
            assert preemptor.priority > job.priority
            assert self.jobs[key[0], preemptor.name].state == "waiting"
            assert (key[0], preemptor.name) not in self.starting
            self.write(key, state="stopping", reserved_for=preemptor.name)
        elif job.state == "stopping":
            self.queue.update_usage(key, running=False)
            reserved_for = preemptor.name if preemptor else ""
            self.write(key, state="waiting", reserved_for=reserved_for)
        elif decision is not None and decision.admitted:
            self.queue.admit(key)
            self.starting.add(key)
        elif job.state == "waiting":
            self.queue.preempt(key)
            reserved_for = preemptor.name if preemptor else ""
            if reserved_for != job.reserved_for:
                self.write(key, reserved_for=reserved_for)

    @rule()
    def settle(self) -> None:
        """Reconcile until nothing changes. Each slot is taken by at most one job for each
        priority, so this ends soon; then no job waits for one with a lower priority."""
        for _ in range(60):
            before = dict(self.jobs), set(self.starting)
            for key in 2 * sorted(self.jobs):  # a preemption is first only in memory
                self.reconcile(key)
            if (self.jobs, self.starting) == before:
                break
        else:
            raise AssertionError("jobs preempt each other without end")
        waiting = {key: job for key, job in self.jobs.items() if job.state == "waiting"}
        running = {key: job for key, job in self.jobs.items() if job.state == "running"}
        for key, job in waiting.items():
            assert all(job.priority <= one.priority for (name, _), one in running.items()
                       if name == key[0])  # fmt: skip

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "jobs"):
            return
        running = {key for key, job in self.jobs.items() if job.state != "waiting"}
        held = Counter(key[0] for key in running | self.starting)
        assert held.total() <= (self.limits.total or inf)
        assert max(held.values(), default=0) <= (self.limits.per_namespace or inf)


TestPreemptionModel = PreemptionModel.TestCase
TestPreemptionModel.settings = settings(
    max_examples=examples(300, 60), stateful_step_count=40, deadline=None
)


# --- one job ----------------------------------------------------------------------------


def preempted() -> ReconcileLoop:
    """Return a job that runs, and is preempted."""
    job = ReconcileLoop(retry={"maxAttempts": 1})
    job.run(rows=10)
    job.preemptor = URGENT
    job.reconcile()
    return job


def test_preempted_job_keeps_its_rows_and_its_retries_and_resumes() -> None:
    job = preempted()
    message = "preempted by job urgent with priority 5"
    assert (job.phase, job.reason, job.message) == ("Suspending", "Preempted", message)
    assert job.status["slotReservedFor"] == "urgent"
    assert entry_of(JobView.of(job_body(status=job.status)), Cluster()).stopping
    assert [one.name for one in job.reconcile().stop_drivers] == ["job-1"], "it commits its rows"
    job.finalize_deletions()
    assert job.reconcile(STOP_SECONDS).delete_ray_jobs
    job.finalize_deletions()
    job.reconcile()
    assert (job.phase, job.reason) == ("Pending", "Preempted")
    job.admission = FULL
    job.reconcile()
    assert job.message == f"{message}; it is the next to start: only 1 may run at a time"
    assert job.status["slotReservedFor"] == "urgent"
    job.preemptor = None
    job.reconcile()
    assert "slotReservedFor" not in job.status
    job.admission = AdmissionDecision(0, admitted=True)
    job.reconcile()
    job.reconcile()
    assert job.status["attempt"] == 2
    first = job.status["attempts"][0]
    assert (first["outcome"], first["rows"]) == ("Preempted", 10)
    assert job.status.get("failedAttempts", 0) == 0
    job.fail()
    assert job.phase == "Failed", "the only attempt of its retry limit"


def test_driver_that_has_ended_is_not_preempted() -> None:
    job = ReconcileLoop()
    job.finalize()
    job.preemptor = URGENT
    job.set_report(JobState.SUCCEEDED, rows=10)
    job.reconcile()
    assert job.phase == "Succeeded"


def test_attempt_that_has_failed_is_not_preempted() -> None:
    job = ReconcileLoop()
    job.run()
    job.preemptor = URGENT
    job.report = None
    job.set_kuberay_status(jobStatus="FAILED", jobDeploymentStatus="Failed")
    job.reconcile(REPORT_GRACE_SECONDS)
    assert (job.phase, job.attempt["outcome"], job.status["failedAttempts"]) == (
        "Failed", "Failed", 1,
    )  # fmt: skip


def test_attempt_whose_deadline_has_passed_is_not_preempted() -> None:
    job = ReconcileLoop(deadlines={"active": "1h"})
    job.run()
    job.preemptor = URGENT
    job.reconcile(7200)
    assert (job.phase, job.reason) == ("Failed", "DeadlineExceeded")


def test_finalizing_attempt_is_not_preempted() -> None:
    job = ReconcileLoop()
    job.finalize()
    job.preemptor = URGENT
    job.reconcile()
    assert job.phase == "Finalizing"
    assert not entry_of(JobView.of(job_body(status=job.status)), Cluster()).preemptible


def test_preempted_job_that_ends_reserves_no_slot() -> None:
    job = preempted()
    job.spec["deadlines"] = {"total": "1h"}
    job.reconcile(7200)
    assert (job.phase, "slotReservedFor" in job.status) == ("Failed", False)


def test_preempted_job_can_be_suspended() -> None:
    job = preempted()
    job.spec["suspend"] = True
    job.ray_jobs.clear()
    job.preemptor = None
    job.reconcile()
    assert (job.phase, "slotReservedFor" in job.status) == ("Suspended", False)


def not_created(error: CreateError, *, preemption: bool = True) -> ReconcileLoop:
    """Return a job that waits, and whose RayJob could not be created."""
    job = ReconcileLoop()
    job.config = replace(CONFIG, concurrency=Concurrency(1, preemption=preemption))
    job.admission = FULL
    assert job.reconcile().preempts
    status = status_after_create_error(JobView.of(job_body(status=job.status)), error, job.now)
    assert status is not None
    job.status = status
    return job


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CreateError("403: exceeded quota"), "Refused"),
        (CreateError("429: too many requests", unreachable_seconds=60), "ApiServerUnavailable"),
    ],
    ids=["rejected", "unreachable"],
)
def test_job_whose_ray_job_could_not_be_created_does_not_preempt(
    error: CreateError, reason: str
) -> None:
    """It would fail again, and would preempt a job each time."""
    job = not_created(error)
    for _ in range(2):
        assert not job.reconcile().preempts
        assert job.reason == reason
        assert job.message.count(error.message) == job.message.count("it is the next to start") == 1
    job.generation += 1
    assert job.reconcile().preempts, "its spec was changed"
    assert job.reason == "AdmissionPending"


def test_position_replaces_a_create_error_without_preemption() -> None:
    job = not_created(CreateError("403: exceeded quota"), preemption=False)
    job.reconcile()
    assert (job.reason, job.message) == ("AdmissionPending", FULL.message)


def test_job_whose_last_attempt_failed_does_not_preempt() -> None:
    job = ReconcileLoop()
    job.run()
    job.fail()
    job.reconcile()
    job.finalize_deletions()
    job.admission = FULL
    assert not job.reconcile(600).preempts
    assert job.reason == "AdmissionPending"


def test_waiting_job_with_an_invalid_spec_does_not_preempt() -> None:
    job = ReconcileLoop()
    job.admission = FULL
    assert job.reconcile().preempts
    job.spec["read"] = {}
    job.generation += 1
    assert not job.reconcile().preempts
    assert (job.phase, job.reason) == ("Failed", "InvalidSpec")


def test_preemption_is_one_event() -> None:
    job = ReconcileLoop()
    job.run()
    running = job.status
    job.preemptor = URGENT
    job.reconcile()
    (event,) = events_between(running, job.status)
    assert (event.reason, event.type) == ("Preempted", "Normal")
    assert event.note == "attempt 1 preempted by job urgent with priority 5"
    stopping = job.status
    job.ray_jobs.clear()
    job.reconcile()
    assert events_between(stopping, job.status) == []


# --- the operator -----------------------------------------------------------------------


@in_virtual_time
async def test_preempted_job_resumes_after_the_job_with_the_higher_priority() -> None:
    harness = Harness()
    harness.cluster.apply("low")
    async with harness.recorded_operator(config=replace(CONFIG, concurrency=ONE)) as metrics:
        await until(lambda: harness.cluster.get("RayJob", "low-1"))
        await harness.ray_job("low").start()
        await harness.ray_job("low").step(**RUNNING)
        harness.cluster.apply("urgent", priority=5)
        await until(lambda: harness.phase("urgent") == "Starting", STOP_SECONDS + 10)
        assert (harness.phase("low"), harness.reason("low")) == ("Pending", "Preempted")
        await harness.ray_job("urgent").run()
        await until(lambda: harness.cluster.get("RayJob", "low-2"))
        counted = metrics.registry.get_sample_value(
            "batchinference_attempts_total",
            {"namespace": "team", "outcome": "Preempted", "cause": ""},
        )
    assert counted == 1
    assert "Preempted" in {event["reason"] for event in harness.cluster.events.values()}


@in_virtual_time
async def test_job_whose_pods_are_rejected_stops_no_other() -> None:
    harness = Harness()
    harness.cluster.validate = lambda body: "unknown scheduler" if "volcano" in str(body) else ""
    config = replace(CONFIG, concurrency=ONE, policy=PlatformPolicy(patches=True))
    harness.cluster.apply("low")
    async with harness.operator(config=config):
        await until(lambda: harness.cluster.get("RayJob", "low-1"))
        await harness.ray_job("low").start()
        await harness.ray_job("low").step(**RUNNING)
        patch = {"groups": ["*"], "pod": {"spec": {"schedulerName": "volcano"}}}
        harness.cluster.apply("urgent", priority=5, cluster={"patches": [patch]})
        await until(lambda: harness.phase("urgent") == "Failed", STOP_SECONDS + 10)
        assert ["outcome" in one for one in harness.cluster.status("low")["attempts"]] == [False]

"""A model check of the operator: after random faults at any call, a job reaches the correct end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batchinference.rendering.config_map import DIGEST_VARIABLES, digest_of
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Retry
from batchinference.spec.status import ENDED_PHASES, BatchInferenceStatus, Phase
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.lost_or_crashed_pods import (
    LOST_PODS_SECONDS,
    MAX_LOST_BY_MEMORY,
)
from batchinference_operator.status.attempts import last_attempt
from batchinference_operator.status.conditions import find_condition, is_condition_true
from batchinference_operator.status.job_status import internal, with_observed_generation
from batchinference_operator.status.ray_job_view import RayJobView, owner_uid
from generators.lifecycle import TRANSITIONS
from support.documents.minimal import document, model_step
from support.operator.fake_cluster import WATCHED, FakeCluster, Object
from support.operator.fake_kuberay import FakeKubeRay
from support.operator.kstatus import kstatus
from support.operator.objects import CONFIG, NAMESPACE
from support.operator.stepped_operator import FAULTS, IDLE, SteppedOperator
from support.operator.virtual_time import ManualClock
from support.tiers import examples

STEPS = 50
FAULT_FREE_ROUNDS = 600
"""Far more rounds than any job needs to finish once the faults stop."""
CAUSES = ["NodeLost", "OutOfMemory", "BadInput", "Application", "Incomplete"]
SECONDS = [1, 10, 60, 400, 2000]
ENDS = ("Complete", "Failed")
CLUSTERS: list[Object] = [
    {"labels": {"team": "a"}},
    {"rayStartParams": {"unknown": {"log-color": "true"}}},
    {"volumeMounts": [{"name": "gone", "mountPath": "/gone"}]},
    {},
]
"""Cluster settings: valid, for a group that does not exist, with a mistake, and none."""
_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.sampled_from([True, False, False]),
        "retry": st.sampled_from(
            [
                {"maxAttempts": 1},
                {"maxAttempts": 2, "backoff": {"initial": "0s"}},
                {
                    "backoff": {"initial": "5m"},
                    "onCause": {"BadInput": "Retry", "NodeLost": "Fail"},
                },
                {"maxAttempts": 5, "onCause": {"RayJobDeleted": "Retry"}},
                {"maxAttempts": 5, "outOfMemory": {"maxMemory": "7Gi"}},
            ]
        ),
        "deadlines": st.sampled_from(
            [{"pending": "10m"}, {"active": "20m"}, {"total": "1h"}, {"stall": "10m"}]
        ),
        "cluster": st.sampled_from(
            [
                {"queueName": "gpu"},
                {"schedulerName": "volcano"},
                {
                    "queueName": "gpu",
                    "profiles": {"spot": {}, "on-demand": {}},
                    "fallback": {"after": "1m", "capacityTypes": ["spot", "on-demand"]},
                },
            ]
        ),
        "ttl": st.sampled_from([{"cluster": "10m"}, {"rayJob": "20m"}, {"afterFinished": "20m"}]),
    },
)
TWO_GROUPS: Object = {
    "steps": [
        model_step("a", resources={"gpu": 1, "memory": "5Gi"}),
        model_step("b", resources={"gpu": 1, "memory": "6Gi"}),
    ],
    "retry": {"maxAttempts": 5, "outOfMemory": {"maxMemory": "7Gi"}},
    "cluster": {"rayStartParams": {"b": {"log-color": "true"}}},
}
"""Two groups with GPUs whose memory grows up to the same maximum, and settings of one of them."""
SPECS = _SPECS | _SPECS.map(lambda spec: {**spec, **TWO_GROUPS})
LOST_HEADS: dict[str, Object | None] = {
    "HeadLost": None,
    "NodeLost": {"phase": "Failed", "reason": "Evicted"},
    "OutOfMemory": {
        "containerStatuses": [{"name": "ray", "state": {"terminated": {"reason": "OOMKilled"}}}]
    },
}
"""The cause with which an attempt may end, and the status of its lost heads."""
CAUSES_OF_DEADLINES = {"DeadlineExceeded", "Stalled", "ImagePull", "ContainerConfig"}


def ended(status: Object) -> bool:
    return any(is_condition_true(status, kind) for kind in ENDS)


def expected_kstatus(job: Object, phase: Phase) -> str:
    """Return the status that Flux and Helm must see for a job in this phase."""
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    at_rest = {Phase.SUCCEEDED: "Current", Phase.SUSPENDED: "Current", Phase.FAILED: "Failed"}
    return at_rest.get(phase, "InProgress")


class JobModel(RuleBasedStateMachine):
    """One job, its users, the operator, KubeRay, Kueue and the cluster."""

    config = CONFIG

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.cluster = FakeCluster(
            now=self.clock.now, finalizers_hold=True, on_status=self.check_status
        )
        self.kuberay = FakeKubeRay(self.cluster)
        self.operator = SteppedOperator(self.cluster, self.kuberay, self.clock, self.config)
        self.allowed_causes: dict[str | None, set[str]] = {}
        """The causes with which each BatchInference may fail, by uid."""

    # --- users --------------------------------------------------------------------------

    @property
    def job(self) -> Object | None:
        return self.cluster.get("BatchInference", "job")

    @property
    def status(self) -> Object:
        return (self.job or {}).get("status", {})

    @initialize(spec=SPECS)
    def create_job(self, spec: dict[str, Any]) -> None:
        body = document("job", **spec)
        created = self.cluster.put({**body, "metadata": {"name": "job", "namespace": NAMESPACE}})
        causes = CAUSES_OF_DEADLINES if "deadlines" in spec else set()
        self.allowed_causes[created["metadata"]["uid"]] = set(causes)

    @precondition(lambda self: self.job is None)
    @rule(spec=SPECS)
    def recreate_job(self, spec: dict[str, Any]) -> None:
        self.clock.seconds += 1  # the previous job must have another creationTimestamp
        self.create_job(spec)

    @precondition(lambda self: self.job is not None)
    @rule()
    def toggle_suspend(self) -> None:
        assert self.job is not None
        self.change_spec(suspend=not self.job["spec"].get("suspend", False))

    @precondition(lambda self: self.job is not None)
    @rule(memory=st.sampled_from(["5Gi", "6Gi"]))
    def change_memory(self, memory: str) -> None:
        self.change_spec(cluster={"workers": {"memory": memory}})

    def change_spec(self, **fields: Any) -> None:
        assert self.job is not None
        generation = self.job["metadata"]["generation"] + 1
        patch = {"spec": fields, "metadata": {"generation": generation}}
        self.cluster.patch("BatchInference", "job", patch)

    @precondition(lambda self: self.job is not None and not ended(self.status))
    @rule(calls=st.integers(0, 10))
    def toggle_suspend_twice(self, calls: int) -> None:
        self.toggle_suspend()
        self.operator.watches.deliver_all()
        self.step_operator(calls)
        if self.job is not None and not ended(self.status):
            self.toggle_suspend()

    @precondition(lambda self: self.job is not None)
    @rule(what=st.sampled_from(["the job", "the job, in the foreground", "its RayJob"]))
    def delete_object(self, what: str) -> None:
        assert self.job is not None
        if what == "its RayJob":
            self.delete_ray_job()
        else:
            self.cluster.delete("BatchInference", "job", foreground=what != "the job")

    def delete_ray_job(self) -> None:
        """Delete the RayJob, except while it gets its token, before the attempt has a startTime."""
        if "startTime" not in last_attempt(self.status):
            return
        body = self.cluster.get("RayJob", self.status["rayJobName"])
        if body is not None:
            self.allow_failure(owner_uid(body, "BatchInference"), "RayJobDeleted")
            self.cluster.delete("RayJob", body["metadata"]["name"])

    @precondition(lambda self: self.job is not None)
    @rule(cluster=st.sampled_from(CLUSTERS))
    def change_cluster_settings(self, cluster: Object) -> None:
        """Change settings for the next attempt. The new settings may be invalid."""
        assert self.job is not None
        self.allow_failure(self.job["metadata"]["uid"], "InvalidSpec")
        self.change_spec(cluster=cluster)

    # --- KubeRay, Kueue, the drivers ----------------------------------------------------

    @rule()
    def reconcile_kuberay(self) -> None:
        self.kuberay.reconcile()

    @rule()
    def advance_drivers(self) -> None:
        self.kuberay.advance_drivers()

    @rule(lost=st.sampled_from([False, False, True]))
    def poll_drivers(self, lost: bool) -> None:
        self.operator.drivers.poll(lost=lost)

    @rule(cause=st.sampled_from(CAUSES))
    def fail_driver(self, cause: str) -> None:
        uid = self.kuberay.fail_driver(cause)
        # the driver of a deleted RayJob may still answer for a while
        for each in list(self.allowed_causes) if uid is None else [uid]:
            self.allow_failure(each, cause)
            self.allow_failure(each, "Application")  # the cause if the report cannot be read

    @precondition(lambda self: self.job is not None and not ended(self.status))
    @rule()
    def run_out_of_memory(self) -> None:
        self.run_rounds_without_faults(6)
        self.fail_driver("OutOfMemory")

    @rule(problem=st.sampled_from(["away", "silent", "stuck"]), seconds=st.sampled_from(SECONDS))
    def begin_outage(self, problem: str, seconds: int) -> None:
        self.kuberay.problem[problem] = self.clock.seconds + seconds

    @rule(reason=st.sampled_from(["SubmissionFailed", "JobStatusCheckTimeoutExceeded"]))
    def give_up_in_kuberay(self, reason: str) -> None:
        for body in self.cluster.list("RayJob"):
            if body.get("status", {}).get("jobDeploymentStatus") == "Running":
                self.allow_failure(owner_uid(body, "BatchInference"), "SubmissionFailed")
                self.kuberay.give_up(body, reason)

    @rule(suspend=st.booleans())
    def set_suspend_by_kueue(self, suspend: bool) -> None:
        for body in self.cluster.list("RayJob"):
            seen = RayJobView.of(body)
            if seen.ended:
                continue
            self.cluster.patch("RayJob", seen.name, {"spec": {"suspend": suspend}})
            if not seen.queue:  # then Kueue does not manage the RayJob
                self.allow_failure(seen.owner_uid, "Interrupted")

    @rule(how=st.sampled_from(list(LOST_HEADS)))
    def lose_heads(self, how: str) -> None:
        self.lose_all_heads(how)

    def lose_all_heads(self, how: str) -> None:
        for uid in self.allowed_causes:
            self.allow_failure(uid, how)
        self.kuberay.lose_head(LOST_HEADS[how])

    @rule()
    def lose_heads_by_memory_again_and_again(self) -> None:
        """The attempt ends, because another head has no more memory."""
        self.kuberay.problem.clear()
        self.run_rounds_without_faults(4)
        before = self.running_attempt()
        for _ in range(MAX_LOST_BY_MEMORY):
            self.lose_all_heads("OutOfMemory")
            self.run_rounds_without_faults(5)
        assert before is None or self.running_attempt() != before, self.status

    @rule()
    def miss_a_poll_long_after_a_head_was_replaced(self) -> None:
        self.kuberay.problem.clear()
        self.run_rounds_without_faults(4)
        self.lose_all_heads("NodeLost")
        self.run_rounds_without_faults(3)
        before = self.running_attempt()
        self.clock.seconds += LOST_PODS_SECONDS + 1
        self.operator.drivers.poll(lost=True)
        while not self.operator.idle:
            self.operator.step()
        ended = [one for one in self.status.get("attempts", []) if one["number"] == before]
        assert all(one.get("cause") != "NodeLost" for one in ended), self.status

    def running_attempt(self) -> int | None:
        """Return the number of the attempt whose driver runs."""
        last = last_attempt(self.status)
        runs = "driverHead" in internal(self.status) and "outcome" not in last
        return last["number"] if runs and self.status.get("phase") == "Running" else None

    @rule(reason=st.sampled_from(["Evicted", "Preempting"]))
    def lose_pod(self, reason: str) -> None:
        pods = self.cluster.list("Pod")
        if pods:
            cause = {"Evicted": "NodeLost", "Preempting": "Preempted"}[reason]
            for uid in self.allowed_causes:
                self.allow_failure(uid, cause)
            status = {"phase": "Failed", "reason": reason}
            self.cluster.patch("Pod", pods[-1]["metadata"]["name"], {"status": status})

    @rule()
    def collect_garbage_now(self) -> None:
        self.cluster.collect_garbage()

    # --- the watches and the operator ---------------------------------------------------

    @rule(kind=st.sampled_from(WATCHED), again=st.booleans())
    def deliver_event(self, kind: str, again: bool) -> None:
        self.operator.watches.deliver(kind, repeat=again)

    @rule()
    def deliver_all_events(self) -> None:
        self.operator.watches.deliver_all()

    @rule(kind=st.sampled_from(WATCHED))
    def relist_watch(self, kind: str) -> None:
        self.operator.watches.relist(kind)

    @precondition(lambda self: self.operator.call.name == IDLE)
    @rule()
    def lose_namespace(self) -> None:
        self.operator.watches.lose()

    @rule(calls=st.integers(1, 8))
    def step_operator(self, calls: int) -> None:
        for _ in range(calls):
            self.operator.step()

    @rule(calls=st.integers(1, 6), how=st.sampled_from([*FAULTS, *FAULTS, "killed"]))
    def disturb_operator(self, calls: int, how: str) -> None:
        """Make a call fail, or kill the operator, in the middle of a reconcile."""
        self.operator.watches.deliver_all()
        self.operator.queue.add((NAMESPACE, "job"))
        self.step_operator(calls)
        if how == "killed":
            self.operator.kill()
        else:
            self.operator.step(how)

    @rule(calls=st.integers(1, 8), of_next=st.integers(0, 8), late=st.integers(1, 3))
    def change_leader(self, calls: int, of_next: int, late: int) -> None:
        """Replace the operator during a call. The old operator finishes some calls late."""
        self.operator.watches.deliver_all()
        self.operator.queue.add((NAMESPACE, "job"))
        self.step_operator(calls)
        self.operator_has_no_defects()
        assert self.operator.replace(of_next, late) == []

    @rule(calls=st.integers(1, 8), of_next=st.integers(1, 8))
    def restart_with_late_list_of_ray_jobs(self, calls: int, of_next: int) -> None:
        """Kill the operator. The next one knows the jobs before it knows their RayJobs."""
        self.operator.watches.deliver_all()
        self.operator.queue.add((NAMESPACE, "job"))
        self.step_operator(calls)
        self.operator.kill()
        self.operator.watches.deliver("BatchInference")
        self.step_operator(of_next)

    @rule(seconds=st.sampled_from(SECONDS))
    def advance_clock(self, seconds: int) -> None:
        self.clock.seconds += seconds

    @rule(rounds=st.integers(1, 4))
    def run_few_rounds_without_faults(self, rounds: int) -> None:
        self.run_rounds_without_faults(rounds)

    @rule(rounds=st.integers(1, 4))
    def run_more_rounds_without_faults(self, rounds: int) -> None:
        self.run_rounds_without_faults(rounds)

    @rule(rounds=st.integers(5, 15))
    def run_rounds_without_faults(self, rounds: int) -> None:
        for _ in range(rounds):
            self.run_round_without_faults()

    # --- invariants ---------------------------------------------------------------------

    def check_status(self, before: Object, after: Object) -> None:
        """Check a status that the operator wrote."""
        old, new = before.get("status", {}), after["status"]
        failed = find_condition(old, "Failed")
        corrected = failed.get("reason") == "InvalidSpec" and not ended(new)
        if ended(old) and not corrected:  # only observedGeneration may change
            assert with_observed_generation(old, 0) == with_observed_generation(new, 0)
            return
        BatchInferenceStatus.model_validate(new, strict=False)
        phase, last = Phase(new["phase"]), Phase(old["phase"]) if old else None
        assert phase == last or phase in TRANSITIONS[last], f"{last} -> {phase}"
        assert (phase == Phase.SUSPENDED) == is_condition_true(new, "Suspended")
        assert (phase in ENDED_PHASES) == ended(new)
        assert kstatus(after) == expected_kstatus(after, phase)
        self.check_attempts(after)
        self.check_deadlines(after)
        self.check_usage(after)
        self.check_retry(after, new)

    def check_attempts(self, job: Object) -> None:
        """Check that attempts are numbered in order and only the last is open."""
        status, spec = job["status"], job["spec"]
        attempts = status.get("attempts", [])
        numbers = [attempt["number"] for attempt in attempts]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all("outcome" in attempt for attempt in attempts[:-1])
        policy = spec.get("retry", {}).get("outOfMemory")
        for before, after in pairwise(attempts):
            if policy and "outOfMemory" in before and "startTime" in after:
                assert after["memory"].keys() >= before["outOfMemory"].keys()
        for attempt in attempts:
            assert attempt.get("outcome") != "Preempted"
        counted = [one for one in attempts if one.get("cause") != "NoCapacity"]
        failed = sum(attempt.get("outcome") == "Failed" for attempt in counted)
        assert status.get("failedAttempts", 0) == failed
        assert not ended(status) or not attempts or "outcome" in attempts[-1]

    def check_deadlines(self, job: Object) -> None:
        """Check that a driver that does not answer is subject to `deadlines.stall`."""
        status, spec = job["status"], job["spec"]
        ready = find_condition(status, "Ready")
        if ready.get("reason") == "DriverSilent" and "progressTime" in status.get("operator", {}):
            limit = seconds_of(spec.get("deadlines", {}).get("stall", "9999h"))
            since = datetime.fromisoformat(status["operator"]["progressTime"])
            assert (self.clock.now() - since).total_seconds() < limit, status

    def check_usage(self, job: Object) -> None:
        """Check that a job is charged only for its own pods: at most two pods with one GPU."""
        created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
        age = (self.clock.now() - created).total_seconds()
        assert job["status"].get("deviceSeconds", 0) <= 2 * age

    def check_retry(self, job: Object, status: Object) -> None:
        """Check that the job is retried only if its retry policy allows it."""
        if status["phase"] == Phase.RETRYING:
            retry, last = Retry.model_validate(job["spec"].get("retry", {})), last_attempt(status)
            assert last
            assert retry.allows(Cause(last["cause"]), status["failedAttempts"])

    @invariant()
    def each_job_has_at_most_one_live_ray_job(self) -> None:
        live = [owner_uid(body, "BatchInference") for body in self.live()]
        assert len(live) == len(set(live))

    @invariant()
    def each_driver_reads_the_files_that_its_pods_were_rendered_from(self) -> None:
        """The spec may change after the ConfigMap and before the RayJob is created."""
        for body in self.live():
            head = body["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
            name = next(v["configMap"]["name"] for v in head["volumes"] if "configMap" in v)
            env = {each["name"]: each["value"] for each in head["containers"][0]["env"]}
            config_map = self.cluster.get("ConfigMap", name)
            for file, text in config_map["data"].items() if config_map else ():
                assert env[DIGEST_VARIABLES[file]] == digest_of(text)

    @invariant()
    def operator_has_no_defects(self) -> None:
        for defect in self.operator.queue.defects:
            raise defect

    def live(self) -> list[Object]:
        return [
            body
            for body in self.cluster.list("RayJob")
            if not RayJobView.of(body).ended and "deletionTimestamp" not in body["metadata"]
        ]

    # --- the end ------------------------------------------------------------------------

    def teardown(self) -> None:
        """Check that the job reaches the correct end once the faults stop."""
        try:
            self.run_until_at_rest()
            self.check_ends()
            self.check_nothing_is_left()
        finally:
            self.operator.work.close()

    def run_until_at_rest(self) -> None:
        self.kuberay.problem.clear()
        self.set_suspend_by_kueue(suspend=False)
        for _ in range(FAULT_FREE_ROUNDS):
            self.run_round_without_faults()
            if self.is_at_rest():
                break
        for _ in range(4):
            self.clock.seconds += 1000  # longer than every TTL
            for _ in range(4):
                self.run_round_without_faults()
        self.operator_has_no_defects()
        self.each_job_has_at_most_one_live_ray_job()

    def run_round_without_faults(self) -> None:
        """Run one round without faults, in which every component runs."""
        self.set_suspend_by_kueue(suspend=False)
        self.operator.watches.list_what_is_unlisted()
        self.operator.watches.deliver_all()
        while not self.operator.idle:
            self.operator.step()
            self.operator.watches.deliver_all()
        self.run_others()

    def run_others(self) -> None:
        """Let every component except the operator run once, and advance the clock."""
        self.operator.drivers.poll()
        self.kuberay.reconcile()
        self.kuberay.advance_drivers()
        self.cluster.collect_garbage()
        due = self.operator.queue.due
        soon = 5.0 if due is None else min(60.0, due - self.clock.seconds)
        self.clock.seconds += max(0.5, soon)

    def is_at_rest(self) -> bool:
        for job in self.cluster.list("BatchInference"):
            status = job.get("status", {})
            suspended = job["spec"].get("suspend") and is_condition_true(status, "Suspended")
            # after a change of the spec, a job that failed as InvalidSpec starts again
            observed = status.get("observedGeneration") == job["metadata"]["generation"]
            if not (observed and (ended(status) or suspended)):
                return False
        return True

    def check_ends(self) -> None:
        for job in self.cluster.list("BatchInference"):
            self.check_end(job)

    def check_end(self, job: Object) -> None:
        status, uid = job["status"], job["metadata"]["uid"]
        assert status["observedGeneration"] == job["metadata"]["generation"]
        if not ended(status):
            assert job["spec"].get("suspend"), status
            assert status["phase"] == "Suspended"
            return
        if is_condition_true(status, "Complete"):
            assert uid in self.kuberay.succeeded
            return
        failed = find_condition(status, "Failed")
        assert failed
        assert failed["reason"] in self.allowed_causes[uid], status
        if failed["reason"] not in ("DeadlineExceeded", "InvalidSpec"):
            retry = Retry.model_validate(job["spec"].get("retry", {}))
            assert not retry.allows(Cause(failed["reason"]), status["failedAttempts"]), status

    def check_nothing_is_left(self) -> None:
        assert self.live() == []
        assert self.cluster.list("RayCluster") == []
        assert self.cluster.list("Pod") == []
        uids = {job["metadata"]["uid"] for job in self.cluster.list("BatchInference")}
        ray_jobs = self.cluster.list("RayJob")
        assert {owner_uid(body, "BatchInference") for body in ray_jobs} <= uids
        kept = [body["metadata"]["name"] for body in ray_jobs
                if RayJobView.of(body).cluster_retained and ended(self.status)]  # fmt: skip
        assert kept == [], "the operator ends the wait of clusters, not KubeRay"
        if self.job and ended(self.status):
            assert "afterFinished" not in self.job["spec"].get("ttl", {})
        if self.job and ended(self.status) and "rayJob" in self.job["spec"].get("ttl", {}):
            uid = self.job["metadata"]["uid"]
            assert uid not in {owner_uid(body, "BatchInference") for body in ray_jobs}

    def allow_failure(self, uid: str | None, cause: str) -> None:
        self.allowed_causes.setdefault(uid, set()).add(cause)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Disable the log, because errors are expected."""
    logger = logging.getLogger("batchinference.operator")
    logger.disabled = True
    yield
    logger.disabled = False


class TwoJobsModel(JobModel):
    """The same model with a second job, of a higher or a lower priority, and a concurrency limit of
    one, so the status records the start first."""

    config = replace(JobModel.config, concurrency=Concurrency(total=1))

    @precondition(lambda self: self.cluster.get("BatchInference", "rival") is None)
    @rule(priority=st.sampled_from([-5, 5, 5]))
    def create_rival(self, priority: int) -> None:
        self.clock.seconds += 1  # a previous job must have another creationTimestamp
        body = document("rival", priority=priority)
        created = self.cluster.put({**body, "metadata": {"name": "rival", "namespace": NAMESPACE}})
        self.allowed_causes[created["metadata"]["uid"]] = set()

    @precondition(lambda self: self.cluster.get("BatchInference", "rival") is not None)
    @rule(foreground=st.booleans())
    def delete_rival(self, foreground: bool) -> None:
        self.cluster.delete("BatchInference", "rival", foreground=foreground)

    @invariant()
    def one_job_runs_at_a_time(self) -> None:
        """A RayJob in a queue of Kueue does not count."""
        ray_jobs = [RayJobView.of(body) for body in self.cluster.list("RayJob")]
        assert sum(not (one.ended or one.queue) for one in ray_jobs) <= 1


@pytest.mark.scaled("model-check")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("machine", "runs"),
    [(JobModel, examples(2000, 70)), (TwoJobsModel, examples(1333, 25))],
    ids=["unlimited", "two-jobs"],
)
def test_job_reaches_the_correct_end_despite_any_faults(machine: type[JobModel], runs: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            derandomize=True,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

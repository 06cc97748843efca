"""A job's life in which anything may happen at any moment, and how it ends all the same."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
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

from batchinference.spec.causes import Cause
from batchinference.spec.lifecycle import Retry
from batchinference.spec.phases import TRANSITIONS, Phase
from batchinference.spec.status import BatchInferenceStatus
from batchinference_operator.reconcile.turns import Concurrency
from batchinference_operator.runtime.controller import BACKLOG
from batchinference_operator.status.attempts import current
from batchinference_operator.status.conditions import condition_of, holds
from batchinference_operator.status.observations import RayJobView, owner_uid
from batchinference_operator.status.status import read_again
from support.documents import document
from support.kstatus import kstatus
from support.operator_objects import NAMESPACE, SETTINGS
from support.simulated_kuberay import SimulatedKubeRay
from support.simulated_operator import SimulatedOperator
from support.simulated_server import FAULTS, WATCHED, Object, SimulatedServer

RUNS = int(os.environ.get("MODEL_CHECK_RUNS", "150"))
SAME = "MODEL_CHECK_RUNS" in os.environ
"""So many runs are the same each time; the few of every day look further."""
STEPS = 50
CALM_LOOKS = 600
"""Far more than any job needs for its end once nothing goes wrong any more."""
CAUSES = ["NodeLost", "OutOfMemory", "BadInput", "Application", "Incomplete"]
SECONDS = [1, 10, 60, 400, 2000]
ENDS = ("Complete", "Failed")
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.sampled_from([True, False, False]),
        "retry": st.sampled_from(
            [
                {"maxAttempts": 1},
                {"maxAttempts": 2, "backoff": {"initial": "0s"}},
                {
                    "backoff": {"initial": "5m"},
                    "onCause": {"BadInput": "retry", "NodeLost": "fail"},
                },
                {"maxAttempts": 5, "onCause": {"RayJobDeleted": "retry"}},
            ]
        ),
        "deadlines": st.sampled_from(
            [{"pending": "10m"}, {"active": "20m"}, {"total": "1h"}, {"stall": "10m"}]
        ),
        "cluster": st.just({"queue": "gpu"}),
        "ttl": st.sampled_from([{"cluster": "10m"}, {"rayJob": "20m"}]),
    },
)
OF_DEADLINES = {"DeadlineExceeded", "Stalled", "ImagePull", "ContainerConfig"}


def ended(status: Object) -> bool:
    return any(holds(status, kind) for kind in ENDS)


def tools_say(job: Object, phase: Phase) -> str:
    """What Flux and Helm should see in a job of this phase."""
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    at_rest = {Phase.SUCCEEDED: "Current", Phase.SUSPENDED: "Current", Phase.FAILED: "Failed"}
    return at_rest.get(phase, "InProgress")


class AnyLife(RuleBasedStateMachine):
    """One job, its users, the operator, KubeRay, Kueue and the cluster below them."""

    settings = SETTINGS

    def __init__(self) -> None:
        super().__init__()
        self.server = SimulatedServer(on_status=self.written)
        self.kuberay = SimulatedKubeRay(self.server)
        self.operator = SimulatedOperator(self.server, self.kuberay, self.settings)
        self.blamed: dict[str | None, set[str]] = {}
        """By the uid of a BatchInference, the causes by which it may fail."""

    # --- people -------------------------------------------------------------------------

    @property
    def job(self) -> Object | None:
        return self.server.get("BatchInference", "job")

    @property
    def status(self) -> Object:
        return (self.job or {}).get("status", {})

    @initialize(spec=SPECS)
    def somebody_creates_it(self, spec: dict[str, Any]) -> None:
        body = document("job", **spec)
        created = self.server.put({**body, "metadata": {"name": "job", "namespace": NAMESPACE}})
        causes = OF_DEADLINES if "deadlines" in spec else set()
        self.blamed[created["metadata"]["uid"]] = set(causes)

    @precondition(lambda self: self.job is None)
    @rule(spec=SPECS)
    def somebody_creates_it_again(self, spec: dict[str, Any]) -> None:
        self.server.seconds += 1  # what two objects of one name are told apart by
        self.somebody_creates_it(spec)

    @precondition(lambda self: self.job is not None)
    @rule()
    def somebody_suspends_or_resumes_it(self) -> None:
        assert self.job is not None
        suspend = not self.job["spec"].get("suspend", False)
        generation = self.job["metadata"]["generation"] + 1
        changed = {"suspend": suspend}
        self.server.change(self.job, spec=changed, metadata={"generation": generation})

    @precondition(lambda self: self.job is not None and not ended(self.status))
    @rule(calls=st.integers(0, 10))
    def somebody_changes_his_mind(self, calls: int) -> None:
        self.somebody_suspends_or_resumes_it()
        self.operator.hear_all()
        self.the_operator_goes_on(calls)
        if self.job is not None and not ended(self.status):
            self.somebody_suspends_or_resumes_it()

    @precondition(lambda self: self.job is not None)
    @rule(what=st.sampled_from(["the job", "the job, in the foreground", "its RayJob"]))
    def somebody_deletes(self, what: str) -> None:
        assert self.job is not None
        if what == "its RayJob":
            self.delete_ray_job()
        else:
            self.server.delete(self.job, foreground=what != "the job")

    def delete_ray_job(self) -> None:
        """Not in the second in which it gets its token."""
        if "startTime" not in (current(self.status) or {}):
            return
        body = self.server.get("RayJob", self.status["rayJobName"])
        if body is not None:
            self.blame(owner_uid(body, "BatchInference"), "RayJobDeleted")
            self.server.delete(body)

    # --- KubeRay, Kueue, the drivers ----------------------------------------------------

    @rule()
    def kuberay_acts(self) -> None:
        self.kuberay.act()

    @rule()
    def drivers_go_on(self) -> None:
        self.kuberay.drive()

    @rule(cause=st.sampled_from(CAUSES))
    def a_driver_fails(self, cause: str) -> None:
        uid = self.kuberay.fail(cause)
        # that of a RayJob which somebody has deleted can be heard for a while
        for each in list(self.blamed) if uid is None else [uid]:
            self.blame(each, cause)
            self.blame(each, "Application")  # all that is known if its report cannot be read

    @rule(trouble=st.sampled_from(["away", "silent", "stuck"]), seconds=st.sampled_from(SECONDS))
    def something_does_not_work(self, trouble: str, seconds: int) -> None:
        self.kuberay.trouble[trouble] = self.server.seconds + seconds

    @rule(reason=st.sampled_from(["SubmissionFailed", "JobStatusCheckTimeoutExceeded"]))
    def kuberay_gives_up(self, reason: str) -> None:
        for body in self.server.all("RayJob"):
            if body.get("status", {}).get("jobDeploymentStatus") == "Running":
                self.blame(owner_uid(body, "BatchInference"), "SubmissionFailed")
                self.kuberay.give_up(body, reason)

    @rule(suspend=st.booleans())
    def kueue_decides(self, suspend: bool) -> None:
        for body in self.server.all("RayJob"):
            seen = RayJobView.of(body)
            if seen.ended:
                continue
            self.server.change(body, spec={"suspend": suspend})
            if not seen.queue:  # it is not Kueue, then, who does that
                self.blame(seen.owner_uid, "Interrupted")

    @rule()
    def heads_are_lost(self) -> None:
        self.kuberay.lose_head()

    @rule(reason=st.sampled_from(["Evicted", "Preempting"]))
    def a_pod_is_lost(self, reason: str) -> None:
        pods = self.server.all("Pod")
        if pods:
            cause = {"Evicted": "NodeLost", "Preempting": "Preempted"}[reason]
            for uid in self.blamed:
                self.blame(uid, cause)
            self.server.change(pods[-1], status={"phase": "Failed", "reason": reason})

    @rule()
    def garbage_is_collected(self) -> None:
        self.server.collect()

    # --- the watches and the operator ---------------------------------------------------

    @rule(kind=st.sampled_from(WATCHED), again=st.booleans())
    def news_comes(self, kind: str, again: bool) -> None:
        self.operator.hear(kind, again=again)

    @rule()
    def all_news_comes(self) -> None:
        self.operator.hear_all()

    @rule(kind=st.sampled_from(WATCHED))
    def a_watch_begins_anew(self, kind: str) -> None:
        self.server.begin_anew(kind)

    @rule(calls=st.integers(1, 8))
    def the_operator_goes_on(self, calls: int) -> None:
        for _ in range(calls):
            self.operator.go_on()

    @rule(calls=st.integers(1, 6), how=st.sampled_from([*FAULTS, *FAULTS, "killed"]))
    def the_operator_is_disturbed(self, calls: int, how: str) -> None:
        """In the midst of a look."""
        self.operator.hear_all()
        self.operator.queue.add((NAMESPACE, "job"))
        self.the_operator_goes_on(calls)
        if how == "killed":
            self.operator.kill()
        else:
            self.operator.go_on(how)

    @rule(jobs=st.sampled_from([0, BACKLOG]))
    def others_wait(self, jobs: int) -> None:
        self.operator.queue.others = jobs

    @rule(seconds=st.sampled_from(SECONDS))
    def time_passes(self, seconds: int) -> None:
        self.server.seconds += seconds

    @rule(looks=st.integers(1, 4))
    def all_goes_well_for_a_moment(self, looks: int) -> None:
        self.all_goes_well_for_a_while(looks)

    @rule(looks=st.integers(1, 4))
    def all_goes_well_meanwhile(self, looks: int) -> None:
        self.all_goes_well_for_a_while(looks)

    @rule(looks=st.integers(5, 15))
    def all_goes_well_for_a_while(self, looks: int) -> None:
        for _ in range(looks):
            self.go_well()

    # --- what holds always --------------------------------------------------------------

    def written(self, before: Object, after: Object) -> None:
        """A status was written."""
        old, new = before.get("status", {}), after["status"]
        if ended(old):  # which is final: what is told of it is the spec that was read last
            assert read_again(old, 0) == read_again(new, 0)
            return
        BatchInferenceStatus.model_validate(new, strict=False)
        phase, last = Phase(new["phase"]), Phase(old["phase"]) if old else None
        assert phase == last or phase in TRANSITIONS[last], f"{last} -> {phase}"
        assert (phase == Phase.SUSPENDED) == holds(new, "Suspended")
        assert phase.ended == ended(new)
        assert kstatus(after) == tools_say(after, phase)
        self.in_order(new)
        self.charged_rightly(after)
        self.retried_rightly(after, new)

    def in_order(self, status: Object) -> None:
        """The attempts of a status are numbered in their order, and only the last goes on."""
        attempts = status.get("attempts", [])
        numbers = [attempt["number"] for attempt in attempts]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all("outcome" in attempt for attempt in attempts[:-1])
        failed = sum(attempt.get("outcome") == "Failed" for attempt in attempts)
        assert status.get("failedAttempts", 0) == failed
        assert not ended(status) or not attempts or "outcome" in attempts[-1]

    def charged_rightly(self, job: Object) -> None:
        """A job pays for its own pods alone, of which there are two at a time with a GPU each."""
        born = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
        lived = (self.server.now() - born).total_seconds()
        assert job["status"].get("gpuSeconds", 0) <= 2 * lived

    def retried_rightly(self, job: Object, status: Object) -> None:
        """Another attempt follows only where the job's rules allow one."""
        if status["phase"] == Phase.RETRYING:
            retry, last = Retry.model_validate(job["spec"].get("retry", {})), current(status)
            assert last is not None
            assert retry.allows(Cause(last["cause"]), status["failedAttempts"])

    @invariant()
    def only_one_ray_job_of_a_job_goes_on(self) -> None:
        live = [owner_uid(body, "BatchInference") for body in self.live()]
        assert len(live) == len(set(live))

    @invariant()
    def the_operator_has_met_nothing_unforeseen(self) -> None:
        for defect in self.operator.queue.defects:
            raise defect

    def live(self) -> list[Object]:
        return [
            body
            for body in self.server.all("RayJob")
            if not RayJobView.of(body).ended and "deletionTimestamp" not in body["metadata"]
        ]

    # --- how it ends --------------------------------------------------------------------

    def teardown(self) -> None:
        """Once nothing goes wrong any more, the job comes to the end that it has deserved."""
        try:
            self.calm_down()
            self.has_ended_rightly()
            self.nothing_is_left()
        finally:
            self.operator.work.close()

    def calm_down(self) -> None:
        self.kuberay.trouble.clear()
        self.kueue_decides(suspend=False)
        for _ in range(CALM_LOOKS):
            self.go_well()
            if self.at_rest():
                break
        for _ in range(4):
            self.server.seconds += 1000  # whatever is kept for some time has had its time
            for _ in range(4):
                self.go_well()
        self.the_operator_has_met_nothing_unforeseen()
        self.only_one_ray_job_of_a_job_goes_on()

    def go_well(self) -> None:
        """A while in which everybody gets to do what he has to."""
        self.kueue_decides(suspend=False)
        self.operator.hear_all()
        while not self.operator.idle:
            self.operator.go_on()
            self.operator.hear_all()
        self.kuberay.act()
        self.kuberay.drive()
        self.server.collect()
        due = self.operator.queue.due
        soon = 5.0 if due is None else min(60.0, due - self.server.seconds)
        self.server.seconds += max(0.5, soon)

    def at_rest(self) -> bool:
        if self.job is None or ended(self.status):
            return True
        return self.job["spec"].get("suspend", False) and holds(self.status, "Suspended")

    def has_ended_rightly(self) -> None:
        if self.job is None:
            return
        status, uid = self.status, self.job["metadata"]["uid"]
        assert status["observedGeneration"] == self.job["metadata"]["generation"]
        if not ended(status):
            assert self.job["spec"].get("suspend"), status
            assert status["phase"] == "Suspended"
            return
        if holds(status, "Complete"):
            assert uid in self.kuberay.succeeded
            return
        failed = condition_of(status, "Failed")
        assert failed is not None
        assert failed["reason"] in self.blamed[uid], status
        if failed["reason"] not in ("DeadlineExceeded", "InvalidSpec"):
            retry = Retry.model_validate(self.job["spec"].get("retry", {}))
            assert not retry.allows(Cause(failed["reason"]), status["failedAttempts"]), status

    def nothing_is_left(self) -> None:
        assert self.live() == []
        assert self.server.all("RayCluster") == []
        assert self.server.all("Pod") == []
        uid = self.job["metadata"]["uid"] if self.job else None
        ray_jobs = self.server.all("RayJob")
        assert {owner_uid(body, "BatchInference") for body in ray_jobs} <= {uid}
        kept = [body["metadata"]["name"] for body in ray_jobs
                if RayJobView.of(body).kept and ended(self.status)]  # fmt: skip
        assert kept == [], "the operator ends the wait of clusters, not KubeRay"
        if self.job and ended(self.status) and "rayJob" in self.job["spec"].get("ttl", {}):
            assert ray_jobs == []

    def blame(self, uid: str | None, cause: str) -> None:
        self.blamed.setdefault(uid, set()).add(cause)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What goes wrong on purpose need not be logged."""
    logger = logging.getLogger("batchinference.operator")
    logger.disabled = True
    yield
    logger.disabled = False


class OneAtATime(AnyLife):
    """The same where only one may run at a time, which the status has to say first."""

    settings = replace(SETTINGS, concurrency=Concurrency(in_all=1))


@pytest.mark.parametrize(
    ("machine", "runs"), [(AnyLife, RUNS), (OneAtATime, RUNS // 3)], ids=["any", "one-at-a-time"]
)
def test_whatever_happens_a_job_comes_to_its_right_end_and_leaves_nothing(
    machine: type[AnyLife], runs: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            derandomize=SAME,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""The admission queue: which jobs may start when there is a concurrency limit."""

from __future__ import annotations

import time
from collections import Counter
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batchinference_operator.reconcile.admission_queue import (
    AdmissionDecision,
    AdmissionQueue,
    Concurrency,
    QueueEntry,
)
from batchinference_operator.reconcile.job_view import JobKey
from plugins.messages import Messages
from support.tiers import examples
from support.timeouts import scaled


class Queue:
    """An admission queue with job names as keys. A job that was added earlier is older."""

    def __init__(self, total: int | None = None, per_namespace: int | None = None) -> None:
        self.woken: list[str] = []
        limits = Concurrency(total, per_namespace)
        self.admission_queue = AdmissionQueue(limits, wake=lambda key: self.woken.append(key[1]))
        self.version = 0

    def wait(self, *names: str, namespace: str = "team", **entry: object) -> None:
        for name in names:
            self.version += 1
            fields = {"waiting": True, "created_at": f"{self.version:06}", **entry}
            self.admission_queue.update((namespace, name), QueueEntry(str(self.version), **fields))  # type: ignore[arg-type]

    def run(self, name: str) -> None:
        self.wait(name, running=True, waiting=False)

    def end(self, name: str) -> None:
        self.wait(name, waiting=False)

    def starts(self, name: str, *, namespace: str = "team") -> bool:
        admission = self.admission_queue.decide((namespace, name))
        return admission is not None and admission.admitted


@pytest.fixture
def queue() -> Queue:
    """Return a queue with a concurrency limit of one."""
    return Queue(1)


def test_priority_may_change_while_a_job_waits(queue: Queue) -> None:
    queue.wait("a", created_at="1")
    queue.wait("b", created_at="2")
    queue.wait("a", created_at="1", priority=-1)
    assert queue.starts("b")
    assert queue.woken[-1] == "b", "no other event wakes it"


def test_started_job_counts_before_its_ray_job_is_observed(queue: Queue) -> None:
    queue.wait("a", "b")
    queue.admission_queue.admit(("team", "a"))
    assert not queue.starts("b")
    assert queue.starts("a"), "its status may not have been written"


def test_slot_is_freed_when_a_newer_version_has_not_started(queue: Queue) -> None:
    queue.wait("a", "b")
    queue.admission_queue.admit(("team", "a"))
    queue.end("a")
    assert queue.starts("b")


def test_next_job_is_woken_when_one_ends(queue: Queue) -> None:
    queue.run("a")
    queue.wait("b", "c")
    assert queue.woken == []
    queue.end("a")
    assert queue.woken == ["b"]


def test_pods_of_a_deleted_job_still_count(queue: Queue) -> None:
    queue.run("a")
    queue.wait("b")
    queue.admission_queue.update_usage(("team", "a"), running=True)
    queue.admission_queue.update(("team", "a"), None)
    assert not queue.starts("b")
    queue.admission_queue.update_usage(("team", "a"), running=False)
    assert queue.woken == ["b"]
    assert queue.starts("b")


def test_job_that_cannot_start_lets_the_next_start(queue: Queue) -> None:
    queue.wait("a", "b")
    queue.admission_queue.skip(("team", "a"))
    assert queue.woken == ["b"]
    assert queue.starts("b")
    assert queue.starts("a")
    assert not queue.starts("b")


def test_skipped_job_keeps_its_position(queue: Queue) -> None:
    queue.run("x")
    queue.wait("a")
    queue.admission_queue.skip(("team", "a"))
    queue.end("x")
    assert queue.woken == ["a"]


def test_full_namespace_does_not_block_another(messages: Messages) -> None:
    queue = Queue(2, per_namespace=1)
    queue.run("a")
    queue.wait("b", "d")
    queue.wait("c", namespace="other")
    assert not queue.starts("b")
    assert queue.starts("c", namespace="other")
    admission = queue.admission_queue.decide(("team", "d"))
    assert admission is not None
    messages.check(admission.message)


def test_priority_has_no_effect_on_other_namespaces() -> None:
    queue = Queue(2)
    hostile = [f"hostile-{number}" for number in range(50)]
    queue.wait("old", namespace="honest")
    queue.wait(*hostile, namespace="hostile", priority=10**9)
    queue.wait("new", namespace="honest")
    assert queue.starts("old", namespace="honest")
    assert [name for name in hostile if queue.starts(name, namespace="hostile")] == ["hostile-0"]
    queue.admission_queue.admit(("honest", "old"))
    queue.admission_queue.admit(("hostile", "hostile-0"))
    queue.wait("old", namespace="honest", waiting=False)
    assert queue.woken[-1] == "new"
    admission = queue.admission_queue.decide(("hostile", "hostile-1"))
    assert admission is not None
    assert (admission.admitted, admission.ahead) == (False, 1)


@pytest.mark.parametrize(
    ("ahead", "message"),
    [
        (0, "next to start"),
        (1, "1 job ahead"),
        (9, "9 jobs ahead"),
        (10, "at least 10 jobs ahead"),
        (19, "at least 10 jobs ahead"),
        (456, "at least 400 jobs ahead"),
    ],
)
def test_distant_position_is_rounded(ahead: int, message: str) -> None:
    assert AdmissionDecision(ahead, admitted=False, why="why").message == f"{message}; why"


KEYS = st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.sampled_from([*"abcde"]))
LIMITS = st.builds(
    Concurrency, st.none() | st.integers(1, 4), st.none() | st.integers(1, 2)
).filter(lambda limits: limits.has_limit)


class AnyOrder(RuleBasedStateMachine):
    """Jobs wait, start and end in any order. The model computes the admitted jobs from scratch."""

    @initialize(limits=LIMITS)
    def begin(self, limits: Concurrency) -> None:
        self.limits = limits
        self.woken: set[JobKey] = set()
        self.admission_queue = AdmissionQueue(limits, wake=self.woken.add)
        self.waiting: dict[JobKey, tuple[int, str]] = {}
        self.running: set[JobKey] = set()
        self.pods: set[JobKey] = set()
        self.version = 0

    def see(self, key: JobKey, **fields: object) -> None:
        self.version += 1
        self.admission_queue.update(key, QueueEntry(str(self.version), **fields))  # type: ignore[arg-type]

    @rule(key=KEYS, priority=st.integers(-1, 1), age=st.sampled_from(["1", "2", "3"]))
    def job_waits(self, key: JobKey, priority: int, age: str) -> None:
        self.running.discard(key)
        self.waiting[key] = priority, age
        self.see(key, priority=priority, created_at=age, waiting=True)

    @rule(key=KEYS)
    def job_ends(self, key: JobKey) -> None:
        self.running.discard(key)
        self.waiting.pop(key, None)
        self.see(key)

    @rule(key=KEYS, running=st.booleans())
    def pods_start_or_end(self, key: JobKey, running: bool) -> None:
        (self.pods.add if running else self.pods.discard)(key)
        self.admission_queue.update_usage(key, running)

    @rule(key=KEYS, ready=st.booleans())
    def job_is_reconciled(self, key: JobKey, ready: bool) -> None:
        admission = self.admission_queue.decide(key)
        assert (admission is not None) == (key in self.waiting)
        if admission is None:
            return
        if ready and admission.admitted:
            self.admission_queue.admit(key)
            del self.waiting[key]
            self.running.add(key)
            if self.version % 2:
                self.see(key, running=True)
            else:  # the answer is lost, so the job still looks unchanged
                assert self.admission_queue.decide(key) == AdmissionDecision(0, admitted=True)
                self.see(key, running=True)
        self.admission_queue.skip(key)

    def may_start(self) -> list[JobKey]:
        """Return the jobs that may start, computed from scratch."""
        busy, chosen = self.running | self.pods, []
        count = Counter(namespace for namespace, _ in busy)
        by_key = {key: (-first, age, *key) for key, (first, age) in self.waiting.items()}
        left = sorted(self.waiting.keys() - busy, key=by_key.__getitem__)
        per_namespace = self.limits.per_namespace or inf
        while self.limits.total is None or len(busy) + len(chosen) < self.limits.total:
            heads = {key[0]: key for key in reversed(left) if count[key[0]] < per_namespace}
            if not heads:
                break
            key = min(heads.values(), key=lambda head: (count[head[0]], by_key[head][1:]))
            chosen.append(key)
            left.remove(key)
            count[key[0]] += 1
        return chosen

    @invariant()
    def exactly_the_admitted_jobs_may_start(self) -> None:
        if not hasattr(self, "admission_queue"):
            return
        for key in self.waiting:  # puts passed-over jobs back in their places
            self.admission_queue.decide(key)
        admission_queue = {key: self.admission_queue.decide(key) for key in self.waiting}
        admitted = {
            key
            for key, admission in admission_queue.items()
            if admission is not None and admission.admitted
        }
        assert admitted == set(self.may_start())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_reconcile_is_cheap_with_five_thousand_jobs() -> None:
    queue = Queue(10, per_namespace=2)
    spaces = [f"team-{number}" for number in range(50)]
    began = time.process_time()
    for number in range(5000):
        queue.wait(f"job-{number}", namespace=spaces[number % 50])
    for number in range(1000):
        queue.starts(f"job-{number}", namespace=spaces[number % 50])
        queue.admission_queue.update_usage((spaces[number % 50], "x"), running=number % 2 == 0)
    assert time.process_time() - began < scaled(2.0)

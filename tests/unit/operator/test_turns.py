"""Who may begin, where only so many jobs may run at a time."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batchinference_operator.reconcile.turns import Concurrency, Key, Stand, Turn, Turns
from support.tiers import examples

ONE = Concurrency(in_all=1)


class Queue:
    """Turns with names for keys; a job's age is the order of its coming."""

    def __init__(self, limits: Concurrency) -> None:
        self.woken: list[str] = []
        self.turns = Turns(limits, wake=lambda key: self.woken.append(key[1]))
        self.version = 0

    def come(self, name: str, *, namespace: str = "team", **stand: object) -> None:
        self.version += 1
        fields = {"waits": True, "created_at": f"{self.version:06}", **stand}
        self.turns.see((namespace, name), Stand(str(self.version), **fields))  # type: ignore[arg-type]

    def run(self, name: str, *, namespace: str = "team") -> None:
        self.come(name, namespace=namespace, holds=True, waits=False)

    def end(self, name: str, *, namespace: str = "team") -> None:
        self.come(name, namespace=namespace, waits=False)

    def begins(self, name: str, *, namespace: str = "team") -> bool:
        turn = self.turns.turn_of((namespace, name))
        return turn is not None and turn.begins

    def ahead(self, name: str, *, namespace: str = "team") -> int:
        turn = self.turns.turn_of((namespace, name))
        assert turn is not None
        return turn.ahead


def queue(in_all: int | None = None, per_namespace: int | None = None) -> Queue:
    return Queue(Concurrency(in_all, per_namespace))


def test_without_a_limit_nobody_waits() -> None:
    free = queue()
    free.come("a")
    assert free.turns.turn_of(("team", "a")) is None


def test_the_older_of_two_begins_first() -> None:
    jobs = queue(1)
    jobs.come("a")
    jobs.come("b")
    assert (jobs.begins("a"), jobs.begins("b"), jobs.ahead("b")) == (True, False, 1)


def test_the_one_of_higher_priority_begins_before_the_older() -> None:
    jobs = queue(1)
    jobs.come("a")
    jobs.come("b", priority=5)
    assert (jobs.begins("a"), jobs.begins("b")) == (False, True)


def test_priority_may_change_while_a_job_waits() -> None:
    jobs = queue(1)
    jobs.come("a", created_at="1")
    jobs.come("b", created_at="2")
    jobs.come("a", created_at="1", priority=-1)
    assert jobs.begins("b")
    assert jobs.woken[-1] == "b", "nothing else would tell it"


def test_started_job_counts_before_its_ray_job_is_seen() -> None:
    jobs = queue(1)
    jobs.come("a")
    jobs.come("b")
    jobs.turns.take(("team", "a"))
    assert not jobs.begins("b")
    assert jobs.begins("a"), "its status may not have been written"


def test_turn_is_freed_when_a_newer_version_has_not_started() -> None:
    jobs = queue(1)
    jobs.come("a", created_at="1")
    jobs.come("b", created_at="2")
    jobs.turns.take(("team", "a"))
    jobs.end("a")
    assert jobs.begins("b")


def test_the_next_is_woken_as_soon_as_one_ends() -> None:
    jobs = queue(1)
    jobs.run("a")
    jobs.come("b")
    jobs.come("c")
    assert jobs.woken == []
    jobs.end("a")
    assert jobs.woken == ["b"]


def test_pods_of_a_job_that_has_ended_or_is_gone_still_count() -> None:
    jobs = queue(1)
    jobs.run("a")
    jobs.come("b")
    jobs.turns.see_pods(("team", "a"), held=True)
    jobs.turns.see(("team", "a"), None)
    assert not jobs.begins("b")
    jobs.turns.see_pods(("team", "a"), held=False)
    assert jobs.woken == ["b"]
    assert jobs.begins("b")


def test_job_that_cannot_start_lets_the_next_start() -> None:
    jobs = queue(1)
    jobs.come("a")
    jobs.come("b")
    jobs.turns.pass_over(("team", "a"))
    assert jobs.woken == ["b"]
    assert jobs.begins("b")
    assert jobs.begins("a")
    assert not jobs.begins("b")


def test_one_whose_turn_has_not_come_stays_in_its_place() -> None:
    jobs = queue(1)
    jobs.run("x")
    jobs.come("a")
    jobs.turns.pass_over(("team", "a"))
    jobs.end("x")
    assert jobs.woken == ["a"]


def test_a_full_namespace_keeps_nobody_else_waiting() -> None:
    jobs = queue(2, per_namespace=1)
    jobs.run("a")
    jobs.come("b")
    jobs.come("c", namespace="other")
    assert not jobs.begins("b")
    assert jobs.begins("c", namespace="other")


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (0, "it is the next to begin"),
        (1, "1 job is ahead"),
        (9, "9 jobs are ahead"),
        (10, "at least 10 jobs are ahead"),
        (19, "at least 10 jobs are ahead"),
        (456, "at least 400 jobs are ahead"),
    ],
)
def test_a_place_is_told_roughly_when_it_is_far_away(ahead: int, words: str) -> None:
    assert Turn(ahead, begins=False, why="why").words == f"{words}: why"


KEYS = st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.sampled_from([*"abcde"]))
LIMITS = st.builds(
    Concurrency, st.none() | st.integers(1, 4), st.none() | st.integers(1, 2)
).filter(lambda limits: limits.limited)


class AnyOrder(RuleBasedStateMachine):
    """Jobs come, begin, end and go in any order, before a queue that is counted anew each time."""

    @initialize(limits=LIMITS)
    def begin(self, limits: Concurrency) -> None:
        self.limits = limits
        self.woken: set[Key] = set()
        self.turns = Turns(limits, wake=self.woken.add)
        self.waiting: dict[Key, tuple[int, str]] = {}
        self.running: set[Key] = set()
        self.pods: set[Key] = set()
        self.version = 0

    def see(self, key: Key, **fields: object) -> None:
        self.version += 1
        self.turns.see(key, Stand(str(self.version), **fields))  # type: ignore[arg-type]

    @rule(key=KEYS, priority=st.integers(-1, 1), age=st.sampled_from(["1", "2", "3"]))
    def one_waits(self, key: Key, priority: int, age: str) -> None:
        self.running.discard(key)
        self.waiting[key] = priority, age
        self.see(key, priority=priority, created_at=age, waits=True)

    @rule(key=KEYS)
    def one_ends(self, key: Key) -> None:
        self.running.discard(key)
        self.waiting.pop(key, None)
        self.see(key)

    @rule(key=KEYS, held=st.booleans())
    def pods_come_or_go(self, key: Key, held: bool) -> None:
        (self.pods.add if held else self.pods.discard)(key)
        self.turns.see_pods(key, held)

    @rule(key=KEYS, ready=st.booleans())
    def one_looks(self, key: Key, ready: bool) -> None:
        turn = self.turns.turn_of(key)
        assert (turn is not None) == (key in self.waiting)
        if turn is None:
            return
        if ready and turn.begins:
            self.turns.take(key)
            del self.waiting[key]
            self.running.add(key)
            if self.version % 2:
                self.see(key, holds=True)
            else:  # the answer is lost, and what is seen is the same as before
                assert self.turns.turn_of(key) == Turn(0, begins=True)
                self.see(key, holds=True)
        self.turns.pass_over(key)

    def may_begin(self) -> list[Key]:
        """All who may, in their order, as one would count it on paper."""
        busy = self.running | self.pods
        count, chosen = Counter(namespace for namespace, _ in busy), []
        places = {key: (-first, age, *key) for key, (first, age) in self.waiting.items()}
        order = sorted(self.waiting.keys() - busy, key=places.__getitem__)
        for key in order:
            full = self.limits.in_all is not None and len(busy) + len(chosen) >= self.limits.in_all
            most = self.limits.per_namespace
            if not full and (most is None or count[key[0]] < most):
                chosen.append(key)
                count[key[0]] += 1
        return chosen

    @invariant()
    def those_whose_turn_it_is_may_begin_and_no_other(self) -> None:
        if not hasattr(self, "turns"):
            return
        for key in self.waiting:  # all are back in their places
            self.turns.turn_of(key)
        turns = {key: self.turns.turn_of(key) for key in self.waiting}
        begins = {key for key, turn in turns.items() if turn is not None and turn.begins}
        assert begins == set(self.may_begin())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=20))
@settings(max_examples=examples(100), deadline=None)
def test_all_come_to_their_turn_by_priority_and_then_by_age(jobs: list[tuple[int, int]]) -> None:
    one = Queue(ONE)
    for number, (priority, age) in enumerate(jobs):
        one.come(f"job-{number:02}", priority=priority, created_at=str(age))
    order = []
    for _ in jobs:
        (name,) = [n for n in (f"job-{i:02}" for i in range(len(jobs))) if one.begins(n)]
        order.append(name)
        one.turns.take(("team", name))
        one.end(name)
    places = [(-jobs[int(name[-2:])][0], jobs[int(name[-2:])][1], name) for name in order]
    assert places == sorted(places)


def test_five_thousand_jobs_cost_little_at_each_look() -> None:
    many = queue(10, per_namespace=2)
    spaces = [f"team-{number}" for number in range(50)]
    began = time.process_time()
    for number in range(5000):
        many.come(f"job-{number}", namespace=spaces[number % 50])
    for number in range(1000):
        many.begins(f"job-{number}", namespace=spaces[number % 50])
        many.turns.see_pods((spaces[number % 50], "x"), held=number % 2 == 0)
    assert time.process_time() - began < 2.0

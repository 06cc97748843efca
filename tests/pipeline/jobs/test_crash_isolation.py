"""Which row killed the processes of a task or an actor: what follows from the notes of deaths."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline import job as job_module
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution import crash_notes, segment
from batchinference.pipeline.execution.crash_isolation import (
    CRASHED,
    NO_DEATHS,
    PARTS,
    CrashNote,
    Death,
    Isolation,
)
from batchinference.pipeline.execution.crash_notes import (
    ReadNotes,
    deaths_of,
    noted_rows,
    predecessor_deaths,
    storing_notes,
    take_deaths,
)
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling, StepRunner
from batchinference.pipeline.row_batch import RowBatch, merged, pack_id
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Plan, plan_for_cluster, plan_for_machine
from batchinference.spec.report import JobState
from batchinference.spec.steps import Step
from support.documents.parsed import spec_of
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import InProcessExecution, run_without_ray
from support.outputs.batches import end, errors_of, good, outcomes
from support.tiers import examples


def note(first: int, last: int | None = None, node: str = "", step: str = "own") -> CrashNote:
    """Return a note of consecutive rows."""
    return CrashNote.of(step, np.arange(first, (first if last is None else last) + 1), node)


ROW, OTHER, MANY = note(5), note(7), note(0, 99)


@pytest.mark.parametrize(
    ("deaths", "suspects", "crashed"),
    [
        ([], [], []),
        ([(MANY,)], [MANY], []),
        ([(MANY,), (ROW,)], [ROW, MANY], []),
        ([(ROW,), (OTHER,)], [ROW, OTHER], []),
        ([(ROW,), (ROW,)], [], [5]),
        ([(MANY,), (ROW,), (ROW,), (OTHER,)], [OTHER, MANY], [5]),
        ([(ROW, OTHER), (ROW, OTHER)], [ROW, OTHER], []),
        ([(ROW, OTHER), (ROW,)], [ROW, OTHER], []),
    ],
)
def test_what_follows_from_deaths(
    deaths: list[tuple[CrashNote, ...]], suspects: list[CrashNote], crashed: list[int]
) -> None:
    isolation = NO_DEATHS.after(deaths)
    assert (isolation.suspects, [*isolation.crashed]) == (suspects, crashed)
    assert bool(isolation) == bool(deaths)


@pytest.mark.parametrize(
    ("rows", "systemic"),
    [
        *(((5, 6, 8, 7), True), ((5, 6, 8, 9), False), ((1, 5, 6, 7, 8), True), ((5, 6, 7), False)),
        (tuple(pack_id(file, 0) for file in (7, 9, 8, 10)), True),
        (tuple(pack_id(file, row) for file in (7, 8) for row in (0, 1)), True),
        (tuple(pack_id(file, 0) for file in (7, 8, 9, 11)), False),
        (tuple(pack_id(file, 1) for file in (7, 8, 9, 10)), False),
    ],
    ids=str,
)
def test_crashes_of_adjacent_rows_are_not_the_fault_of_the_rows(
    rows: tuple[int, ...], systemic: bool
) -> None:
    isolation = NO_DEATHS.after((note(row),) for row in (*rows, *rows))
    assert isolation.is_systemic == systemic


def alone(row: int, *nodes: str) -> list[Death]:
    """Return a death at this row on each of these nodes."""
    return [(note(row, node=node),) for node in nodes]


APART = [pack_id(file, 7) for file in (0, 5, 9)]
SIX = [death for row in APART for death in alone(row, "a", "a")]
"""Deaths of a node with a fault, at rows of several files."""


@pytest.mark.parametrize(
    ("deaths", "unused", "nodes", "crashed", "suspected"),
    [
        (SIX, "", "ab", [], {"a"}),
        (SIX, "a", "ab", [], {"a"}),
        (SIX, "", "a", APART, {"a"}),
        (SIX, "b", "ab", APART, {"a"}),
        (SIX, None, "ab", APART, {"a"}),
        ([*SIX, *alone(APART[0], "b")], "a", "ab", APART[:1], {"a"}),
        ([*SIX[:2], *alone(APART[0], "b")], "a", "ab", APART[:1], set()),
        (alone(5, "a", "b"), "", "ab", [5], set()),
        ([*alone(5, "a", "a"), *alone(9, "b", "b")], "", "ab", [5, 9], {"a", "b"}),
        ([*alone(5, "a", "a"), *alone(9, "b", "b")], "", "abc", [], {"a", "b"}),
        ([*alone(5, "a", "a"), *alone(9, "b", "b")], "a", "ab", [9], {"a", "b"}),
        (alone(5, "", ""), "", "", [5], set()),
    ],
    ids=[
        *("a node", "an unused node", "a single node", "no other node is used"),
        *("no other pass", "a row and a node", "a row", "a death on each node"),
        *("all nodes", "a third node", "a row at the last node", "no Ray"),
    ],
)
def test_rows_are_not_to_blame_for_a_node_that_kills_processes(
    deaths: list[Death],
    unused: str | None,
    nodes: str,
    crashed: list[int],
    suspected: set[str],
) -> None:
    unused_nodes = None if unused is None else frozenset(unused)
    isolation = Isolation(tuple(deaths), unused_nodes, frozenset(nodes))
    assert [*isolation.crashed] == crashed
    assert isolation.suspected_nodes == suspected


def computed_parts(isolation: Isolation, read: list[RowBatch]) -> Iterator[np.ndarray]:
    """Yield the ids of the rows that a process computes together."""
    for batch in read:
        kept = np.setdiff1d(np.arange(len(batch.ids)), [*isolation.crashed_rows(batch)])
        suspects, others = isolation.divided(batch.derived(batch.table.take(kept), kept, []))
        yield from (part.ids for part in [*suspects, others] if len(part.ids))


@settings(max_examples=examples(200), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    locations=st.sets(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3),
)
def test_exactly_the_rows_that_kill_their_process_are_found(
    sizes: list[int], locations: set[float]
) -> None:
    read = [good(file, 0, range(size)) for file, size in enumerate(sizes)]
    ids = merged(read).ids
    bad = {int(ids[int(location * len(ids))]) for location in locations}
    isolation = NO_DEATHS
    for _ in range(5 * len(bad)):
        died = next((p for p in computed_parts(isolation, read) if bad & set(p.tolist())), None)
        if died is None:
            break
        isolation = isolation.after([(CrashNote.of("own", died),)])
    assert {*isolation.crashed} == bad


@settings(max_examples=examples(200), deadline=None)
@given(rows=st.integers(1, 200), noted_rows=st.sets(st.integers(0, 250), min_size=1))
def test_suspects_and_other_rows_are_all_rows(rows: int, noted_rows: set[int]) -> None:
    batch = merged([good(0, 0, range(rows)), end(0, rows)])
    suspect = CrashNote.of("own", np.array([*noted_rows]))
    parts, others = Isolation(((suspect,),)).divided(batch)
    result = merged([others, *parts])
    assert sorted(result.input_ids.tolist()) == sorted(result.ids.tolist()) == list(range(rows))
    assert sorted(result.table.column("n").to_pylist()) == list(range(rows))
    assert result.ends == ((0, rows),)
    apart = [row for part in parts for row in part.ids.tolist()]
    assert apart == sorted(row for row in noted_rows if row < rows)
    assert all(len(part.ids) <= -(-suspect.rows // PARTS) for part in parts)


def test_rows_of_an_input_row_stay_in_one_part() -> None:
    read = good(0, 0, range(3))
    exploded = read.derived(read.table.take([0, 1, 1, 2]), np.array([0, 1, 1, 2]), [])
    parts, others = NO_DEATHS.after([(note(0, 1),)]).divided(exploded)
    assert [part.ids.tolist() for part in parts] == [[0], [1, 1]]
    assert others.ids.tolist() == [2]


def test_note_names_the_rows_whatever_their_order() -> None:
    note = CrashNote.of("own", np.array([9, 3, 3, 4, pack_id(1, 2)]))
    after = pack_id(1, 2) + 1
    assert note.ranges == ((3, 5), (9, 10), (after - 1, after))
    assert (note.first, note.last, note.rows) == (3, after - 1, 4)
    ids = np.array([2, 3, 4, 5, 9, after])
    assert ids[note.contains(ids)].tolist() == [3, 4, 9]
    assert CrashNote.of("own", np.array([4, 4])).rows == 1
    assert CrashNote.parse(note.serialized()) == note


@pytest.mark.parametrize("takes_blocks", [False, True], ids=["reads", "takes blocks"])
def test_crashed_rows_become_failed_rows(tmp_path: Path, *, takes_blocks: bool) -> None:
    handling = ErrorHandling(tolerant=True, input=Location(str(tmp_path)), values=True)
    first = note(1, step="first")
    isolation = NO_DEATHS.after([(OTHER,), (first,), (first,), (ROW,), (ROW,)])
    steps = Segment(pickle.dumps(([], handling)), isolation=isolation)
    read = merged([good(0, 0, range(8)), end(0, 8)])
    run = steps.of_block(read, Event()) if takes_blocks else steps.of_read(iter([read]), Event())
    results = merged(run)
    crashed = {1, 5}
    assert outcomes(results) == {row: "failed" if row in crashed else "good" for row in range(8)}
    assert errors_of(results) == dict.fromkeys(crashed, f"WorkerCrashed: {CRASHED}")
    records = {row["id"]: row for row in results.errors.to_pylist()}
    assert (records[1]["step"], records[1]["values"]) == ("first", '{"n": 1}')
    assert records[5]["step"] == "own"
    assert results.ends == ((0, 8),)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the notes, which are in a dict instead of Ray. The node `lost` is lost."""
    notes: dict[str, str] = {}
    crash_notes._known_deaths.cache_clear()
    monkeypatch.setattr(crash_notes, "put_note", notes.__setitem__)
    monkeypatch.setattr(crash_notes, "remove_note", lambda name: notes.pop(name, None))
    monkeypatch.setattr(crash_notes, "lost_nodes", lambda: {"lost"})
    monkeypatch.setattr(crash_notes, "node_of_this_process", lambda: "node")
    monkeypatch.setattr(crash_notes, "owner_of_this_process", lambda: "task")
    monkeypatch.setattr(
        crash_notes,
        "notes_below",
        lambda prefix: {name: text for name, text in notes.items() if name.startswith(prefix)},
    )
    return notes


def test_note_exists_while_its_rows_are_computed(notes: dict[str, str]) -> None:
    ids = np.array([5])
    with noted_rows("own", ids):
        assert notes == {}
    with storing_notes("run"), noted_rows("own", ids):
        (text,) = notes.values()
        assert CrashNote.parse(text) == note(5, node="node")
    assert notes == {}


def test_note_names_only_the_rows_of_the_current_batch_of_a_step(notes: dict[str, str]) -> None:
    result = []

    def compute(batch: pa.Table) -> pa.Table:
        result.extend(CrashNote.parse(text) for text in notes.values())
        return batch

    step = Step.model_validate({"name": "own", "python": {"callable": "own:code"}, "batchSize": 4})
    run = StepRunner(step, compute, ErrorHandling(tolerant=True, input=Location("/nowhere")))
    with storing_notes("run"):
        list(run(good(0, 0, range(8))))
    assert result == [note(0, 3, node="node"), note(4, 7, node="node")]


@pytest.mark.parametrize(
    ("error", "remains"), [(ValueError, False), (SystemExit, True)], ids=["error", "exit"]
)
def test_note_remains_if_the_process_ends(
    notes: dict[str, str], error: type[BaseException], *, remains: bool
) -> None:
    with pytest.raises(error), storing_notes("run"), noted_rows("own", np.array([5])):
        raise error
    assert bool(notes) == remains


def death(notes: dict[str, str], process: str, *left: CrashNote) -> None:
    """Leave the notes of a process. `process` is the run, the owner and the process."""
    for thread, note in enumerate(left):
        notes[f"batchinference-computes-{process}/{thread}"] = note.serialized()


def test_deaths_are_those_of_the_run_and_of_earlier_processes(notes: dict[str, str]) -> None:
    death(notes, "run/task/1", ROW)
    death(notes, "run/task/2", ROW, OTHER)
    death(notes, "run/another/3", MANY)
    death(notes, "other/task/4", MANY)
    death(notes, "run/task/5", note(1, node="lost"))
    assert set(predecessor_deaths("run")) == {(ROW,), (ROW, OTHER)}
    assert set(deaths_of("run")) == {(MANY,), (ROW,), (ROW, OTHER)}


def test_earlier_deaths_are_asked_for_once(
    notes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    death(notes, "run/task/1", ROW)
    answers = iter([ConnectionError(), set(), AssertionError("asked again")])

    def lost_nodes() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(crash_notes, "lost_nodes", lost_nodes)
    assert [predecessor_deaths("run") for _ in range(3)] == [[], [(ROW,)], [(ROW,)]]


def test_own_notes_of_this_process_are_no_death(notes: dict[str, str]) -> None:
    with storing_notes("run"), noted_rows("own", np.array([5])):
        assert notes
        assert predecessor_deaths("run") == []


def test_no_death_is_known_if_the_head_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> set[str]:
        raise ConnectionError

    monkeypatch.setattr(crash_notes, "lost_nodes", fail)
    assert deaths_of("run") == []


def test_process_that_replaces_another_one_isolates_its_rows(
    notes: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(segment, "replaces_dead_process", lambda: True)
    handling = ErrorHandling(tolerant=True, input=Location(str(tmp_path)))
    steps = Segment(pickle.dumps(([], handling)), "run")
    assert not steps.current_isolation()
    for process in "12":
        death(notes, f"run/next/{process}", ROW)
    monkeypatch.setattr(crash_notes, "owner_of_this_process", lambda: "next")
    results = merged(steps.of_block(good(0, 0, range(8)), Event()))
    assert errors_of(results) == {5: f"WorkerCrashed: {CRASHED}"}
    for row in range(6, 9):
        for process in "12":
            death(notes, f"run/last/{row}{process}", note(row))
    death(notes, "run/last/51", ROW)
    death(notes, "run/last/52", ROW)
    monkeypatch.setattr(crash_notes, "owner_of_this_process", lambda: "last")
    with pytest.raises(JobFailure, match="adjacent rows"):
        next(steps.of_block(good(0, 0, range(8)), Event()))


@pytest.mark.parametrize(
    ("living", "ids", "errors"),
    [
        ({"node", "other"}, [0, 1, 2, 3, 4, 6, 7], {}),
        ({"node"}, [0, 1, 2, 3, 4, 6, 7], {5: f"WorkerCrashed: {CRASHED}"}),
    ],
    ids=["another node", "a single node"],
)
def test_other_nodes_compute_rows_at_which_a_node_kills_its_processes(
    notes: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    living: set[str],
    ids: list[int],
    errors: dict[int, str],
) -> None:
    monkeypatch.setattr(segment, "replaces_dead_process", lambda: True)
    monkeypatch.setattr(segment, "node_of_this_process", lambda: "node")
    monkeypatch.setattr(crash_notes, "nodes_like_this", lambda label: living)
    handling = ErrorHandling(tolerant=True, input=Location("/none"))
    first = Isolation(unused=frozenset())
    steps = Segment(pickle.dumps(([], handling)), "run", isolation=first)
    for process in "12":
        death(notes, f"run/task/{process}", note(5, node="node"))
    results = merged(steps.of_block(merged([good(0, 0, range(8)), end(0, 8)]), Event()))
    assert (sorted(results.ids.tolist()), errors_of(results)) == (ids, errors)
    assert sorted({*results.input_ids.tolist()}) == sorted([*ids, *errors])
    assert results.ends == ((0, 8),)
    monkeypatch.setattr(segment, "node_of_this_process", lambda: "other")
    next_pass = replace(first.after(deaths_of("run")), unused=frozenset({"node"}))
    steps = Segment(pickle.dumps(([], handling)), "next", isolation=next_pass)
    if not errors:
        results = merged(steps.of_block(good(0, 0, range(8)), Event()))
        assert sorted(results.ids.tolist()) == [*range(8)]


@pytest.mark.parametrize(
    ("repeatable", "on_cluster", "faulty", "expected"),
    [
        (True, True, ("a", "b"), {"a", "b"}),
        (True, True, ("b",), None),
        (True, False, ("a", "b"), None),
        (False, True, ("a", "b"), None),
    ],
    ids=["other nodes", "no other node", "a single machine", "a single pass"],
)
def test_other_nodes_compute_rows_only_if_another_pass_can_use_them(
    *, repeatable: bool, on_cluster: bool, faulty: tuple[str, ...], expected: set[str] | None
) -> None:
    prepared: Any = SimpleNamespace(
        input=SimpleNamespace(repeatable=repeatable), isolation=Isolation((*alone(5, "a", "a"),))
    )
    spec = spec_of(steps=[])
    plan = plan_for_cluster(spec) if on_cluster else plan_for_machine(spec)
    executor = Executor(spec, replace(plan, faulty_nodes=faulty), prepared)
    assert executor._isolation.unused == expected


def test_nodes_at_which_processes_die_are_left_out_of_the_next_pass_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death on another node shows that the row is to blame."""
    deaths = [[*alone(1, "a", "a"), *alone(9, "c", "c")], alone(1, "b"), []]
    used: list[tuple[str, ...]] = []
    real = InProcessExecution.run

    def run(self: InProcessExecution) -> None:
        used.append(self._plan.faulty_nodes)
        if len(used) == len(deaths):
            real(self)

    def without(plan: Plan, suspected: frozenset[str]) -> Plan:
        return replace(plan, faulty_nodes=tuple(sorted(suspected)))

    monkeypatch.setattr(InProcessExecution, "run", run)
    monkeypatch.setattr(job_module, "take_deaths", lambda run: deaths[len(used) - 1])
    monkeypatch.setattr(job_module, "without_suspected_nodes", without)
    source = write_lines(tmp_path / "in", {"a.txt": ["a", "b", "c"]})
    report = run_without_ray(job_document("job", source, tmp_path / "out", errors={"maxRows": 3}))
    assert report.state == JobState.SUCCEEDED
    assert used == [(), ("a", "c"), ("c",)]


def test_note_of_reading_is_kept_but_isolates_no_rows(
    notes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReadNotes("run")(7):
        assert not notes
    monkeypatch.setattr(crash_notes, "replaces_dead_process", lambda: True)
    with suppress(SystemExit), ReadNotes("run")(7):
        raise SystemExit
    monkeypatch.setattr(crash_notes, "_process", lambda: "another")
    assert deaths_of("run") == predecessor_deaths("run") == take_deaths("run") == []
    ((note,),) = deaths_of("run", reading=True)
    assert (note.step, note.first) == ("read", 7)


def test_stop_begins_no_other_part(tmp_path: Path) -> None:
    handling = ErrorHandling(tolerant=True, input=Location(str(tmp_path)))
    stopping = Event()
    stopping.set()
    steps = Segment(pickle.dumps(([], handling)), isolation=NO_DEATHS.after([(ROW,)]))
    assert list(steps.of_block(good(0, 0, range(8)), stopping)) == []


def test_deaths_are_taken_once(notes: dict[str, str]) -> None:
    death(notes, "run/task/1", ROW)
    death(notes, "other/task/2", MANY)
    assert take_deaths("run") == [(ROW,)]
    assert take_deaths("run") == []
    assert deaths_of("other") == [(MANY,)]

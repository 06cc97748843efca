"""Builds the report of a run: its state, progress, counts, and the notes of its tasks. Also merges
the reports of several outputs of a run."""

import json
import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic.alias_generators import to_camel

from batchinference.packages import EXTRAS
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.errors import DeviceFailed, JobFailure
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.report.stored_report import load_report, now
from batchinference.pipeline.row_batch import READ_STEP, WRITE_STEP
from batchinference.pipeline.step_time import COUNTS
from batchinference.spec.progress import (
    Counts,
    Progress,
    ProgressHistory,
    ReplacedFiles,
    average_rate,
)
from batchinference.spec.report import (
    MAX_WARNINGS,
    Capacity,
    JobState,
    MemoryUse,
    Report,
    RunCost,
    StepTimes,
)
from batchinference.spec.status import MAX_FAULTY_NODES, Choice
from batchinference.spec.warnings import WarningCount, sum_warnings
from batchinference.text import counted
from batchinference.version import __version__

NO_ROWS = "the input has no rows"
"""The message of a job that has succeeded without rows."""
MAX_NOTES = 20


@dataclass(frozen=True)
class RunNotes:
    """A summary of the notes in the manifests of a run."""

    batch_sizes: dict[str, int]
    """For each step, the smallest batch size of its processes."""
    peak_bytes: int
    """The highest memory use of a single process."""
    notes: list[str]
    """Notes as texts for people."""
    steps: dict[str, StepTimes] = field(default_factory=dict)
    """The measured times by step."""
    retries: int = 0
    """How often tasks ran again because their process had died."""
    replicas_per_device: dict[str, int] = field(default_factory=dict)


@dataclass
class ReportBuilder:
    """Collects what is known about a run, and builds its reports."""

    name: str
    layout: Layout
    """The layout of the current output."""
    may_be_empty: bool = False
    """Whether an input without rows is expected."""
    choice: Choice | None = field(default_factory=lambda: Choice.of(os.environ), init=False)
    cost: RunCost | None = field(default=None, init=False)
    """The cost of the run, for all its outputs."""
    output_bytes: int | None = field(default=None, init=False)
    findings: str = field(default="", init=False)
    """A text about the first rows (see `first_rows`)."""
    about_table: str = field(default="", init=False)
    """A text about the table that the job writes."""
    warnings: list[WarningCount] = field(default_factory=list, init=False)
    _faulty_nodes: set[str] = field(default_factory=set, init=False)
    """The Kubernetes nodes on which a device failed in this run."""
    _fields: dict[str, Any] = field(default_factory=dict, init=False)
    """Fields of the report that do not depend on the state, for the current output."""
    _total: RowCount | None = field(default=None, init=False)
    _before: int = field(default=0, init=False)
    """The number of input rows that earlier passes have finished."""
    _counts: Counts | None = field(default=None, init=False)
    """The highest counts so far; None before `begin_rows`."""
    _progress: Progress | None = field(default=None, init=False)
    _state: JobState = field(default=JobState.PREPARING, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _running_before: float = field(default=0.0, init=False)
    _started_at: str = field(default_factory=now, init=False)
    _history: ProgressHistory = field(
        default_factory=lambda: ProgressHistory(time.monotonic()), init=False
    )

    def begin_output(self, layout: Layout) -> None:
        """Report on this output from now on, instead of the previous one."""
        self.enter(JobState.PREPARING)
        self.layout = layout
        self.output_bytes = self._counts = self._progress = None
        self.findings = self.about_table = ""
        self.warnings, self._fields = [], {}
        self._history = ProgressHistory(self._history.start)

    def begin_rows(
        self, total: RowCount | None, before: Counts, replaced: ReplacedFiles | None = None
    ) -> None:
        """Report the progress of rows from now on. `before` are the counts of earlier passes.
        `replaced` is the number of input files whose rows are replaced."""
        self._fields["replacedFiles"] = replaced
        self._total, self._before, self._counts = total, before.read, before
        self._running_before = self._seconds.get(JobState.RUNNING, 0.0)
        self.enter(JobState.RUNNING)
        self.read(before)

    def begin_pass(self, number: int) -> None:
        """Report on the pass with this number from now on."""
        self._fields |= {"passNumber": number, "stage": None, "capacity": None}

    def add_notes(self, notes: RunNotes, spilled_bytes: int | None) -> None:
        """Report the notes of all ended passes, and the bytes that Ray has spilled to disk."""
        self._fields |= {
            "batchSizes": notes.batch_sizes,
            "replicasPerDevice": notes.replicas_per_device,
            "steps": notes.steps,
            "retries": notes.retries,
            "notes": notes.notes,
            "memory": MemoryUse(peakWorkerBytes=notes.peak_bytes, spilledBytes=spilled_bytes),
        }

    def add_faults(self, failures: Iterable[JobFailure]) -> None:
        """Report the node of each failure that is DeviceFailed."""
        faults = (failure for failure in failures if isinstance(failure, DeviceFailed))
        self._faulty_nodes |= {fault.machine for fault in faults if fault.machine}

    def add_capacity(self, capacity: Capacity | None) -> None:
        """Report the highest capacity of Ray during the pass. `capacity` is the current one."""
        if capacity is not None:
            self._fields["capacity"] = capacity.highest(self._fields.get("capacity"))

    def enter(self, state: JobState) -> None:
        """Enter a state, and record how long the run was in the previous state."""
        clock = time.monotonic()
        if not self._state.ended:
            seconds = self._seconds.get(self._state, 0.0) + clock - self._since
            self._seconds[self._state] = round(seconds, 3)
        self._state, self._since = state, clock

    def read(self, counts: Counts, stage: str | None = None) -> None:
        """Update the progress, which never decreases. `counts` are the counts of all committed
        rows. `stage` is the last active stage."""
        self._fields["stage"] = stage
        if self._counts is None:
            return
        if counts.read > self._counts.read:
            self._counts = counts
        rows, total = self._counts.read, self._total
        self._history.add(rows, time.monotonic())
        self._progress = Progress.of(
            rows,
            total.rows if total else None,
            estimated=total is not None and total.estimated,
            rate=self._history.rate,
        )

    def finish(self, counts: Counts) -> None:
        """Set the final counts and the average speed, which includes the time to load models."""
        seconds = self._seconds[JobState.RUNNING] - self._running_before
        rate = average_rate(counts.read - self._before, seconds)
        self._counts, self._progress = counts, Progress.of(counts.read, counts.read, rate=rate)
        self._history.add(counts.read, time.monotonic())

    def build(self, failure: JobFailure | None = None) -> Report:
        """Return the report of the run in its current state, with its `failure`, if any."""
        counts, fields = self._counts, dict(self._fields)
        if texts := [text for text in (self.findings, self.about_table) if text]:
            fields["notes"] = [*texts, *fields.get("notes", [])]
        if self._state is not JobState.RUNNING:
            fields["stage"] = None
        return Report(
            **fields,
            name=self.name,
            state=self._state,
            reason=failure.reason if failure else None,
            message=failure.message if failure else self._remark(),
            progress=self._progress,
            counts=counts,
            output=self.layout.output.uri,
            outputBytes=self.output_bytes,
            errors=self.layout.errors.uri if counts and counts.failed else None,
            startedAt=self._started_at,
            updatedAt=now(),
            seconds=dict(self._seconds),
            choice=self.choice,
            cost=self.cost,
            warnings=self.warnings[:MAX_WARNINGS],
            faultyNodes=sorted(self._faulty_nodes)[:MAX_FAULTY_NODES],
            rowsOverTime=self._history.over_time if counts else None,
            versions=dict(versions()),
            version=__version__,
        )

    def _remark(self) -> str | None:
        """Return a remark about a job that has succeeded with no input rows or only failed rows."""
        counts = self._counts
        if self._state is not JobState.SUCCEEDED or counts is None:
            return None
        if not counts.read:
            return None if self.may_be_empty else NO_ROWS
        if counts.failed and not counts.written:
            return f"no row was written: {counted(counts.failed, 'row')} failed"
        return None

    def of_complete_output(self, layout: Layout, remark: str) -> Report:
        """Return the stored report of an output that was already complete. It gets the name and the
        times of this run. Raises BadOutput if the rows of the output are unknown."""
        message = "; ".join(filter(None, ("the output was complete already", remark)))
        return self._of_idle_run(
            load_report(layout), state=JobState.SUCCEEDED, reason=None, message=message
        )

    def of_nothing_new(self, parts: Sequence[Layout], remark: str) -> Report:
        """Return the report of a run that has added no rows. It has the counts of the existing
        outputs (`parts`), but no speeds or costs. Raises BadOutput if the rows of an output are
        unknown."""
        self.enter(JobState.SUCCEEDED)
        reports = [load_report(part) for part in parts]
        counts = Counts.sum(report.counts for report in reports if report.counts)
        fields: dict[str, object] = {
            "message": f"0 new rows: {remark}; the output has {counted(counts.written, 'row')}",
            "counts": counts,
            "progress": Progress.of(counts.read, counts.read),
            "output_bytes": sum(report.output_bytes or 0 for report in reports) or None,
            "errors": next((report.errors for report in reports if report.errors), None),
            "warnings": _total_warnings(reports),
        }
        return self._of_idle_run(self.build(), **fields)

    def _of_idle_run(self, report: Report, **fields: object) -> Report:
        times: dict[str, object] = {"started_at": self._started_at, "updated_at": now()}
        return report.model_copy(update={"name": self.name, "seconds": {}, **times, **fields})


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages in EXTRAS."""
    installed = {"python": platform.python_version()}
    for name in EXTRAS:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def collect_notes(notes: Iterable[tuple[str, str]]) -> RunNotes:
    """Return a summary of `notes`, which are pairs of a step and a note as JSON."""
    sizes: dict[str, list[int]] = defaultdict(list)
    times: dict[str, list[dict[str, float]]] = defaultdict(list)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    texts: dict[str, None] = {}
    shared: dict[str, int] = {}
    peak, retries = 0, dict[float, int]()
    for step, text in notes:
        note = json.loads(text)
        peak = max(peak, note.get("peak_bytes", 0))
        if {"retries", "task"} <= note.keys():
            retries[note["task"]] = max(retries.get(note["task"], 0), int(note["retries"]))
        if reuse := {name: note[name] for name in COUNTS if name in note}:
            counts[step].update(reuse)
        if {"rows", "seconds"} <= note.keys():
            times[step].append(note)
        if "batch_size" in note:
            sizes[step].append(note["batch_size"])
            texts[_note_text(step, note)] = None
        if "replicas_per_device" in note:
            shared[step] = note["replicas_per_device"]
    smallest = {step: min(values) for step, values in sorted(sizes.items())}
    names = {**times, **counts}
    ordered = sorted(names, key=lambda step: (step == WRITE_STEP) - (step == READ_STEP))
    steps = {step: _times(times[step], counts[step]) for step in ordered}
    errors = {step: reuse["cache_errors"] for step, reuse in counts.items()}
    texts |= {_cache_text(step, number): None for step, number in errors.items() if number}
    repeated = sum(retries.values())
    return RunNotes(smallest, peak, list(texts)[:MAX_NOTES], steps, repeated, shared)


def _cache_text(step: str, errors: int) -> str:
    problem = "files of the cache are damaged, or it cannot be read or written"
    return f"step '{step}': {problem} ({counted(errors, 'time')})"


def _times(notes: list[dict[str, float]], counts: Counter[str]) -> StepTimes:
    rows, seconds = (sum(note[name] for note in notes) for name in ("rows", "seconds"))
    optional = ("compute_seconds", "wait_seconds", "blocked_seconds", "load_seconds")
    measured = {name: [note[name] for note in notes if name in note] for name in optional}
    sums = {to_camel(name): round(sum(values), 3) for name, values in measured.items() if values}
    numbers = {name: counts[name] or None for name in COUNTS if name != "cache_errors"}
    speed = round(rows / max(seconds, 1e-9), 1)
    times = {"rows": int(rows), "seconds": round(seconds, 3), "rowsPerSecond": speed}
    return StepTimes.model_validate(times | sums | numbers)


def _note_text(step: str, note: dict[str, float]) -> str:
    size = f"{note['batch_size']:g} rows a batch"
    if "out_of_memory_at" in note:
        return f"step '{step}': memory ran out with {note['out_of_memory_at']:g} rows, now {size}"
    if "rows_per_second" not in note:
        return f"step '{step}': {size}"
    return f"step '{step}': {size} was the fastest, {note['rows_per_second']:g} rows/s"


def merge_reports(before: Sequence[Report], report: Report) -> Report:
    """Return the last `report` of a run, merged with its earlier reports. Counts, retries,
    progress, sizes and warnings are added up. Notes are joined. `errors` is the first one."""
    if not before:
        return report
    reports = [*before, report]
    progress = [item.progress for item in reports if item.progress]
    return report.model_copy(
        update={
            "counts": Counts.sum(item.counts for item in reports if item.counts),
            "progress": Progress.sum(progress) if progress else None,
            "errors": next((item.errors for item in reports if item.errors), None),
            "retries": sum(item.retries for item in reports),
            "replaced_files": ReplacedFiles.sum(item.replaced_files for item in reports),
            "output_bytes": sum(item.output_bytes or 0 for item in reports) or None,
            "notes": list(dict.fromkeys(note for item in reports for note in item.notes)),
            "warnings": _total_warnings(reports),
        }
    )


def _total_warnings(reports: Iterable[Report]) -> list[WarningCount]:
    return sum_warnings(item for report in reports for item in report.warnings)[:MAX_WARNINGS]

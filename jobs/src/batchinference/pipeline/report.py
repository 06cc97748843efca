"""The report of a job: its state, progress, counts, and the notes of its tasks."""

from __future__ import annotations

import json
import math
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import RowCounts, warnings_of
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.warning_counts import counts_of_warnings
from batchinference.pipeline.errors import BadOutput, JobFailure
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.snapshot import paths_of, read_snapshot
from batchinference.pipeline.row_batch import READ_STEP, WRITE_STEP
from batchinference.pipeline.storage.stored_texts import LargeReport, read_report
from batchinference.spec.report import (
    MAX_WARNINGS,
    Capacity,
    JobState,
    Memory,
    Report,
    RowsOverTime,
    RunCost,
    StepTimes,
)
from batchinference.spec.status import Counts, Progress
from batchinference.spec.warnings import WarningCount
from batchinference.text import counted
from batchinference.version import __version__

MAX_NOTES = 20
MAX_POINTS = 60
"""Maximum number of times in `Report.rows_over_time`."""
PACKAGES = ("ray", "pyarrow", "numpy", "pillow", "torch", "transformers", "vllm", "onnxruntime")
"""The packages whose versions are in a report, if they are installed."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


NO_ROWS = "the input has no rows"
"""The message of a job that has succeeded without rows."""


@dataclass
class ReportBuilder:
    """The state of a run, as its reports show it. `layout` is the layout of the current output,
    `notes` summarizes the last attempt that has ended, and `cost` covers the whole run. `warnings`
    are those about the files of the input and the committed rows. `may_be_empty` is whether the
    input may have no rows."""

    name: str
    layout: Layout
    may_be_empty: bool = False
    notes: RunNotes | None = field(default=None, init=False)
    cost: RunCost | None = field(default=None, init=False)
    output_bytes: int | None = field(default=None, init=False)
    warnings: list[WarningCount] = field(default_factory=list, init=False)
    _spilled_bytes: int | None = field(default=None, init=False)
    _capacity: Capacity | None = field(default=None, init=False)
    _attempt: int | None = field(default=None, init=False)
    _stage: str | None = field(default=None, init=False)
    _tracker: ProgressTracker | None = field(default=None, init=False)
    _state: JobState = field(default=JobState.PREPARING, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _running_before: float = field(default=0.0, init=False)
    _started_at: str = field(default_factory=now, init=False)
    _history: History = field(default_factory=lambda: History(time.monotonic()), init=False)

    def begin_output(self, layout: Layout) -> None:
        """Report on this output from now on, and forget the previous one."""
        self.enter(JobState.PREPARING)
        self.layout = layout
        self._attempt = self.notes = self._tracker = self._capacity = self.output_bytes = None
        self.warnings = []
        self._history = History(self._history.start)

    def begin_rows(self, tracker: ProgressTracker) -> None:
        """Report the progress of rows from now on."""
        self._tracker = tracker
        self._running_before = self._seconds.get(JobState.RUNNING, 0.0)
        self.enter(JobState.RUNNING)

    def begin_attempt(self, number: int) -> None:
        self._attempt, self._stage, self._capacity = number, None, None

    def add_notes(self, notes: RunNotes, spilled_bytes: int | None) -> None:
        """Report the notes of all attempts that have ended, and the bytes that Ray has spilled."""
        self.notes, self._spilled_bytes = notes, spilled_bytes

    def add_capacity(self, capacity: Capacity | None) -> None:
        """Report the most that Ray had during the attempt. It has `capacity` now."""
        if capacity is not None:
            self._capacity = capacity.highest(self._capacity)

    def enter(self, state: JobState) -> None:
        """Enter a state, and stop the clock of the previous one."""
        clock = time.monotonic()
        if not self._state.ended:
            seconds = self._seconds.get(self._state, 0.0) + clock - self._since
            self._seconds[self._state] = round(seconds, 3)
        self._state, self._since = state, clock

    def read(self, counts: RowCounts, stage: str | None = None) -> None:
        """Update the progress: `counts` rows are committed, and `stage` is the last stage that has
        work."""
        self._stage = stage
        if self._tracker is not None:
            self._tracker.update(counts, time.monotonic())
            self._history.add(self._tracker.counts.read, time.monotonic())

    def finish(self, counts: RowCounts) -> None:
        """Set the final progress: the output has `counts` rows."""
        if self._tracker is not None:
            seconds = self._seconds[JobState.RUNNING] - self._running_before
            self._tracker.finish(counts, seconds)
            self._history.add(counts.read, time.monotonic())

    def build(self, failure: JobFailure | None = None) -> Report:
        """Return the report of the run as it is now. `failure` is the reason for a failed run."""
        counts = self._tracker.counts if self._tracker else None
        return Report(
            name=self.name,
            state=self._state,
            reason=failure.reason if failure else None,
            message=failure.message if failure else self._remark(),
            progress=self._tracker.progress if self._tracker else None,
            counts=reported_counts(counts) if counts else None,
            output=self.layout.output.uri,
            outputBytes=self.output_bytes,
            errors=self.layout.errors.uri if counts and counts.failed else None,
            stage=self._stage if self._state == JobState.RUNNING else None,
            attempt=self._attempt,
            startedAt=self._started_at,
            updatedAt=now(),
            seconds=dict(self._seconds),
            batchSizes=self.notes.batch_sizes if self.notes else {},
            steps=self.notes.steps if self.notes else {},
            retries=self.notes.retries if self.notes else 0,
            memory=Memory(peakWorkerBytes=self.notes.peak_bytes, spilledBytes=self._spilled_bytes)
            if self.notes
            else None,
            capacity=self._capacity,
            cost=self.cost,
            notes=self.notes.notes if self.notes else [],
            warnings=self.warnings[:MAX_WARNINGS],
            rowsOverTime=self._history.points() if self._tracker else None,
            versions=dict(versions()),
            version=__version__,
        )

    def _remark(self) -> str | None:
        """Return what is unusual about the rows of a job that has succeeded."""
        counts = self._tracker.counts if self._tracker else None
        if self._state is not JobState.SUCCEEDED or counts is None:
            return None
        if not counts.read:
            return None if self.may_be_empty else NO_ROWS
        if counts.failed and not counts.written:
            return f"no row was written: {counted(counts.failed, 'row')} failed"
        return None

    def of_complete_output(self, layout: Layout, remark: str) -> Report:
        """Return the stored report of an output that was complete already. Its name and times
        come from this run. Raises BadOutput if the rows of the output are unknown."""
        message = "; ".join(filter(None, ("the output was complete already", remark)))
        return self._of_idle_run(
            load_report(layout), state=JobState.SUCCEEDED, reason=None, message=message
        )

    def of_nothing_new(self, parts: Sequence[Layout], remark: str) -> Report:
        """Return the report of a run that has added no rows to an output of these parts: their
        counts, without the figures of the runs that have computed them. Raises BadOutput if the
        rows of the output are unknown."""
        self.enter(JobState.SUCCEEDED)
        found = [load_report(part) for part in parts]
        counts = _sum(report.counts for report in found)
        fields: dict[str, object] = {
            "message": f"0 new rows: {remark}; the output has {counted(counts.written, 'row')}",
            "counts": counts,
            "progress": Progress(rows=counts.read, total=counts.read, percent=100, eta="0s"),
            "output_bytes": sum(report.output_bytes or 0 for report in found) or None,
            "errors": next((report.errors for report in found if report.errors), None),
            "warnings": sum_warnings(warning for each in found for warning in each.warnings),
        }
        return self._of_idle_run(self.build(), **fields)

    def of_ignored_output(self) -> Report:
        """Return the report of a run that has written nothing, because the output is in use."""
        self.enter(JobState.SUCCEEDED)
        report = self.build()
        message = (
            f"'{report.output}' holds something already, and write.mode is ignore: nothing was done"
        )
        return self._of_idle_run(report, message=message)

    def _of_idle_run(self, report: Report, **fields: object) -> Report:
        times: dict[str, object] = {"started_at": self._started_at, "updated_at": now()}
        return report.model_copy(update={"name": self.name, "seconds": {}, **times, **fields})


@dataclass
class History:
    """The progress of a run, at no more than MAX_POINTS times. `start` is its start time.

    If there are too many points, every second point is dropped, and later points are twice as far
    apart."""

    start: float
    _points: list[tuple[float, int]] = field(default_factory=list, init=False)
    _last: tuple[float, int] | None = field(default=None, init=False)
    _gap: float = field(default=0.0, init=False)

    def add(self, rows: int, now: float) -> None:
        """Record that `rows` rows are finished at the time `now`."""
        self._last = (now - self.start, rows)
        if self._points and self._last[0] - self._points[-1][0] < self._gap:
            return
        self._points.append(self._last)
        if len(self._points) == MAX_POINTS:
            del self._points[1::2]
            self._gap = max(2 * self._gap, 2 * self._last[0] / MAX_POINTS)

    def points(self) -> RowsOverTime | None:
        """Return the recorded points, with the last one; None if there are none."""
        if self._last is None:
            return None
        points = [*self._points, *([self._last] if self._last != self._points[-1] else [])]
        seconds, rows = zip(*points, strict=True)
        return RowsOverTime(seconds=[round(second, 1) for second in seconds], rows=list(rows))


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the PACKAGES that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def load_report(done: Layout) -> Report:
    """Return the report that the job has stored. If it is missing, damaged or belongs to another
    output, create one from the snapshot of this output. Raises BadOutput if that cannot be read
    either."""
    try:
        report = Report.parse(read_report(done.report))
        if report.output == done.output.uri:
            return report
    except (ValueError, FileNotFoundError, LargeReport):
        pass
    return _from_snapshot(done, Snapshot.read(done.end, done.key))


def finished_report(done: Layout, end: Snapshot) -> Report:
    """Return the final report of an output with the snapshot `end`, if the driver died before it
    wrote one: the stored report with the state, counts and warnings of a succeeded job. Raises
    BadOutput like `load_report`."""
    ended = {"state": JobState.SUCCEEDED, "reason": None, "message": None, "stage": None}
    final = {"counts": _counts(end), "warnings": _warnings(done, end)}
    return load_report(done).model_copy(update={**ended, **final})


def _from_snapshot(done: Layout, end: Snapshot) -> Report:
    return Report(
        name="",
        state=JobState.SUCCEEDED,
        counts=_counts(end),
        output=done.output.uri,
        errors=done.errors.uri if end.counts.failed else None,
        startedAt=now(),
        updatedAt=now(),
        warnings=_warnings(done, end),
        version=__version__,
    )


def _warnings(done: Layout, end: Snapshot) -> list[WarningCount]:
    """Return the warnings of an output with the snapshot `end`. If the list of its input files is
    damaged, those about files are unknown, and the examples have the numbers of files."""
    about_rows = warnings_of(end.entries)
    try:
        ignored = read_snapshot(done.input, done.output.storage, end.input).ignored
    except BadOutput:
        return counts_of_warnings(about_rows, lambda file: f"file {file}")[:MAX_WARNINGS]
    paths = paths_of(done.input)
    counts = counts_of_warnings(about_rows, lambda file: str(paths[file].as_py()))
    return [*ignored.warnings(), *counts][:MAX_WARNINGS]


def _counts(end: Snapshot) -> Counts:
    """Return the counts of a snapshot. If a row became several rows, these may be in several
    manifest entries, none of which can count it. So `read` is counted from the row ids."""
    return reported_counts(replace(end.counts, read=RowSet.of(end.entries).rows))


def reported_counts(counts: RowCounts) -> Counts:
    """Return counts as reports show them."""
    return Counts(**asdict(counts) | {"warned": counts.warned or None})


@dataclass(frozen=True)
class RunNotes:
    batch_sizes: dict[str, int]
    """The smallest batch size that any replica of each step has reached."""
    peak_bytes: int
    """The highest memory use of any single process."""
    notes: list[str]
    """Notes as text for people."""
    steps: dict[str, StepTimes] = field(default_factory=dict)
    """The measured time of each step."""
    retries: int = 0
    """Tasks that ran again because their process died."""


def collect_notes(notes: Iterable[tuple[str, str]]) -> RunNotes:
    """Return a summary of all notes of an attempt: pairs of a step and its note as JSON."""
    sizes: dict[str, list[int]] = defaultdict(list)
    times: dict[str, list[dict[str, float]]] = defaultdict(list)
    texts: dict[str, None] = {}
    peak, retries = 0, dict[float, int]()
    for step, text in notes:
        note = json.loads(text)
        peak = max(peak, note.get("peak_bytes", 0))
        if {"retries", "task"} <= note.keys():
            retries[note["task"]] = max(retries.get(note["task"], 0), int(note["retries"]))
        if {"cpu_seconds", "rows", "seconds"} <= note.keys():
            times[step].append(note)
        if "batch_size" in note:
            sizes[step].append(note["batch_size"])
            texts[_note_text(step, note)] = None
    smallest = {step: min(found) for step, found in sorted(sizes.items())}
    ordered = sorted(times, key=lambda step: (step == WRITE_STEP) - (step == READ_STEP))
    steps = {step: _times(times[step]) for step in ordered}
    return RunNotes(smallest, peak, list(texts)[:MAX_NOTES], steps, sum(retries.values()))


def _times(notes: list[dict[str, float]]) -> StepTimes:
    rows, seconds, cpu = (
        sum(note[name] for note in notes) for name in ("rows", "seconds", "cpu_seconds")
    )
    waits = [note["wait_seconds"] for note in notes if "wait_seconds" in note]
    loads = [note["load_seconds"] for note in notes if "load_seconds" in note]
    return StepTimes(
        rows=int(rows),
        seconds=round(seconds, 3),
        cpuSeconds=round(cpu, 3),
        waitSeconds=round(sum(waits), 3) if waits else None,
        loadSeconds=round(sum(loads), 3) if loads else None,
        rowsPerSecond=round(rows / max(seconds, 1e-9), 1),
    )


def _note_text(step: str, note: dict[str, float]) -> str:
    size = f"{note['batch_size']:g} rows a batch"
    if "out_of_memory_at" in note:
        return f"step '{step}': memory ran out with {note['out_of_memory_at']:g} rows, now {size}"
    if "rows_per_second" not in note:
        return f"step '{step}': {size}"
    return f"step '{step}': {size} was the fastest, {note['rows_per_second']:g} rows/s"


def merge_reports(before: Sequence[Report], report: Report) -> Report:
    """Return the last report with the sums of the counts, retries and progress of all reports.
    Notes are combined, and `errors` is the first one that is set. All other fields come from the
    last report."""
    if not before:
        return report
    reports = [*before, report]
    return report.model_copy(
        update={
            "counts": _sum(item.counts for item in reports),
            "progress": _progress([item.progress for item in reports if item.progress]),
            "errors": next((item.errors for item in reports if item.errors), None),
            "retries": sum(item.retries for item in reports),
            "output_bytes": sum(item.output_bytes or 0 for item in reports) or None,
            "notes": list(dict.fromkeys(note for item in reports for note in item.notes)),
            "warnings": sum_warnings(warning for item in reports for warning in item.warnings),
        }
    )


def _sum(found: Iterable[Counts | None]) -> Counts:
    all_counts = [counts.model_dump() for counts in found if counts]
    sums = {name: sum(item[name] or 0 for item in all_counts) for name in Counts.model_fields}
    return Counts(**sums | {"warned": sums["warned"] or None})


def sum_warnings(warnings: Iterable[WarningCount]) -> list[WarningCount]:
    """Return the sums by name and step, with the first example. Of warnings that count files, which
    each addition lists again, return the one with the most."""
    sums: dict[tuple[str, str | None], WarningCount] = {}
    for warning in warnings:
        key = warning.name, warning.step
        sums[key] = _both(sums[key], warning) if key in sums else warning
    return list(sums.values())[:MAX_WARNINGS]


def _both(first: WarningCount, second: WarningCount) -> WarningCount:
    if first.step is None:
        return max(first, second, key=lambda warning: warning.count)
    amounts = [each.amount for each in (first, second) if each.amount is not None]
    added = {"count": first.count + second.count, "amount": sum(amounts) or None}
    return first.model_copy(update=added)


def _progress(parts: Sequence[Progress]) -> Progress | None:
    if not parts:
        return None
    totals = [part.total for part in parts if part.total is not None]
    total = sum(totals) if len(totals) == len(parts) else None
    rows = sum(part.rows for part in parts)
    percent = None if parts[-1].percent is None or not total else 100 * rows // total
    update = {"rows": rows, "total": total, "percent": percent}
    return parts[-1].model_copy(update=update)


@dataclass
class ProgressTracker:
    """Turns row counts into progress that never decreases. Times are in seconds of one clock."""

    total: RowCount | None = None
    before: int = 0
    """Rows that earlier attempts have completed."""
    _since: float | None = field(default=None, init=False)
    counts: RowCounts = field(default=RowCounts(), init=False)
    """The highest committed counts so far."""
    progress: Progress | None = field(default=None, init=False)
    """The progress at the last update."""

    def update(self, counts: RowCounts, now: float) -> None:
        """Update the progress at time `now`, when `counts` rows are committed."""
        if counts.read > self.counts.read:
            self.counts = counts
        rows = self.counts.read
        if self._since is None or rows <= self.before:
            self._since = now  # speed excludes the time in which models load
        rate = self._rate(now)
        total = None if self.total is None else max(self.total.rows, rows)
        self.progress = Progress(
            rows=rows,
            total=total,
            estimated=True if self.total and self.total.estimated else None,
            percent=self._percent(rows, total),
            rowsPerSecond=round(rate, 1) if rate else None,
            eta=duration((total - rows) / rate) if rate and total is not None else None,
        )

    def finish(self, counts: RowCounts, seconds: float) -> None:
        """Set the final progress of a finished job.

        The speed is the average over `seconds` of running, which includes loading models."""
        self.counts = counts
        done = counts.read - self.before
        rate = done / seconds if seconds > 0 and done > 0 else None
        self.progress = Progress(
            rows=counts.read,
            total=counts.read,
            percent=100,
            rowsPerSecond=round(rate, 1) if rate else None,
            eta="0s",
        )

    def _rate(self, now: float) -> float | None:
        """Return the rows per second since just before the first rows; None if there are no rows
        yet."""
        elapsed = now - self._since if self._since is not None else 0.0
        rows = self.counts.read - self.before
        return rows / elapsed if elapsed > 0 and rows > 0 else None

    def _percent(self, rows: int, total: int | None) -> int | None:
        if not total or self.total is None:
            return None
        percent = 100 * rows // total
        return min(percent, 99) if self.total.estimated else percent


def duration(seconds: float) -> str:
    """Return seconds in the form 45s, 2m30s or 3h05m."""
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"

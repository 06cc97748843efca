"""Summarizes the notes of the tasks of an attempt."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from batchinference.pipeline.row_batch import READ_STEP, WRITE_STEP
from batchinference.spec.report import StepTimes

MAX_NOTES = 20


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
    optional = ("compute_seconds", "wait_seconds", "blocked_seconds", "load_seconds")
    found = {name: [note[name] for note in notes if name in note] for name in optional}
    sums = {name: round(sum(values), 3) for name, values in found.items() if values}
    return StepTimes(
        rows=int(rows),
        seconds=round(seconds, 3),
        cpuSeconds=round(cpu, 3),
        computeSeconds=sums.get("compute_seconds"),
        waitSeconds=sums.get("wait_seconds"),
        blockedSeconds=sums.get("blocked_seconds"),
        loadSeconds=sums.get("load_seconds"),
        rowsPerSecond=round(rows / max(seconds, 1e-9), 1),
    )


def _note_text(step: str, note: dict[str, float]) -> str:
    size = f"{note['batch_size']:g} rows a batch"
    if "out_of_memory_at" in note:
        return f"step '{step}': memory ran out with {note['out_of_memory_at']:g} rows, now {size}"
    if "rows_per_second" not in note:
        return f"step '{step}': {size}"
    return f"step '{step}': {size} was the fastest, {note['rows_per_second']:g} rows/s"

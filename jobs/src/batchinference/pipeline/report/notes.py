"""Summarizes the notes of all steps for the report."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from batchinference.spec.report import StepTimes

SHOWN = 20


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


def collect_notes(notes: Iterable[tuple[str, str]]) -> RunNotes:
    """Return a summary of all notes of an attempt: pairs of a step and its note as JSON."""
    sizes: dict[str, list[int]] = defaultdict(list)
    times: dict[str, list[dict[str, float]]] = defaultdict(list)
    words: dict[str, None] = {}
    peak = 0
    for step, text in notes:
        note = json.loads(text)
        peak = max(peak, note.get("peak_bytes", 0))
        if "cpu_seconds" in note:
            times[step].append(note)
        if "batch_size" in note:
            sizes[step].append(note["batch_size"])
            words[_in_words(step, note)] = None
    smallest = {step: min(found) for step, found in sorted(sizes.items())}
    steps = {step: _times(found) for step, found in times.items()}
    return RunNotes(smallest, peak, list(words)[:SHOWN], steps)


def _times(notes: list[dict[str, float]]) -> StepTimes:
    rows, seconds, cpu = (
        sum(note[name] for note in notes) for name in ("rows", "seconds", "cpu_seconds")
    )
    return StepTimes(
        rows=int(rows),
        seconds=round(seconds, 3),
        cpuSeconds=round(cpu, 3),
        rowsPerSecond=round(rows / max(seconds, 1e-9), 1),
    )


def _in_words(step: str, note: dict[str, float]) -> str:
    size = f"{note['batch_size']:g} rows a batch"
    if "out_of_memory_at" in note:
        return f"step '{step}': memory ran out with {note['out_of_memory_at']:g} rows, now {size}"
    return f"step '{step}': {size} was the fastest, {note['rows_per_second']:g} rows/s"

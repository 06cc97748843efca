"""Summarizes the notes of all steps for the report."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 20


@dataclass(frozen=True)
class RunNotes:
    batch_sizes: dict[str, int]
    """The smallest batch size that any replica of each step has reached."""
    peak_bytes: int
    """The highest memory use of any single process."""
    notes: list[str]
    """Notes as text for people."""


def collect_notes(notes: Iterable[tuple[str, str]]) -> RunNotes:
    """Return a summary of all notes of an attempt: pairs of a step and its note as JSON."""
    sizes: dict[str, list[int]] = defaultdict(list)
    words: dict[str, None] = {}
    peak = 0
    for step, text in notes:
        note = json.loads(text)
        peak = max(peak, note.get("peak_bytes", 0))
        if "batch_size" in note:
            sizes[step].append(note["batch_size"])
            words[_in_words(step, note)] = None
    smallest = {step: min(found) for step, found in sorted(sizes.items())}
    return RunNotes(smallest, peak, list(words)[:SHOWN])


def _in_words(step: str, note: dict[str, float]) -> str:
    size = f"{note['batch_size']:g} rows a batch"
    if "out_of_memory_at" in note:
        return f"step '{step}': memory ran out with {note['out_of_memory_at']:g} rows, now {size}"
    return f"step '{step}': {size} was the fastest, {note['rows_per_second']:g} rows/s"

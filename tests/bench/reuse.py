"""Measures what `dedupe` and `cache` gain, and what they cost without equal inputs.

One process computes embeddings of MiniLM in batches of 64 texts, without Ray. Each round runs all
cases, in another order. The ratio of a case is its rows per second of CPU time, relative to the
same texts without either."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from rounds import ROUNDS, sized
from texts import MODEL, sample_texts

from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.report.builder import collect_notes
from batchinference.pipeline.row_batch import RowBatch, consecutive_ids
from batchinference.pipeline.steps.result_cache import flush_caches
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.steps import Step

ROWS, BATCH = sized(1024), 64
LIMIT_OF_MISSES, LIMIT_OF_HITS = 0.95, 1.6
"""The least ratios without equal rows, and if half of the rows are equal to others."""


def inputs() -> dict[str, list[str]]:
    """Return texts without duplicates, and texts of which each is there twice: one after the other,
    and anywhere in the input."""
    texts = [f"{number} {text}" for number, text in enumerate(sample_texts(ROWS))]
    half = texts[: ROWS // 2]
    adjacent = [text for text in half for _ in range(2)]
    return {
        "unique": texts,
        "adjacent": adjacent,
        "spread": random.Random(0).sample(adjacent, len(adjacent)),
    }


def measured(texts: list[str], **reuse: Any) -> tuple[float, int]:
    """Return the rows per second of CPU time, and the number of rows that were not computed."""
    model = {"runtime": "sentenceTransformers", "source": MODEL, "output": "embedding"}
    fields = {"name": "embed", "model": {**model, "inputs": {"text": "text"}}, **reuse}
    errors = ErrorHandling(tolerant=True, input=Location("/nowhere"))
    run = SegmentRunner([Stage("embed", (Step.model_validate(fields),), cpus=1)], errors)
    list(run(batch_of(texts[:1] * 8, 0)))  # warm up; one row more is known
    began = time.process_time()
    notes = [note for batch in batches(texts) for result in run(batch) for note in result.notes]
    flush_caches()
    seconds = time.process_time() - began
    times = collect_notes([*notes, *run.take_notes()]).steps["embed"]
    return len(texts) / seconds, (times.reused or 0) + (times.cached or 0)


def batches(texts: list[str]) -> Iterator[RowBatch]:
    for start in range(0, len(texts), BATCH):
        yield batch_of(texts[start : start + BATCH], start)


def batch_of(texts: list[str], start: int) -> RowBatch:
    return RowBatch.read(pa.table({"text": texts}), consecutive_ids(0, start, len(texts)))


def main() -> None:
    rates, known = defaultdict[str, list[float]](list), dict[str, int]()
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory:
            cache = {"cache": {"path": directory}}
            cases: list[tuple[str, str, dict[str, Any]]] = [
                ("unique", "", {}),
                ("unique", " with dedupe", {"dedupe": True}),
                ("unique", " with an empty cache", cache),
                ("unique", " with a full cache", cache),
                *((each, text, reuse) for each in ("adjacent", "spread")
                  for text, reuse in (("", {}), (" with dedupe", {"dedupe": True}))),
            ]  # fmt: skip
            of_cache = {2, 3}  # in this order
            order = [at for at in range(len(cases)) if at not in of_cache]
            random.Random(number).shuffle(order)
            for at in [*order, *sorted(of_cache)]:
                name, text, reuse = cases[at]
                rate, known[name + text] = measured(inputs()[name], **reuse)
                rates[name + text].append(rate)
    medians = {name: statistics.median(rate) for name, rate in rates.items()}
    results = {
        name: {
            "rows_per_second": round(rate, 1),
            "ratio": round(rate / medians[name.partition(" ")[0]], 3),
            "not_computed": known[name],
        }
        for name, rate in medians.items()
    }
    print(json.dumps(results, indent=2))
    for name in ("unique with dedupe", "unique with an empty cache"):
        assert results[name]["ratio"] >= LIMIT_OF_MISSES, name
    for name in ("adjacent with dedupe", "spread with dedupe"):
        assert results[name]["ratio"] >= LIMIT_OF_HITS, name


if __name__ == "__main__":
    main()

"""Computes rows of a model step once if their inputs are equal, and gives all of them the result.

The results of recent rows are kept in the memory of the process, so that rows of different batches
share them, and those of other jobs may be in a cache. An error is shared only by the rows of a
batch, and not if it is transient.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import concat, require_columns, with_column
from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import Transform, TransformResult, all_failed, as_result
from batchinference.pipeline.steps.code_identity import model_digest
from batchinference.pipeline.steps.preparation import split_prepared
from batchinference.pipeline.steps.result_cache import (
    MEMORY_BYTES,
    KnownResults,
    Place,
    RecentResults,
    ResultCache,
)
from batchinference.pipeline.steps.row_hashes import row_hashes
from batchinference.pipeline.storage.location import Location
from batchinference.spec.models import Model
from batchinference.spec.progress import TokenKind
from batchinference.spec.steps import Step


def with_reuse(step: Step, transform: Transform, device: Device) -> Transform:
    """Return a loaded step that reuses results, if it should. Raises ModelLoad if its model cannot
    be identified."""
    model, cache = step.model, step.cache
    if model is None or not (step.dedupe or cache):
        return transform
    if cache is None:
        return Reuse(step.name, model, transform)
    digest = model_digest(model, device)
    names = [model.output, *model.other_outputs]
    place = Location(cache.path, cache.storage)
    return Reuse(step.name, model, transform, ResultCache(place, digest, names))


class Reuse(Transform):
    """Runs a model step only on the first row with its inputs."""

    def __init__(
        self, step: str, model: Model, transform: Transform, cache: ResultCache | None = None
    ) -> None:
        self._step, self._inputs, self._transform = step, model.inputs, transform
        self._outputs = [model.output, *model.other_outputs]
        self.result_columns = getattr(transform, "result_columns", None)
        self._recent, self._cache = RecentResults(MEMORY_BYTES), cache
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        keys = self._keys(batch)
        found = self._found(keys)
        rows = _first_rows(keys, found)
        computed, errors = self._computed(batch, keys, rows)
        if again := _to_repeat(keys, computed, errors):
            more, others = self._computed(batch, keys, again)
            computed, errors = computed | more, errors | others
        found |= computed
        shared = {keys[row]: error for row, error in errors.items()}
        failed = {
            row: errors.get(row, shared[key]) for row, key in enumerate(keys) if key not in found
        }
        self._count(keys, found, computed)
        return _merged(split_prepared(batch)[0], keys, found, failed)

    def chosen(self, batch: pa.Table) -> np.ndarray:
        """Return a mask (bool) of the rows that must be computed."""
        keys = self._keys(batch)
        mask = np.zeros(len(keys), dtype=bool)
        mask[_first_rows(keys, self._found(keys))] = True
        return mask

    def take_notes(self) -> list[str]:
        """Return the numbers of results that were reused since the last note, as JSON."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if self._cache is not None and self._cache.errors:
            counts["cache_errors"], self._cache.errors = self._cache.errors, 0
        return [json.dumps(counts)] if counts else []

    def flush(self) -> None:
        if self._cache is not None:
            self._cache.flush()

    def _found(self, keys: Sequence[bytes]) -> dict[bytes, Place]:
        """Return the known results of these keys."""
        found = self._recent.find(keys)
        if self._cache is not None:
            others = set(keys) - found.keys()
            for results in self._cache.find(others):
                self._recent.add(results)
                found |= {key: at for key, at in results.places().items() if key in others}
        return found

    def _count(
        self, keys: Sequence[bytes], found: Mapping[bytes, Place], computed: Mapping[bytes, Place]
    ) -> None:
        """Count the rows whose result was not computed for them."""
        stored = sum(found[key][0].stored for key in keys if key in found)
        reused = sum(key in found for key in keys) - stored - len(computed)
        with self._lock:
            self._counts += Counter(reused=reused, cached=stored)

    def _keys(self, batch: pa.Table) -> list[bytes]:
        require_columns(self._step, list(self._inputs.values()), batch)
        columns = {name: batch.column(self._inputs[name]) for name in sorted(self._inputs)}
        return row_hashes(pa.table(columns))

    def _computed(
        self, batch: pa.Table, keys: Sequence[bytes], rows: Sequence[int]
    ) -> tuple[dict[bytes, Place], dict[int, Exception]]:
        """Return the results of some rows of a batch, and the errors of the others by row. They are
        kept for later batches."""
        if not rows:
            return {}, {}
        part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
        with collect_warnings() as warnings:
            try:
                result = as_result(self._transform(part))
            except Exception as error:
                # of several rows, only one may be the cause
                if len(rows) > 1 or not is_about_the_row(error):
                    raise
                result = all_failed(1, error)
        by_parent = defaultdict(list)
        for warning in warnings:
            if isinstance(warning.name, TokenKind):  # equal rows use no tokens
                warn(warning.name, row=rows[warning.row], amount=warning.amount)
            else:
                by_parent[warning.row].append(warning)
        parents = result.parents.tolist()
        results = KnownResults(
            [keys[rows[parent]] for parent in parents],
            result.table.select(self._outputs) if parents else result.table,
            {at: by_parent[parent] for at, parent in enumerate(parents) if parent in by_parent},
        )
        self._recent.add(results)
        if self._cache is not None and parents:
            self._cache.add(results)
        return results.places(), {rows[at]: error for at, error in result.failed.items()}


def _first_rows(keys: Sequence[bytes], found: Mapping[bytes, Place]) -> list[int]:
    """Return the first row with each key that has no result."""
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        if key not in found:
            first.setdefault(key, row)
    return list(first.values())


def _to_repeat(
    keys: Sequence[bytes], found: Mapping[bytes, Place], errors: Mapping[int, Exception]
) -> list[int]:
    """Return the rows that have not been computed, and whose equal row failed with a transient
    error, which is not about its inputs."""
    transient = {keys[row] for row, error in errors.items() if getattr(error, "transient", False)}
    return [
        row
        for row, key in enumerate(keys)
        if key in transient and key not in found and row not in errors
    ]


def _merged(
    batch: pa.Table,
    keys: Sequence[bytes],
    found: Mapping[bytes, Place],
    failed: Mapping[int, Exception],
) -> pa.Table | TransformResult:
    """Return the result of a batch: each row that has not failed has the result of its key."""
    left = [row for row in range(len(keys)) if row not in failed]
    if not left:
        return TransformResult(pa.table({}), np.empty(0, np.int64), failed)
    places = [found[keys[row]] for row in left]
    for row, (results, at) in zip(left, places, strict=True):
        for warning in results.warnings.get(at, ()):
            warn(warning.name, row=row, amount=warning.amount)
    table = batch.take(pa.array(left)) if failed else batch
    for name, column in zip((columns := _at(places)).column_names, columns.columns, strict=True):
        table = with_column(table, name, column)
    return TransformResult(table, np.array(left, dtype=np.int64), failed) if failed else table


def _at(places: Sequence[Place]) -> pa.Table:
    """Return the results at these places, in their order."""
    groups: dict[int, tuple[KnownResults, list[int], list[int]]] = {}
    for number, (results, row) in enumerate(places):
        _, rows, numbers = groups.setdefault(id(results), (results, [], []))
        rows.append(row)
        numbers.append(number)
    tables = [results.table.take(pa.array(rows)) for results, rows, _ in groups.values()]
    order = np.argsort(np.concatenate([numbers for *_, numbers in groups.values()]))
    return concat(tables).take(pa.array(order))

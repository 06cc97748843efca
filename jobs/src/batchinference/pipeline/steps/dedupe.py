"""Computes rows of a model step once if their inputs are equal, and gives all of them the result.

The results of recent rows are kept in the memory of the process, so that rows of different batches
share them, and those of other jobs may be in a cache. Errors are not shared: each row equal to a
failed row is computed, because the error may have been transient.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import concat, decoded, require_columns, with_column
from batchinference.pipeline.row_hashes import row_hashes
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings, warn
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import Transform, TransformResult, as_result
from batchinference.pipeline.steps.code_and_model_hashes import model_digest
from batchinference.pipeline.steps.result_cache import (
    MEMORY_BYTES,
    KnownResults,
    Place,
    RecentResults,
    ResultCache,
)
from batchinference.pipeline.steps.tokenization import is_prepared, split_prepared
from batchinference.pipeline.storage.location import Location
from batchinference.spec.models import Model
from batchinference.spec.progress import TokenKind
from batchinference.spec.steps import Step
from batchinference.spec.warnings import WarningName

_ADDRESS, _ADDRESSES = "^https?://", r'(?s)_url"\s*:.*"https?://'
"""Texts that are the address of an image, and requests or messages with such addresses."""


class Reuse(Transform):
    """Runs a model step only on rows whose result is unknown."""

    def __init__(self, step: Step, model: Model, transform: Transform, device: Device) -> None:
        """Raises ModelLoad if the step has a cache and its model cannot be identified."""
        self._step, self._inputs, self._transform = step.name, model.inputs, transform
        self._images = set(getattr(model, "images", ()))
        self._outputs = [model.output, *model.other_outputs]
        self.result_columns = getattr(transform, "result_columns", None)
        self._recent, self._cache = RecentResults(MEMORY_BYTES), None
        if step.cache is not None:
            place = Location(step.cache.path, step.cache.storage)
            self._cache = ResultCache(place, model_digest(model, device), self._outputs)
        self._counts, self._lock = Counter[str](), Lock()

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        keys = self._keys(batch)
        fetched = self._fetched(batch, keys)
        found = self._found(keys, fetched)
        first = _first_rows(keys, found)
        computed, failed = self._computed(batch, keys, first, fetched)
        again = {keys[row] for row in failed}
        rows = [row for row, key in enumerate(keys) if key in again and row not in failed]
        more, others = self._computed(batch, keys, rows, fetched)
        found, failed = found | computed | more, failed | others
        stored = sum(found[key][0].stored for key in keys if key in found)
        reused = len(keys) - len(first) - len(rows) - stored
        with self._lock:
            self._counts.update(reused=reused, cached=stored)
        return _merged(split_prepared(batch)[0], keys, found, failed, {*first, *rows})

    def chosen(self, batch: pa.Table) -> np.ndarray:
        """Return a mask (bool) of the rows that must be computed."""
        keys = self._keys(batch)
        mask = np.zeros(len(keys), dtype=bool)
        mask[_first_rows(keys, self._found(keys, self._fetched(batch, keys)))] = True
        return mask

    def take_notes(self) -> list[str]:
        """Return the numbers of results that were reused since the last note, as JSON."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if self._cache is not None:
            counts["cache_errors"], self._cache.errors = self._cache.errors, 0
        return [json.dumps(+counts)] if +counts else []

    def _keys(self, batch: pa.Table) -> list[bytes]:
        require_columns(self._step, list(self._inputs.values()), batch)
        columns = {name: batch.column(self._inputs[name]) for name in sorted(self._inputs)}
        return row_hashes(pa.table(columns))

    def _fetched(self, batch: pa.Table, keys: Sequence[bytes]) -> set[bytes]:
        """Return the keys of rows with addresses, whose content another job may find changed."""
        mask = np.zeros(len(keys), dtype=bool)
        for name, column in self._inputs.items() if self._cache is not None else ():
            values = decoded(batch.column(column))
            pattern = _ADDRESS if name in self._images else _ADDRESSES
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                found = pc.match_substring_regex(values, pattern).fill_null(False)
                mask |= found.to_numpy()
            mask |= "_url:" in str(values.type)
        return {keys[row] for row in np.flatnonzero(mask).tolist()}

    def _found(self, keys: Sequence[bytes], fetched: Collection[bytes]) -> dict[bytes, Place]:
        """Return the known results of these keys: for those in `fetched`, only of this job."""
        found = self._recent.find(keys)
        others = set(keys) - found.keys() - set(fetched)
        for results in self._cache.find(others) if self._cache is not None else ():
            self._recent.add(results)
            found |= {key: place for key, place in results.places().items() if key in others}
        return found

    def _computed(
        self,
        batch: pa.Table,
        keys: Sequence[bytes],
        rows: Sequence[int],
        fetched: Collection[bytes],
    ) -> tuple[dict[bytes, Place], dict[int, Exception]]:
        """Return the results of some rows of a batch, which are kept for later batches, and the
        errors of the others by row."""
        if not rows:
            return {}, {}
        read = {*self._inputs.values(), *(n for n in batch.column_names if is_prepared(n))}
        part = batch.select(sorted(read))
        part = part if len(rows) == batch.num_rows else part.take(pa.array(rows))
        with collect_warnings() as warnings:
            result = as_result(self._transform(part))
        by_parent = defaultdict[int, list[RowWarning]](list)
        for warning in warnings:
            if isinstance(warning.name, TokenKind):  # only this row has used them
                warn(warning.name, row=rows[warning.row], amount=warning.amount)
            else:
                by_parent[warning.row].append(warning)
        failed = {rows[at]: error for at, error in result.failed.items()}
        if not result.table.num_rows:
            return {}, failed
        results = KnownResults(
            [keys[rows[parent]] for parent in result.parents],
            result.table.select(self._outputs),
            {at: by_parent[row] for at, row in enumerate(result.parents) if row in by_parent},
        )
        self._recent.add(results)
        if self._cache is not None:
            stored = results.only(set(results.keys) - set(fetched)) if fetched else results
            self._cache.add(stored)
        return results.places(), failed


def _first_rows(keys: Sequence[bytes], found: Collection[bytes]) -> list[int]:
    """Return the first row with each key that has no result."""
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        if key not in found:
            first.setdefault(key, row)
    return list(first.values())


def _merged(
    batch: pa.Table,
    keys: Sequence[bytes],
    found: Mapping[bytes, Place],
    failed: Mapping[int, Exception],
    asked: Collection[int],
) -> pa.Table | TransformResult:
    """Return the result of a batch: each row that has not failed has the result of its key. Only
    the rows in `asked` have made requests."""
    left = np.array([row for row in range(len(keys)) if row not in failed], dtype=np.int64)
    if not len(left):
        return TransformResult(pa.table({}), left, failed)
    places = [found[keys[row]] for row in left]
    for row, (results, at) in zip(left.tolist(), places, strict=True):
        for warning in results.warnings.get(at, ()):
            made = row in asked or warning.name is not WarningName.ANSWER_REPAIRED
            warn(warning.name, row=row, amount=warning.amount if made else 0)
    table = batch.take(pa.array(left)) if failed else batch
    added = _at(places)
    for name in added.column_names:
        table = with_column(table, name, added.column(name))
    return TransformResult(table, left, failed) if failed else table


def _at(places: Sequence[Place]) -> pa.Table:
    """Return the results at these places, in their order."""
    groups = {id(results): results for results, _ in places}
    numbers = defaultdict[int, list[int]](list)
    for number, (results, _) in enumerate(places):
        numbers[id(results)].append(number)
    tables = [
        groups[group].table.take(pa.array([places[number][1] for number in of_group]))
        for group, of_group in numbers.items()
    ]
    order = np.argsort(np.concatenate(list(numbers.values())))
    return concat(tables).take(pa.array(order))

"""Model steps with `dedupe` or `cache`: rows with equal inputs are computed once.

The key of a row is the hash of the inputs of the model. Results are kept in memory for rows of
later batches, and with `cache` also in files for other jobs. Errors are not shared, because an
error may be transient: if a row fails, all rows with the same key are computed."""

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
from batchinference.pipeline.steps.code_hashes import model_digest
from batchinference.pipeline.steps.result_cache import (
    KnownResults,
    RecentResults,
    ResultCache,
    ResultRow,
)
from batchinference.pipeline.steps.transform import (
    Transform,
    TransformResult,
    as_result,
    is_prepared,
    split_prepared,
)
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import is_text
from batchinference.spec.models import Model
from batchinference.spec.progress import TokenKind
from batchinference.spec.steps import Step
from batchinference.spec.warnings import WarningName

_URL, _JSON_WITH_URLS = "^https?://", r'(?s)_url"\s*:.*"https?://'
"""Patterns of an image input that is a URL, and of requests or messages in JSON with URLs."""


class Dedupe(Transform):
    """Runs a model step only on rows whose result is neither in `recent` nor in a cache."""

    def __init__(self, step: Step, model: Model, transform: Transform, device: Device) -> None:
        """Raises ModelLoad if the step has a cache and `model_digest` fails."""
        self._step, self._inputs, self._transform = step.name, model.inputs, transform
        self._images = set(getattr(model, "images", ()))
        self._outputs = [model.output, *model.extra_outputs]
        self.result_columns = getattr(transform, "result_columns", None)
        self.recent, self._cache = RecentResults(), None
        if step.cache is not None:
            cache = Location(step.cache.path, step.cache.storage)
            self._cache = ResultCache(cache, model_digest(model, device), self._outputs)
        self._counts, self._lock = Counter[str](), Lock()

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        keys = self._keys(batch)
        volatile = self._volatile_keys(batch, keys)
        known = self._known_results(keys, volatile)
        first = _first_rows(keys, known)
        computed, failed = self._compute(batch, keys, first, volatile)
        failed_keys = {keys[row] for row in failed}
        equal = [row for row, key in enumerate(keys) if key in failed_keys and row not in failed]
        computed_equal, failed_equal = self._compute(batch, keys, equal, volatile)
        known, failed = known | computed | computed_equal, failed | failed_equal
        cached = sum(known[key][0].stored for key in keys if key in known)
        reused = len(keys) - len(first) - len(equal) - cached
        with self._lock:
            self._counts.update(reused=reused, cached=cached)
        return _merged(split_prepared(batch)[0], keys, known, failed, {*first, *equal})

    def rows_to_compute(self, batch: pa.Table) -> np.ndarray:
        """Return a mask (bool) of the rows that must be computed."""
        keys = self._keys(batch)
        mask = np.zeros(len(keys), dtype=bool)
        known = self._known_results(keys, self._volatile_keys(batch, keys))
        mask[_first_rows(keys, known)] = True
        return mask

    def take_notes(self) -> list[str]:
        """Return the numbers of reused and cached results and of cache errors, as JSON."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if self._cache is not None:
            counts["cache_errors"], self._cache.errors = self._cache.errors, 0
        return [json.dumps(+counts)] if +counts else []

    def _keys(self, batch: pa.Table) -> list[bytes]:
        require_columns(self._step, list(self._inputs.values()), batch)
        columns = {name: batch.column(self._inputs[name]) for name in sorted(self._inputs)}
        return row_hashes(pa.table(columns))

    def _volatile_keys(self, batch: pa.Table, keys: Sequence[bytes]) -> set[bytes]:
        """Return the keys of rows with a URL in an input. Results of these keys are not cached for
        other jobs, because the content at a URL may change."""
        mask = np.zeros(len(keys), dtype=bool)
        for name, column in self._inputs.items() if self._cache is not None else ():
            values = decoded(batch.column(column))
            pattern = _URL if name in self._images else _JSON_WITH_URLS
            if is_text(values.type):
                mask |= pc.match_substring_regex(values, pattern).fill_null(False).to_numpy()
            mask |= "_url:" in str(values.type)
        return {keys[row] for row in np.flatnonzero(mask).tolist()}

    def _known_results(
        self, keys: Sequence[bytes], volatile: Collection[bytes]
    ) -> dict[bytes, ResultRow]:
        """Return results by key: from memory and, for keys not in `volatile`, from the cache."""
        known = self.recent.find(keys)
        others = set(keys) - known.keys() - set(volatile)
        for results in self._cache.find(others) if self._cache is not None else ():
            self.recent.add(results)
            known |= {key: row for key, row in results.by_key().items() if key in others}
        return known

    def _compute(
        self,
        batch: pa.Table,
        keys: Sequence[bytes],
        rows: Sequence[int],
        volatile: Collection[bytes],
    ) -> tuple[dict[bytes, ResultRow], dict[int, Exception]]:
        """Compute `rows` of a batch. Return the results by key, and the errors of failed rows by
        row. The results are kept for later batches."""
        if not rows:
            return {}, {}
        names = {*self._inputs.values(), *(n for n in batch.column_names if is_prepared(n))}
        part = batch.select(sorted(names))
        part = part if len(rows) == batch.num_rows else part.take(pa.array(rows))
        with collect_warnings() as warnings:
            result = as_result(self._transform(part))
        by_parent = defaultdict[int, list[RowWarning]](list)
        for warning in warnings:
            if isinstance(warning.name, TokenKind):  # rows that reuse the result use no tokens
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
        self.recent.add(results)
        if self._cache is not None:
            stable = set(results.keys) - set(volatile)
            self._cache.add(results.of_keys(stable) if volatile else results)
        return results.by_key(), failed


def _first_rows(keys: Sequence[bytes], known: Collection[bytes]) -> list[int]:
    """Return the first row of each key that is not in `known`."""
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        if key not in known:
            first.setdefault(key, row)
    return list(first.values())


def _merged(
    batch: pa.Table,
    keys: Sequence[bytes],
    known: Mapping[bytes, ResultRow],
    failed: Mapping[int, Exception],
    computed: Collection[int],
) -> pa.Table | TransformResult:
    """Return the result of a batch: each row that has not failed gets the result of its key in
    `known`. Only the rows in `computed` were sent to the model."""
    good = np.array([row for row in range(len(keys)) if row not in failed], dtype=np.int64)
    if not len(good):
        return TransformResult(pa.table({}), good, failed)
    result_rows = [known[keys[row]] for row in good]
    for row, (results, at) in zip(good.tolist(), result_rows, strict=True):
        for warning in results.warnings.get(at, ()):
            # the amount of ANSWER_REPAIRED is a number of requests, and a reused result needs none
            counts = row in computed or warning.name is not WarningName.ANSWER_REPAIRED
            warn(warning.name, row=row, amount=warning.amount if counts else 0)
    table = batch.take(pa.array(good)) if failed else batch
    added = _take(result_rows)
    for name in added.column_names:
        table = with_column(table, name, added.column(name))
    return TransformResult(table, good, failed) if failed else table


def _take(rows: Sequence[ResultRow]) -> pa.Table:
    """Return a table of these result rows, in their order."""
    groups = {id(results): results for results, _ in rows}
    positions = defaultdict[int, list[int]](list)
    for position, (results, _) in enumerate(rows):
        positions[id(results)].append(position)
    tables = [
        groups[group].table.take(pa.array([rows[position][1] for position in of_group]))
        for group, of_group in positions.items()
    ]
    order = np.argsort(np.concatenate(list(positions.values())))
    return concat(tables).take(pa.array(order))

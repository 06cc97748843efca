"""Splits a batch of rows into groups, and computes the content of a group's manifest entry.

The table `RowBatch.warnings` has the warnings of rows, and their token counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.manifest import Origin, Range, Share, ranges_of
from batchinference.pipeline.row_batch import FULL_SHARE, ROW_BITS, ROW_MASK, RowBatch, unpack_ids
from batchinference.spec.progress import Counts, TokenKind
from batchinference.spec.warnings import WarningCount, WarningName


def commit_groups(batch: RowBatch) -> Iterator[RowBatch]:
    """Split a batch into up to three groups, each with its own manifest entry: 1. input rows of no
    other group, filtered rows, and warnings about rows of other batches 2. failed input rows with
    other rows or file warnings, because a retry replaces them all 3. input rows that are split,
    because other batches have their other parts"""
    if not (len(batch.input_ids) or len(batch.filtered) or batch.warnings.num_rows):
        return
    split, with_output = _is_split(batch), _failed_with_output(batch)
    kinds = (~split & ~with_output, ~split & with_output, split)
    groups = [batch.input_ids[kind] for kind in kinds if kind.any()]
    if len(groups) < 2:
        yield batch
        return
    first, *others = map(batch.select_inputs, groups)
    filtered = batch.filtered[~np.isin(batch.filtered, batch.input_ids)]
    warned = ~np.isin(batch.warnings.column("id").to_numpy(), batch.input_ids)
    first = replace(first, filtered=np.concatenate([first.filtered, filtered]))
    yield first.with_warnings(batch.warnings.filter(pa.array(warned)))
    yield from others


def counts_of_group(group: RowBatch) -> Counts:
    """Return the counts of a group: input rows that are not split, rows of each outcome, warnings,
    and tokens that models used."""
    files = np.unique(group.warnings.column("id").to_numpy() >> ROW_BITS)
    tokens = {kind: sum(sums) for kind, sums in _token_sums(files, group).items()}
    return Counts(
        read=int((~_is_split(group)).sum()),
        written=len(group.ids),
        failed=group.errors.num_rows,
        filtered=len(group.filtered),
        warned=sum(warning.count for warning in warnings_of_group(group)),
        **tokens,
    )


def warnings_of_group(group: RowBatch) -> list[WarningCount]:
    """Return the warnings of a group by step and name. Each warning counts an input row once. Input
    rows that failed completely count only in warnings about their files."""
    return [warning for _, warning in _warnings(group)]


def _warnings(group: RowBatch, *, by_file: bool = False) -> list[tuple[int, WarningCount]]:
    """Return the warnings of a group, each with the number of the input file of its example. With
    `by_file`, there is one warning for each step, name and input file."""
    if not group.warnings.num_rows:
        return []
    ids = group.warnings.column("id").to_numpy()
    # a split row has not failed completely, because other tasks may have written its other parts
    remaining = np.concatenate([group.ids, group.filtered, group.input_ids[_is_split(group)]])
    failed = np.isin(ids, group.errors.column("id").to_numpy()) & ~np.isin(ids, remaining)
    mask = (~failed | _are_about_files(group)) & ~_are_token_counts(group)
    table = group.warnings.filter(pa.array(mask))
    if by_file:
        files = pa.array(table.column("id").to_numpy() >> ROW_BITS)
        table = table.append_column("file", files)
    keys = ["file", "step", "name"] if by_file else ["step", "name"]
    sums = [("id", "count_distinct"), ("amount", "sum"), ("id", "min")]
    grouped = table.group_by(keys, use_threads=False).aggregate(sums)
    warnings = []
    for row in grouped.to_pylist():
        file, number = row["id_min"] >> ROW_BITS, row["id_min"] & ROW_MASK
        name, example = WarningName.from_name(row["name"]), f"{file}:{number}"
        counts = row["id_count_distinct"], row["amount_sum"] or 0
        warnings.append((file, WarningCount.of_rows(name, row["step"], *counts, example)))
    return warnings


def origins_of(group: RowBatch, data: Iterable[np.ndarray]) -> list[Origin]:
    """Return the part of a group from each input file. The rows of the group must be in the order
    of the input. `data` yields the indexes of the rows of each data file."""
    failed, warned = (table.column("id").to_numpy() for table in (group.errors, group.warnings))
    outcomes = {"written": group.ids, "failed": failed, "filtered": group.filtered}
    files = np.unique(np.concatenate([*outcomes.values(), group.input_ids, warned]) >> ROW_BITS)
    sums = {name: _sums(files, ids) for name, ids in outcomes.items()} | _token_sums(files, group)
    warnings, rows = defaultdict[int, list[WarningCount]](list), defaultdict[int, list[Any]](list)
    warned_by_file = Counter[int]()
    for file, warning in _warnings(group, by_file=True):
        warnings[file].append(warning)
        warned_by_file[file] += warning.count
    for number, indexes in enumerate(data):
        of_files = np.unique(group.ids[indexes] >> ROW_BITS, return_counts=True)
        for file, count in zip(*(values.tolist() for values in of_files), strict=True):
            rows[file].append((number, count))
    counts = (dict(zip(sums, values, strict=True)) for values in zip(*sums.values(), strict=True))
    return [
        Origin(file, rows[file], Counts(**totals, warned=warned_by_file[file]), warnings[file])
        for file, totals in zip(files.tolist(), counts, strict=True)
    ]


def _sums(files: np.ndarray, ids: np.ndarray, amounts: np.ndarray | None = None) -> list[int]:
    """Return for each file its number of row ids or, with `amounts`, the sum of their amounts."""
    positions = np.searchsorted(files, ids >> ROW_BITS)
    sums: list[int] = np.bincount(positions, amounts, len(files)).astype(np.int64).tolist()
    return sums


def _token_sums(files: np.ndarray, group: RowBatch) -> dict[str, list[int]]:
    """Return the number of tokens of each kind in each file. Empty without tokens."""
    tokens = group.warnings.filter(pa.array(_are_token_counts(group)))
    ids, names, amounts = (tokens.column(name).to_numpy() for name in ("id", "name", "amount"))
    kinds = TokenKind if len(ids) else ()
    return {kind.value: _sums(files, ids, amounts * (names == kind.value)) for kind in kinds}


def row_ranges_of(group: RowBatch) -> list[Range]:
    """Return the ranges of the input rows that are not split."""
    return ranges_of(group.input_ids[~_is_split(group)])


def shares_of(group: RowBatch) -> list[Share]:
    """Return the shares that the group has of split input rows (see `row_batch`)."""
    split = _is_split(group)
    if group.shares is None or not split.any():
        return []
    files, rows = unpack_ids(group.input_ids[split])
    return list(zip(files.tolist(), rows.tolist(), group.shares[split].tolist(), strict=True))


def _is_split(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of the input rows of which the batch has only a part."""
    if batch.shares is None:
        return np.zeros(len(batch.input_ids), dtype=bool)
    return np.asarray(batch.shares != FULL_SHARE)


def _failed_with_output(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of failed input rows that also became written or filtered rows, or that
    have warnings about their files."""
    failed = batch.errors.column("id").to_numpy()
    if not len(failed):
        return np.zeros(len(batch.input_ids), dtype=bool)
    warned = batch.warnings.column("id").to_numpy()[_are_about_files(batch)]
    output = np.concatenate([batch.ids, batch.filtered, warned])
    return np.asarray(np.isin(batch.input_ids, output) & np.isin(batch.input_ids, failed))


def _are_about_files(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of the warnings about files. Such a warning stays if its row fails."""
    return _have_names(batch, [name.value for name in WarningName if name.about_file])


def _are_token_counts(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of the rows of `batch.warnings` that are token counts."""
    return _have_names(batch, [kind.value for kind in TokenKind])


def _have_names(batch: RowBatch, names: list[str]) -> np.ndarray:
    return np.asarray(np.isin(batch.warnings.column("name").to_numpy(), names))

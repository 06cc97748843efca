"""Manifests: row ids are stored as ranges, counts in the name, and both can be read back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.commit.manifest import (
    DataFile,
    Manifest,
    ManifestEntry,
    counts_of,
    parse_manifest_name,
    ranges_of,
)
from batchinference.pipeline.report.builder import ReportBuilder, collect_notes
from batchinference.pipeline.row_batch import FULL_SHARE, MAX_FILES, ROW_BITS, pack_id
from batchinference.spec.progress import Counts
from batchinference.spec.report import Report
from batchinference.spec.warnings import WarningCount, WarningName
from support.outputs.builders import entry, layout_of
from support.tiers import examples

FILES = st.integers(0, 3) | st.integers(0, MAX_FILES - 1)
ROWS = st.integers(0, 40) | st.integers(0, (1 << ROW_BITS) - 42)
COUNTED = [str(field.alias) for field in Counts.model_fields.values()]
COUNTS = st.builds(Counts, **dict.fromkeys(COUNTED[:5], st.integers(0, 10**12))) | st.builds(
    Counts, **dict.fromkeys(COUNTED, st.integers(0, 10**12))
)
TEXT = st.text(max_size=9)
PAIRS_OF_TEXT = st.lists(st.tuples(TEXT, TEXT), max_size=3)
NAMES = st.from_regex(r"([a-z=]{1,9}/)?part-[0-9a-f]{8}\.parquet", fullmatch=True)
FILE = st.builds(DataFile, NAMES, st.integers(0, 2**50), st.integers(0, 2**32 - 1))
RANGES = st.builds(
    lambda file, first, count: (file, first, first + count), FILES, ROWS, st.integers(1, 40)
)
WARNED = st.builds(
    WarningCount.of_rows,
    name=st.sampled_from(WarningName),
    step=TEXT,
    rows=st.integers(0, 2**40),
    amount=st.integers(0, 2**40),
    example=st.builds("{}:{}".format, FILES, ROWS),
)
ENTRIES = st.builds(
    ManifestEntry,
    counts=COUNTS,
    row_ranges=st.lists(RANGES, max_size=5),
    shares=st.lists(st.tuples(FILES, ROWS, st.integers(0, FULL_SHARE - 1)), max_size=5),
    data=st.lists(FILE, max_size=3),
    columns=PAIRS_OF_TEXT,
    errors=st.none() | FILE,
    warnings=st.lists(WARNED, max_size=3),
)
NOTES = st.dictionaries(st.text(), st.integers(0, 99) | st.floats(0, 1)).map(json.dumps)
MANIFESTS = st.builds(
    Manifest,
    task=st.integers(0, 999_999_999),
    number=st.integers(0, 99_999),
    entries=st.lists(ENTRIES, max_size=3),
    ends=st.lists(st.tuples(FILES, ROWS), max_size=5),
    notes=st.lists(st.tuples(st.text(), NOTES), max_size=3),
)


def ids_of(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array([pack_id(*pair) for pair in pairs], dtype=np.int64)


@given(st.lists(st.tuples(FILES, ROWS), unique=True, max_size=60))
def test_ranges_hold_exactly_the_rows_in_any_order(pairs: list[tuple[int, int]]) -> None:
    row_ranges = ranges_of(ids_of(pairs))
    kept = [(file, row) for file, first, after in row_ranges for row in range(first, after)]
    assert sorted(kept) == sorted(pairs)


@given(st.lists(st.tuples(FILES, ROWS), unique=True, max_size=60))
def test_number_of_ranges_is_minimal(pairs: list[tuple[int, int]]) -> None:
    there = set(pairs)
    beginnings = sorted((file, row) for file, row in there if (file, row - 1) not in there)
    assert [(file, first) for file, first, _ in ranges_of(ids_of(pairs))] == beginnings


def test_ranges_do_not_cross_files() -> None:
    last = (1 << ROW_BITS) - 1
    row_ranges = ranges_of(ids_of([(0, last - 1), (1, 0)]))
    assert row_ranges == [(0, last - 1, last), (1, 0, 1)]


def test_row_that_occurs_twice_is_in_two_ranges() -> None:
    assert ranges_of(ids_of([(0, 5), (0, 6), (0, 5)])) == [(0, 5, 6), (0, 5, 7)]


@given(MANIFESTS)
@settings(max_examples=examples(200))
def test_manifest_is_read_back(manifest: Manifest) -> None:
    one, other = Manifest.parse(manifest.serialized()), Manifest.parse(manifest.serialized())
    assert one == manifest
    assert all(a.columns is b.columns for a, b in zip(one.entries, other.entries, strict=True))


@given(MANIFESTS, st.data())
def test_truncated_manifest_is_ignored(manifest: Manifest, data: st.DataObject) -> None:
    content = manifest.serialized()
    with pytest.raises(ValueError):  # noqa: PT011 - any message of json
        Manifest.parse(content[: data.draw(st.integers(0, len(content) - 1))])


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 40, b"null", b"[]", b'"text"', b"{}", b'{"task": 1, "entries": 3}',
     b'{"task": 1, "entries": [{}], "ends": [], "notes": []}', b"\xff\xfe{}"],
)  # fmt: skip
def test_invalid_manifest_is_ignored(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any message of json
        Manifest.parse(content)


@pytest.mark.parametrize(
    "note",
    [
        {"retries": 1},
        {"retries": math.inf, "task": 1},
        {"seconds": 1},
        {"rows": math.nan, "seconds": 1},
        {"rows": 1, "seconds": 1e308},
        {"batch_size": 1},
        {"batch_size": "7"},
        {"batch_size": 7, "out_of_memory_at": "8"},
        {"peak_bytes": "7"},
        {"peak_bytes": 1.5},
        {"peak_bytes": None},
        {"peak_bytes": 10**30},
        {"inputTokens": "7"},
        {"replicas_per_device": "7"},
    ],
    ids=repr,
)
def test_notes_of_manifests_can_be_reported(tmp_path: Path, note: dict[str, object]) -> None:
    content = Manifest(1, 0, [], [], [("own", json.dumps(note))] * 2).serialized()
    try:
        notes = Manifest.parse(content).notes
    except ValueError:
        return  # such a manifest is ignored
    reports = ReportBuilder("a-job", layout_of(tmp_path))
    reports.add_notes(collect_notes(notes), None)
    assert Report.parse(reports.build().serialized()).retries == 0


@given(MANIFESTS)
def test_name_has_the_task_the_number_and_the_counts(manifest: Manifest) -> None:
    commit = (manifest.task, manifest.number)
    assert parse_manifest_name(manifest.new_name()) == (commit, counts_of(manifest.entries))


def test_names_of_the_commits_of_a_task_are_in_their_order() -> None:
    """If a task ran twice, the earlier commits count, and the names decide which they are."""
    names = [Manifest(3, number, [], [], []).new_name() for number in (0, 1, 9, 10, 9999)]
    assert names == sorted(names)


def test_manifest_names_are_unique() -> None:
    """A retried task does not reuse its name either, so no manifest is ever overwritten."""
    manifest = Manifest(3, 0, [entry([(0, 0, 5)])], [], [])
    assert manifest.new_name() != manifest.new_name()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "report.json",
        "start.json",
        "closed",
        "00000001.1.2.3.4.deadbeef.json",
        "00000001-0000.1.2.3.4.json",
        "00000001-0000.1.2.3.deadbeef.json",
        "00000001-0000.1.2.3.4.5.6.deadbeef.json",
        "00000001-0000.1.2.3.4.deadbeef",
        "1-0000.1.2.3.4.deadbeef.json",
        "00000001-0.1.2.3.4.deadbeef.json",
        ".00000001-0000.1.2.3.4.deadbeef.json.tmp",
        "00000001-0000.1.2.3.4.deadbeef.json.tmp",
        "0000000a-0000.1.2.3.4.deadbeef.json",
        "00000001-000a.1.2.3.4.deadbeef.json",
        "00000001-0000.-1.2.3.4.deadbeef.json",
        "00000001-0000.1.2.3.4.deadbee.json",
    ],
)
def test_other_names_are_ignored(name: str) -> None:
    assert parse_manifest_name(name) is None


def test_parts_of_rows_add_up_to_rows() -> None:
    half = FULL_SHARE // 2
    parts = [entry(shares=[(0, 1, half)]), entry(shares=[(0, 1, half), (0, 2, half)])]
    assert counts_of([entry([(0, 3, 5)]), *parts]).read == 3


def test_ranges_are_stored_without_a_copy_of_each() -> None:
    """There may be millions of ranges after failed rows were retried."""
    given = entry([(0, row, row + 1) for row in range(0, 99, 2)])
    assert given.as_json()["row_ranges"] is given.row_ranges

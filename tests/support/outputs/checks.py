"""Checks of the output of the small job (see jobs/without_ray.py), by its files alone."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from batchinference.pipeline.commit.job_pass import JobPass, is_work_file
from batchinference.pipeline.commit.lease import read_lease
from batchinference.pipeline.commit.manifest import parse_manifest_name
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.storage.location import Location
from batchinference.spec.report import JobState, Report
from support.jobs.without_ray import COUNTS, ERRORS, ROWS
from support.outputs.rows import Row

SCHEMA = pa.schema([("n", pa.int64()), ("values", pa.int64()), ("half", pa.float64())])
_STATE = {"job.json", "spec.json", "input.parquet", "code.json", "output.json", "report.json"}
_PAGE = "report.html"
"""Written after `_SUCCESS`, so a job that is killed there does not have it."""


@dataclass(frozen=True)
class OutputFaults:
    """An output on disk. `state` is the folder of the job's own files. `others` and `files` are
    rows and files that existed before the job and remain. The job removes the rows `replaced`."""

    output: Path
    state: str = "_batchinference"
    others: tuple[Row, ...] = ()
    files: frozenset[str] = frozenset()
    replaced: tuple[Row, ...] = ()

    def at_any_moment(self) -> Iterator[str]:
        """Yield faults that must never occur: rows that count twice, foreign rows, or a success
        mark on an incomplete output."""
        counted = Counter(map(_key, self.rows(but=self._uncounted())))
        yield from (f"twice: {row}" for row, count in counted.items() if count > 1)
        counts = Counter(map(_key, self.rows()))
        allowed = {_key(row) for row in [*ROWS, *self.others, *self.replaced]}
        yield from (f"foreign: {row}" for row in counts if row not in allowed)
        yield from (f"gone: {row}" for row in map(_key, self.others) if row not in counts)
        old = self.replaced and counts == Counter(map(_key, self.replaced))
        if (self.output / self._success).exists() and not old:
            yield from self.at_the_end()

    def at_the_end(self) -> Iterator[str]:
        """Yield faults that must not exist when the job has ended."""
        if not (self.output / self._success).exists():
            yield "no _SUCCESS"
        yield from _differences("rows", self.rows(), [*ROWS, *self.others])
        yield from _differences("errors", self.errors(), _ERRORS)
        yield from self.wrong_files()
        report = Report.parse((self.output / self.state / "report.json").read_bytes())
        counts = report.counts and report.counts.model_dump(exclude_none=True)
        if (report.state, counts) != (JobState.SUCCEEDED, COUNTS | {"warned": 0}):
            yield f"report: {report.state} {counts}"

    @property
    def _success(self) -> str:
        return "_SUCCESS" if self.state == "_batchinference" else f"{self.state}/_SUCCESS"

    def rows(self, but: frozenset[str] = frozenset()) -> list[Row]:
        """Return the rows that a plain reader sees, without the rows of the files `but`."""
        if not self.output.exists():
            return []
        data = ds.dataset(self.output, SCHEMA, "parquet", partitioning="hive")
        rows: list[Row] = data.to_table(columns=[*SCHEMA.names, "__filename"]).to_pylist()
        files = [Path(row.pop("__filename")) for row in rows]
        return [
            row
            for row, file in zip(rows, files, strict=True)
            if str(file.relative_to(self.output)) not in but
        ]

    def _uncounted(self) -> frozenset[str]:
        """Return the data files of passes that the state does not name: they are written before
        they count, and deleted after they were replaced."""
        if not (self.output / "_batchinference").exists():
            return frozenset()
        counted, works = set(), set()
        output = Location(str(self.output))
        state = output / "_batchinference"
        base = Layout("", output, state, state / "errors")
        for layout in (base, *base.all_appended()):
            if (lease := read_lease(layout)) is not None and lease.begun:
                end = JobPass(replace(layout, key=lease.key), lease).load_committed()
                counted |= {file.name for entry in end.entries for file in entry.data}
                works.add(lease.key)
        parts = {name for name in self.names() if any(is_work_file(name, key) for key in works)}
        return frozenset(parts - counted)

    def errors(self) -> list[Row]:
        files = (self.output / self.state / "errors").glob("part-*")
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        return [{"row": row["row"], "path": Path(row["path"]).name} for row in rows]

    def wrong_files(self) -> Iterator[str]:
        """Yield files that output.json does not name, and files that differ from it."""
        entries = json.loads((self.output / self.state / "output.json").read_bytes())["entries"]
        data = {file["name"]: file for entry in entries for file in entry["data"]}
        errors = [entry["errors"] for entry in entries if entry["errors"]]
        named = data | {f"{self.state}/errors/{file['name']}": file for file in errors}
        there = self.names()
        known = {*named, *self.files, *(f"{self.state}/{name}" for name in _STATE), self._success}
        extra = there - known - {f"{self.state}/{_PAGE}"}
        kept = ("/attempts/", "/history/", "/logs/")  # also those of killed runs
        yield from (f"too many: {name}" for name in extra if not any(map(name.__contains__, kept)))
        yield from (f"missing: {name}" for name in known - there)
        for name in named.keys() & there:
            content = (self.output / name).read_bytes()
            if (len(content), zlib.crc32(content)) != (named[name]["bytes"], named[name]["crc32"]):
                yield f"differs from output.json: {name}"

    def names(self) -> set[str]:
        """Return all files except hidden ones, which were never completed."""
        files = {str(path.relative_to(self.output)): path for path in self.output.rglob("*")}
        return {
            name
            for name, path in files.items()
            if path.is_file() and (path.name[0] != "." or ".part-" in name)
        }

    def rows_processed_again(self) -> int:
        """Count rows that were committed more than once, whether or not the output has them."""
        names = (name.split("/")[-1] for name in self.names() if "/attempts/" in name)
        committed = [name[1] for name in map(parse_manifest_name, names) if name]
        done = sum(counts.written + counts.failed + counts.filtered for counts in committed)
        return done - sum(COUNTS.values()) + COUNTS["read"]


_ERRORS = [{"row": int(n) - 4, "path": name} for n, name in ERRORS]


def _differences(what: str, rows: list[Row], wanted: list[Row]) -> Iterator[str]:
    left, right = Counter(map(_key, rows)), Counter(map(_key, wanted))
    if left - right:
        yield f"{what} too many: {dict(left - right)}"
    if right - left:
        yield f"{what} missing: {dict(right - left)}"


def _key(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)

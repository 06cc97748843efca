"""Opens the input of a job. FileInput is an input of files, or of the data files of a table."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from batchinference.pipeline.column_names import check_names
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import NO_ENDS, JobInput, ReadNote, ReadRows, RowCount
from batchinference.pipeline.input.changed_files import (
    NO_CHANGES,
    FileChanges,
    ProcessedFiles,
    ReplacementRule,
    ResumedInput,
)
from batchinference.pipeline.input.file_rows import FileRows
from batchinference.pipeline.input.ignored_files import IgnoredFiles
from batchinference.pipeline.input.input_snapshot import (
    InputFile,
    InputSnapshot,
    read_own_snapshot,
    read_snapshot,
)
from batchinference.pipeline.input.listing import list_existing, list_input
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.planning import (
    COUNTED_FILES,
    FILE_COST,
    count_rows,
    counted_files,
    parts_of,
    prepare_reader,
    sample,
    tasks_of,
    with_row_counts,
    within_gaps,
)
from batchinference.pipeline.input.readers import (
    BadRow,
    DivisibleReader,
    FileStats,
    Reader,
    size_of,
    take_rows,
)
from batchinference.pipeline.input.readers.kinds import reader_for
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.storage.arrow_files import table_in
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import FileOptions, Read, ReadFiles, ReadVersioned

if TYPE_CHECKING:
    from batchinference.pipeline.commit.output_targets import OutputTarget
    from batchinference.pipeline.commit.pass_plan import PassPlan

REREAD_BYTES = 4 << 20
"""Some readers must read a file from the beginning for each part. Their files are divided up to
this total size, stored and in memory."""
MAX_DELAY = 0.5
"""How much longer read tasks of unequal size may take, as a fraction of the time of equal tasks.
Unequal tasks take longer: CPUs are idle while the largest task runs."""


def open_input(
    read: Read, earlier: ResumedInput | ProcessedFiles | None = None, failing: Collection[str] = ()
) -> JobInput:
    """Return the input of a job. `earlier` is the input snapshot of the job to resume, or the files
    that earlier runs have processed. Rows with a warning whose name is in `failing` become failed
    rows. Raises BadInput, for example if a file has changed since `earlier`. Raises NoNewFiles if
    no file is new."""
    if isinstance(read, ReadFiles):
        return open_files(read, earlier=earlier, failing=failing)
    if isinstance(read, ReadVersioned):
        return open_versioned(read, earlier, failing)
    from batchinference.pipeline.input.sources.kinds import open_table  # saves memory in `verify`

    return open_table(read)


def open_at_output(spec: BatchInferenceSpec, target: OutputTarget, plan: PassPlan) -> JobInput:
    """Return the input of a job. A job that resumes reads the files in its stored input snapshot.
    Otherwise, a job reads files that its earlier outputs lack. Raises like `open_input`."""
    read, start = spec.read, plan.start
    earlier: ResumedInput | ProcessedFiles | None = None
    if spec.write.mode == "addColumn" and start is not None:
        read = _pinned(read, plan.state.layout.input)
    if not isinstance(read, ReadFiles | ReadVersioned):
        return open_input(read, None, spec.errors.failing_warnings)
    if start is not None and (lease := plan.state.lease):
        job_pass = JobPass(plan.state.layout, lease)
        snapshot, relisted = read_own_snapshot(job_pass, read.storage, start.input)
        unfinished = lambda each: start.missing_rows(len(snapshot), each)  # noqa: E731
        earlier = ResumedInput(snapshot, unfinished, rule_of(spec), relisted)
    elif processed := target.processed:  # in a variable, because each access reads the storage
        snapshots = [read_snapshot(file, read.storage) for file in processed]
        earlier = ProcessedFiles(snapshots, rule_of(spec))
    source = open_input(read, earlier, spec.errors.failing_warnings)
    if isinstance(read, ReadVersioned) and spec.write.mode == "append":
        from batchinference.pipeline.input.tables.kinds import check_additions

        check_additions(read, cast(FileInput, source).snapshot)
    return source


def _pinned(read: Read, stored: Location) -> Read:
    """Return the read configuration with the version of Lance data in a stored input snapshot."""
    version = int(table_in(stored, ["version"])["version"][0].as_py().partition("-")[0])
    options = read.options.model_copy(update={"version": version})
    return read.model_copy(update={"options": options})


def rule_of(spec: BatchInferenceSpec) -> ReplacementRule:
    """Return the rule of a job for the rows of changed and deleted files."""
    read, possible = spec.read, spec.why_not_replaced is None
    if not isinstance(read, ReadFiles):
        return ReplacementRule()
    recomputes, removes = read.on_change == "recompute", read.on_delete == "removeRows"
    return ReplacementRule(recomputes, removes, possible)


def has_changes(spec: BatchInferenceSpec) -> Callable[[Layout], bool]:
    """Return a function that tells whether a complete output has rows to replace: rows of changed
    or deleted files. Its first call lists the input, and may raise BadInput."""
    read, rule = spec.read, rule_of(spec)
    if not isinstance(read, ReadFiles) or read.replaces_rows is None:
        return lambda _: False
    now = cache(partial(_list_now, read))

    def differs(output: Layout) -> bool:
        changes = FileChanges.between(read_snapshot(output.input, read.storage), now())
        return bool((rule.recomputes and changes.changed) or (rule.removes and changes.gone))

    return differs


def _list_now(read: ReadFiles) -> InputSnapshot:
    """Return the current files. A missing path is an error if rows of deleted files are removed
    (`read.onDelete`), because the path may be wrong."""
    removes = read.on_delete == "removeRows"
    return list_input(read) if removes else list_existing(read.storage, *read.paths)


def open_files(
    read: ReadFiles,
    sampled: int | None = None,
    earlier: ResumedInput | ProcessedFiles | None = None,
    failing: Collection[str] = (),
) -> FileInput:
    """Return the files of a read configuration as an input. Inspects `sampled` files (by default as
    many as the reader needs). Raises like `open_input`."""
    options = read.options
    reader = reader_for(read)  # type: ignore[arg-type]
    changes = NO_CHANGES
    if isinstance(earlier, ResumedInput):
        changes = earlier.check(_list_now(read), _rows_each(reader))
        snapshot = changes.applied(earlier.snapshot)
    else:
        snapshot = list_input(read)
        snapshot = earlier.without(snapshot) if earlier else snapshot
    snapshot = replace(snapshot, root=snapshot.root.contained_in(read.paths))
    missing = changes.gone | snapshot.removed
    existing = [file for file in snapshot.files() if file.number not in missing]
    counted = bool(snapshot.stats) and not changes
    changed = [file for file in existing if file.number in changes.changed]
    snapshot, rows = prepared(read, snapshot, existing, failing, sampled, changed)
    if len(snapshot):
        names = rows.reader.columns() or []
        check_names(names, snapshot.uris[0])
        rows.path_columns.check(names, snapshot.uris[0])
    if not isinstance(earlier, ResumedInput):
        snapshot = limited(snapshot, rows, options.limit)
    return FileInput(snapshot, rows, options, counted=counted, changes=changes)


def open_versioned(
    read: ReadVersioned,
    earlier: ResumedInput | ProcessedFiles | None,
    failing: Collection[str] = (),
) -> FileInput:
    """Return the input of a job that reads a table. Raises as `list_table` does."""
    from batchinference.pipeline.input.tables.kinds import list_table

    snapshot = list_table(read, earlier)
    counted = bool(snapshot.stats)
    snapshot, rows = prepared(read, snapshot, snapshot.files(), failing)
    if not isinstance(earlier, ResumedInput):
        snapshot = limited(snapshot, rows, read.options.limit)
    return FileInput(snapshot, rows, FileOptions(), counted=counted)


def prepared(
    read: ReadFiles | ReadVersioned,
    snapshot: InputSnapshot,
    files: list[InputFile],
    failing: Collection[str] = (),
    sampled: int | None = None,
    changed: Sequence[InputFile] = (),
) -> tuple[InputSnapshot, FileRows]:
    """Return the snapshot with the statistics of inspected files, and the reader of its rows. At
    most `sampled` of `files`, and `sampled` of `changed`, are inspected. By default, the reader
    chooses this number."""
    if isinstance(read, ReadVersioned):
        from batchinference.pipeline.input.tables.kinds import reader_of

        path_columns, reader = PathColumns(), cast(Reader, reader_of(read, snapshot.version))
    else:
        path_columns = PathColumns.of(read.options, snapshot.uris)
        reader = reader_for(_without_types(read, path_columns.types))  # type: ignore[arg-type]
    count = sampled or reader.sampled_files
    samples = sample(files, count), sample(list(changed), count)
    snapshot = prepare_reader(snapshot, reader, *samples)
    fails = isinstance(read, ReadFiles) and read.on_change == "fail"
    rows = FileRows(snapshot.root, reader, path_columns, failing, fails_on_change=fails)
    return snapshot, rows


def _without_types(read: ReadFiles, keys: Container[str]) -> ReadFiles:
    """Return a read configuration without the declared types of the partition keys `keys`. Raises
    BadInput if types of other columns are declared although files of this format define them."""
    options = read.options
    types = {name: kind for name, kind in (options.types or {}).items() if name not in keys}
    if types and not options.TYPES_OF_COLUMNS:
        raise BadInput(
            f"read.options.types.{next(iter(types))}: it is not a partition key, and files of this "
            "format define the types of their columns. Remove it"
        )
    options = options.model_copy(update={"types": types or None})
    return read.model_copy(update={"options": options})


@dataclass
class FileInput(JobInput):
    """An input of files. Each file in the input snapshot is a part.

    `counted` tells whether the snapshot has the file statistics that `count` needs. For
    `reread_bytes` and `max_counted`, see REREAD_BYTES and COUNTED_FILES."""

    snapshot: InputSnapshot
    rows: FileRows
    options: FileOptions
    repeatable: bool = True
    counted: bool = False
    changes: FileChanges = NO_CHANGES
    """The changed and deleted files. The rows of `changed` and `removed` files are replaced."""
    reread_bytes: int = REREAD_BYTES
    max_counted: int = COUNTED_FILES
    _largest_part: float | None = None
    """The fraction of the input that the largest part of a file had in the last `read_tasks`. It is
    0 if the parts were about equal. It is None if files were not divided."""
    _first: MissingRows | None = None
    """The cached result of `first_rows`. A job always calls this method with the same `count`."""

    def __len__(self) -> int:
        return len(self.snapshot)

    @property
    def size(self) -> int:
        return self.snapshot.size

    @property
    def remarks(self) -> list[str]:
        """Remarks for the user: which files are not read, and which columns some files lack."""
        return [text for text in (self.ignored.text, self.rows.reader.lacking) if text]

    @property
    def ignored(self) -> IgnoredFiles:
        return self.snapshot.ignored

    @property
    def rows_each(self) -> int | None:
        return _rows_each(self.rows.reader)

    def columns(self) -> list[str] | None:
        known = self.rows.reader.columns()
        return None if known is None else [*dict.fromkeys([*known, *self.rows.path_columns.names])]

    def types(self) -> dict[str, pa.DataType]:
        """Return the types of the columns whose type is known before the rows are read."""
        columns = self.rows.path_columns
        partitions = {key: arrow_type(kind) for key, kind in columns.types.items()}
        path = {columns.path_name: pa.string()} if columns.path_name else {}
        return {**self.rows.reader.types(), **partitions, **path}

    def count(self, ends: Mapping[int, int] = NO_ENDS) -> RowCount | None:
        if self.snapshot.rows is not None:
            return RowCount(self.snapshot.rows, estimated=False)
        reader = self.rows.reader
        if _has_stats(reader) and not self.counted:
            counted = counted_files(self.snapshot, self.max_counted)
            files = [file for file in counted if file.number not in ends]
            self.snapshot, self.counted = with_row_counts(self.snapshot, reader, files), True
        return count_rows(self.snapshot, reader, ends)

    def share(self, gaps: MissingRows | None) -> float:
        if not gaps:
            return float(gaps is None)
        costs = [file.size + FILE_COST for file in self.snapshot.files()]
        return sum(costs[number] for number in gaps) / sum(costs)

    def first_rows(self, count: int, ends: Mapping[int, int]) -> MissingRows:
        if self._first is None:
            known = self.snapshot.rows is not None
            snapshot = self.snapshot if known else limited(self.snapshot, self.rows, count)
            before = np.cumsum([0, *(file.rows or 0 for file in snapshot.files())]).tolist()
            counts = (max(0, min(after, count) - start) for start, after in pairwise(before))
            self._first = {file: [(0, rows)] for file, rows in enumerate(counts) if rows}
        return self._first

    def serialized(self) -> bytes:
        return self.snapshot.serialized()

    def has_ids_of(self, before: str) -> bool:
        return True  # a resumed job reads the stored input snapshot

    def path_inside(self, directory: Location) -> str | None:
        if not directory.in_store_of(self.snapshot.root):
            return None
        import pyarrow.compute as pc  # slow, and not needed by most commands that only read

        paths = self.snapshot.table.column("path")
        inside = paths.filter(pc.starts_with(paths, directory.path.rstrip("/") + "/"))
        return str(inside[0]) if len(inside) else None

    def read_tasks(
        self, tasks: int, gaps: MissingRows | None = None, note: ReadNote = nullcontext
    ) -> list[ReadRows]:
        """Return read tasks of adjacent files, in the reading order (see `shuffle`)."""
        files = [file for file in self.snapshot.files() if gaps is None or file.number in gaps]
        if self.options.shuffle == "files":
            random.Random(self.options.shuffle_seed).shuffle(files)  # noqa: S311 - not for security
        if len(files) < tasks:
            files = self._divide_if_cheap(files, tasks)
        if gaps is not None:
            files = within_gaps(files, gaps, self.rows.reader)
        rows = replace(self.rows, note=note)
        return [partial(rows.read, task_files) for task_files in tasks_of(files, tasks)]

    def divisible(self, tasks: float) -> bool:
        if isinstance(self.rows.reader, WholeFileReader):
            return True
        if self._largest_part is None:
            return isinstance(self.rows.reader, DivisibleReader)
        return (tasks - 1) * self._largest_part <= MAX_DELAY

    def _divide_if_cheap(self, files: list[InputFile], tasks: int) -> list[InputFile]:
        """Return the files, divided into about `tasks` parts if dividing them is cheap."""
        parts, self._largest_part = self._divide_at_starts(files, tasks)
        if self._largest_part:
            small = self._small_file_stats(files)
            if small is not None:
                parts, self._largest_part = parts_of(files, small, tasks), 0.0
        return parts

    def _divide_at_starts(
        self, files: list[InputFile], tasks: int
    ) -> tuple[list[InputFile], float]:
        """Return the files, divided at rows where the reader can start, and the value for
        `_largest_part`. This is 1 if the reader can only start at the beginning of a file."""
        reader = self.rows.reader
        if not isinstance(reader, DivisibleReader):
            return files, 1.0
        stats = with_row_counts(self.snapshot, reader, files).stats
        parts = parts_of(files, stats, tasks)
        equal = {number: FileStats(known.rows) for number, known in stats.items()}
        if 2 * len(parts) > len(parts_of(files, equal, tasks)):
            return parts, 0.0
        sizes = [part.size for part in parts]
        return parts, max(sizes, default=0) / max(1, sum(sizes))

    def _small_file_stats(self, files: list[InputFile]) -> dict[int, FileStats] | None:
        """Return the numbers of rows of the files; None for a WholeFileReader, or for files of more
        than `reread_bytes`. Headers are not used: a damaged header may state too many rows."""
        bytes_left = self.reread_bytes
        size = sum(file.size for file in files)
        if isinstance(self.rows.reader, WholeFileReader) or size > bytes_left:
            return None
        stats = {}
        for file in files:
            rows = 0
            for chunk in self.rows.chunks(file):
                rows += size_of(chunk)
                bytes_left -= 0 if isinstance(chunk, BadRow) else chunk.nbytes
                if bytes_left < 0:
                    return None  # such as for a compressed file or a video
            stats[file.number] = FileStats(rows)
        return stats


def _has_stats(reader: Reader) -> bool:
    return reader.rows_exact and not isinstance(reader, WholeFileReader)


def _rows_each(reader: Reader) -> int | None:
    return 1 if isinstance(reader, WholeFileReader) else None


def limited(snapshot: InputSnapshot, rows: FileRows, limit: int | None) -> InputSnapshot:
    """Return the input snapshot cut to the first `limit` rows; unchanged if `limit` is None. Files
    are read to count their rows if the reader has no exact file statistics."""
    if limit is None or not len(snapshot):
        return snapshot
    snapshot = _with_first_rows(snapshot, rows.reader, limit)
    stats, rows_left, counts, size = snapshot.stats, limit, [], 0
    for file in snapshot.files():
        available = _rows_up_to(rows_left, file, rows, stats)
        counts.append(min(rows_left, available))
        size = round(file.size * counts[-1] / max(1, available))
        rows_left -= counts[-1]
        if rows_left == 0:
            break
    return snapshot.limited(counts, size)


def _with_first_rows(snapshot: InputSnapshot, reader: Reader, limit: int) -> InputSnapshot:
    """Return the snapshot with statistics of its first files, which together have `limit` rows."""
    files = [file for file in snapshot.files() if file.rows != 0] if _has_stats(reader) else []
    rows = start = 0
    while rows < limit and start < len(files):
        next_files = files[start : start + max(1, start)]  # each round takes twice as many
        snapshot = with_row_counts(snapshot, reader, next_files)
        rows += sum(snapshot.stats[file.number].rows for file in next_files)
        start += len(next_files)
    return snapshot


def _rows_up_to(limit: int, file: InputFile, rows: FileRows, known: Mapping[int, FileStats]) -> int:
    """Return the number of rows of a file. If the file must be read, stop after `limit` rows."""
    if file.rows == 0:
        return 0
    if file.number in known:
        return known[file.number].rows
    if (each := _rows_each(rows.reader)) is not None:
        return each
    counted = replace(rows, reader=rows.reader.counter())
    return sum(size_of(chunk) for chunk in take_rows(limit, counted.chunks(file)))


def known_columns(source: JobInput) -> pa.Schema:
    """Return those columns of an input that are known before reading. An unknown type is null."""
    types = source.types() if isinstance(source, FileInput) else {}
    return pa.schema([(name, types.get(name, pa.null())) for name in source.columns() or ()])

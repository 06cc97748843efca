"""Opens the input of a job, which is files or a table, and divides files into read tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import cast

import numpy as np
import pyarrow as pa

from batchinference.pipeline.column_names import check_names
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.output_plan import OutputPlan, OutputTarget
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import NOTHING, JobInput, ReadNote, ReadRows, RowCount
from batchinference.pipeline.input.ignored_files import IgnoredFiles
from batchinference.pipeline.input.listing import list_existing, list_input
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.planning import (
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
    first,
    reader_for,
    size_of,
)
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.input.scan import FileRows
from batchinference.pipeline.input.snapshot import (
    NO_CHANGES,
    FileChanges,
    InputFile,
    InputSnapshot,
    ProcessedFiles,
    ReplacementRule,
    ResumedInput,
    read_own_snapshot,
    read_snapshot,
)
from batchinference.pipeline.input.sources import open_table
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import FileOptions, Read, ReadFiles, ReadVersioned

REREAD_BYTES = 4 << 20
"""Maximum size, in files and in memory, of an input that is divided although each task must read
its files from the beginning."""
MAX_DELAY = 0.5
"""How much longer reading an input in parts may take than with parts of any size, as a fraction:
CPUs are idle while the last part is read."""


def open_input(
    read: Read,
    earlier: ResumedInput | ProcessedFiles | None = None,
    failing: Collection[str] = (),
) -> JobInput:
    """Return the input of a job, as an input that does not change.

    `earlier` is the input snapshot of the job to resume, or the files that were processed already.
    `failing` are the names of the warnings that make their rows failed rows.
    Raises BadInput if a file is missing or has changed since then, and NoNewFiles if all files were
    processed before."""
    if isinstance(read, ReadFiles):
        return open_files(read, earlier=earlier, failing=failing)
    if isinstance(read, ReadVersioned):
        return open_versioned(read, earlier, failing)
    return open_table(read)


def open_at_output(spec: BatchInferenceSpec, target: OutputTarget, plan: OutputPlan) -> JobInput:
    """Return the input of the job: the files of the output to resume, or those whose rows are not
    in other outputs of the work.

    Raises BadInput and NoNewFiles like `open_input`."""
    read, start = spec.read, plan.start
    earlier: ResumedInput | ProcessedFiles | None = None
    if spec.write.mode == "addColumn" and start is not None:
        read = _pinned(read, plan.state.layout.input)
    if not isinstance(read, ReadFiles | ReadVersioned):
        return open_input(read, None, spec.errors.failing_warnings)
    if start is not None and (lease := plan.state.lease):
        attempt = Attempt(plan.state.layout, lease)
        frozen, relisted = read_own_snapshot(attempt, read.storage, start.input)
        unfinished = lambda each: start.missing_rows(len(frozen), each)  # noqa: E731
        earlier = ResumedInput(frozen, unfinished, rule_of(spec), relisted)
    elif places := target.processed:
        lists = [read_snapshot(place, read.storage) for place in places]
        earlier = ProcessedFiles(lists, rule_of(spec))
    source = open_input(read, earlier, spec.errors.failing_warnings)
    if isinstance(read, ReadVersioned) and spec.write.mode == "append":
        from batchinference.pipeline.input.tables import check_additions

        check_additions(read, cast(FileInput, source).frozen)
    return source


def _pinned(read: Read, snapshot: Location) -> Read:
    """Return the read of the version of a Lance dataset that an input snapshot has."""
    stored = read_table(pa.BufferReader(snapshot.read()), ["version"])
    version = int(stored["version"][0].as_py().partition("-")[0])
    options = read.options.model_copy(update={"version": version})
    return read.model_copy(update={"options": options})


def rule_of(spec: BatchInferenceSpec) -> ReplacementRule:
    """Return what happens to the rows of files that have changed or are gone."""
    read, possible = spec.read, spec.why_not_replaced is None
    if not isinstance(read, ReadFiles):
        return ReplacementRule()
    recomputes, removes = read.on_change == "recompute", read.on_delete == "removeRows"
    return ReplacementRule(recomputes, removes, possible)


def has_changes(spec: BatchInferenceSpec) -> Callable[[Layout], bool]:
    """Return a function that returns whether rows of a complete output must be replaced. The input
    is listed once.

    Raises BadInput if it cannot be listed."""
    read, rule = spec.read, rule_of(spec)
    if not isinstance(read, ReadFiles) or read.replaces_rows is None:
        return lambda _: False
    now = cache(partial(_list_now, read))

    def differs(output: Layout) -> bool:
        changes = FileChanges.between(read_snapshot(output.input, read.storage), now())
        return bool((rule.recomputes and changes.changed) or (rule.removes and changes.gone))

    return differs


def _list_now(read: ReadFiles) -> InputSnapshot:
    """Return the files that are there now. If the rows of missing files are removed, a path must
    not be missing."""
    removes = read.on_delete == "removeRows"
    return list_input(read) if removes else list_existing(read, read.storage)


def open_files(
    read: ReadFiles,
    sampled: int | None = None,
    earlier: ResumedInput | ProcessedFiles | None = None,
    failing: Collection[str] = (),
) -> FileInput:
    """Return the input for a read configuration: list the files and inspect `sampled` of them, by
    default as many as the reader needs.

    Raises BadInput if a path is missing or a file has changed since it was read. Raises NoNewFiles
    if all files were processed before."""
    options = read.options
    reader = reader_for(read)  # type: ignore[arg-type]
    resumes = isinstance(earlier, ResumedInput)
    changes = NO_CHANGES
    if isinstance(earlier, ResumedInput):
        changes = earlier.check(_list_now(read), _rows_each(reader))
        frozen = changes.applied(earlier.frozen)
    else:
        frozen = list_input(read)
        frozen = earlier.without(frozen) if earlier else frozen
    frozen = replace(frozen, root=frozen.root.contained_in(read.paths))
    missing = changes.gone | frozen.removed
    existing = [file for file in frozen.files() if file.number not in missing]
    counted = bool(frozen.stats) and not changes
    changed = [file for file in existing if file.number in changes.changed]
    frozen, rows = prepared(read, frozen, existing, failing, sampled, changed)
    if len(frozen):
        names = rows.reader.columns() or []
        check_names(names, frozen.uris[0])
        rows.path_columns.check(names, frozen.uris[0])
    if not resumes:
        frozen = limited(frozen, rows, options.limit)
    return FileInput(frozen, rows, options, counted=counted, changes=changes)


def open_versioned(
    read: ReadVersioned,
    earlier: ResumedInput | ProcessedFiles | None,
    failing: Collection[str] = (),
) -> FileInput:
    """Return the input of a job that reads a table. Raises as `list_table` does."""
    from batchinference.pipeline.input.tables import list_table

    frozen = list_table(read, earlier)
    counted = bool(frozen.stats)
    frozen, rows = prepared(read, frozen, frozen.files(), failing)
    if not isinstance(earlier, ResumedInput):
        frozen = limited(frozen, rows, read.options.limit)
    return FileInput(frozen, rows, FileOptions(), counted=counted)


def prepared(
    read: ReadFiles | ReadVersioned,
    frozen: InputSnapshot,
    files: list[InputFile],
    failing: Collection[str] = (),
    sampled: int | None = None,
    changed: Sequence[InputFile] = (),
) -> tuple[InputSnapshot, FileRows]:
    """Return the snapshot with the statistics of the files that were inspected, and the reader of
    the rows. At most `sampled` files are inspected, by default as many as the reader needs, and as
    many of the files that have `changed`."""
    if isinstance(read, ReadVersioned):
        from batchinference.pipeline.input.tables import reader_of

        path_columns, reader = PathColumns(), cast(Reader, reader_of(read, frozen.version))
    else:
        path_columns = PathColumns.of(read.options, frozen.uris)
        reader = reader_for(_without_types(read, path_columns.types))  # type: ignore[arg-type]
    most = sampled or reader.sampled_files
    frozen = prepare_reader(frozen, reader, sample(files, most), sample(list(changed), most))
    return frozen, FileRows(frozen.root, reader, path_columns, failing)


def _without_types(read: ReadFiles, keys: Container[str]) -> ReadFiles:
    """Return a read configuration without the types of partition values. Raises BadInput if it
    still declares types, and its format defines them."""
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
class FileInput:
    """An input of files, as listed in the input snapshot. Each file is a part.

    `counted` says whether the snapshot has the statistics of all files that `count` needs."""

    frozen: InputSnapshot
    rows: FileRows
    options: FileOptions
    repeatable: bool = True
    counted: bool = False
    changes: FileChanges = NO_CHANGES
    """The files that have changed or are gone since the output began, whose rows are replaced."""
    _largest_part: float | None = None
    """The largest part into which the last read tasks divided the input, as a fraction of it. 0 if
    they could divide it evenly, None if they did not try."""
    _first: MissingRows | None = None
    """The rows that `first_rows` has found."""

    def __len__(self) -> int:
        return len(self.frozen)

    @property
    def size(self) -> int:
        return self.frozen.size

    @property
    def remarks(self) -> list[str]:
        """What the user should know about the files: those that are not read, and columns that
        files lack."""
        return [text for text in (self.ignored.text, self.rows.reader.lacking) if text]

    @property
    def ignored(self) -> IgnoredFiles:
        return self.frozen.ignored

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

    def count(self, ends: Mapping[int, int] = NOTHING) -> RowCount | None:
        if self.frozen.rows is not None:
            return RowCount(self.frozen.rows, estimated=False)
        reader = self.rows.reader
        if _has_stats(reader) and not self.counted:
            files = [file for file in counted_files(self.frozen) if file.number not in ends]
            self.frozen, self.counted = with_row_counts(self.frozen, reader, files), True
        return count_rows(self.frozen, reader, ends)

    def share(self, gaps: MissingRows | None) -> float:
        if not gaps:
            return float(gaps is None)
        costs = [file.size + FILE_COST for file in self.frozen.files()]
        return sum(costs[number] for number in gaps) / sum(costs)

    def first_rows(self, most: int, ends: Mapping[int, int]) -> MissingRows:
        if self._first is None:
            known = self.frozen.rows is not None
            frozen = self.frozen if known else limited(self.frozen, self.rows, most)
            before = np.cumsum([0, *(file.rows or 0 for file in frozen.files())]).tolist()
            counts = (max(0, min(after, most) - start) for start, after in pairwise(before))
            self._first = {file: [(0, count)] for file, count in enumerate(counts) if count}
        return self._first

    def serialized(self) -> bytes:
        return self.frozen.serialized()

    def continues(self, before: str) -> bool:
        return True  # a resumed job reads the stored input snapshot, so the ids are the same

    def below(self, place: Location) -> str | None:
        if not place.in_store_of(self.frozen.root):
            return None
        import pyarrow.compute as pc  # commands that only read need it rarely

        paths = self.frozen.table.column("path")
        inside = paths.filter(pc.starts_with(paths, place.path.rstrip("/") + "/"))
        return str(inside[0]) if len(inside) else None

    def read_tasks(
        self, tasks: int, gaps: MissingRows | None = None, note: ReadNote = nullcontext
    ) -> list[ReadRows]:
        """Return the read tasks. Each reads files that are adjacent in the reading order."""
        files = [file for file in self.frozen.files() if gaps is None or file.number in gaps]
        if self.options.shuffle == "files":
            random.Random(self.options.shuffle_seed).shuffle(files)  # noqa: S311 - not for security
        if len(files) < tasks:
            files = self._divide_if_cheap(files, tasks)
        if gaps is not None:
            files = within_gaps(files, gaps, self.rows.reader)
        rows = replace(self.rows, note=note)
        return [partial(rows.read, chosen) for chosen in tasks_of(files, tasks)]

    def divisible(self, tasks: float) -> bool:
        if isinstance(self.rows.reader, WholeFileReader):
            return True
        if self._largest_part is None:
            return isinstance(self.rows.reader, DivisibleReader)
        return (tasks - 1) * self._largest_part <= MAX_DELAY

    def _divide_if_cheap(self, files: list[InputFile], tasks: int) -> list[InputFile]:
        """Return the files, divided into about `tasks` parts if that is cheap."""
        parts, self._largest_part = self._divide_at_starts(files, tasks)
        if self._largest_part:
            small = self._small_file_stats(files)
            if small is not None:
                parts, self._largest_part = parts_of(files, small, tasks), 0.0
        return parts

    def _divide_at_starts(
        self, files: list[InputFile], tasks: int
    ) -> tuple[list[InputFile], float]:
        """Return the files, divided where the reader can start directly, and `_largest_part`. It is
        1 if the reader must start at the beginning of a file."""
        reader = self.rows.reader
        if not isinstance(reader, DivisibleReader):
            return files, 1.0
        stats = with_row_counts(self.frozen, reader, files).stats
        parts = parts_of(files, stats, tasks)
        at_any_row = {number: FileStats(known.rows) for number, known in stats.items()}
        if 2 * len(parts) > len(parts_of(files, at_any_row, tasks)):
            return parts, 0.0
        sizes = [part.size for part in parts]
        return parts, max(sizes, default=0) / max(1, sum(sizes))

    def _small_file_stats(self, files: list[InputFile]) -> dict[int, FileStats] | None:
        """Return the statistics of files if reading them takes little memory and time, else None.
        The files are read for this, because the header of a damaged file may announce rows that it
        does not contain."""
        left = REREAD_BYTES
        if isinstance(self.rows.reader, WholeFileReader) or sum(file.size for file in files) > left:
            return None
        stats = {}
        for file in files:
            rows = 0
            for chunk in self.rows.chunks(file):
                rows += size_of(chunk)
                left -= 0 if isinstance(chunk, BadRow) else chunk.nbytes
                if left < 0:
                    return None  # a packed file, or a video
            stats[file.number] = FileStats(rows)
        return stats


def _has_stats(reader: Reader) -> bool:
    return reader.rows_exact and not isinstance(reader, WholeFileReader)


def _rows_each(reader: Reader) -> int | None:
    return 1 if isinstance(reader, WholeFileReader) else None


def limited(frozen: InputSnapshot, rows: FileRows, most: int | None) -> InputSnapshot:
    """Return the input snapshot limited to the first `most` rows, if there is a limit.

    Files are read to count their rows, unless the reader counts rows exactly without that."""
    if most is None or not len(frozen):
        return frozen
    frozen = _with_first_rows(frozen, rows.reader, most)
    known, left, counts, size = frozen.stats, most, [], 0
    for file in frozen.files():
        available = _rows_up_to(left, file, rows, known)
        counts.append(min(left, available))
        size = round(file.size * counts[-1] / max(1, available))
        left -= counts[-1]
        if left == 0:
            break
    return frozen.limited(counts, size)


def _with_first_rows(frozen: InputSnapshot, reader: Reader, most: int) -> InputSnapshot:
    """Return the snapshot with the statistics of the first files that together have `most` rows."""
    files = [file for file in frozen.files() if file.rows != 0] if _has_stats(reader) else []
    rows = start = 0
    while rows < most and start < len(files):
        chosen = files[start : start + max(1, start)]  # twice as many in each round
        frozen = with_row_counts(frozen, reader, chosen)
        rows += sum(frozen.stats[file.number].rows for file in chosen)
        start += len(chosen)
    return frozen


def _rows_up_to(most: int, file: InputFile, rows: FileRows, known: Mapping[int, FileStats]) -> int:
    """Return the number of rows of a file. If it must be read, count at most `most` rows."""
    if file.rows == 0:
        return 0
    if file.number in known:
        return known[file.number].rows
    if (each := _rows_each(rows.reader)) is not None:
        return each
    counted = replace(rows, reader=rows.reader.counter())
    return sum(size_of(chunk) for chunk in first(most, counted.chunks(file)))


def known_columns(source: JobInput) -> pa.Schema:
    """Return the columns of an input that are known before it is read. Unknown types are null."""
    types = source.types() if isinstance(source, FileInput) else {}
    names = source.columns() or ()
    return pa.schema([(name, types.get(name, pa.null())) for name in names])

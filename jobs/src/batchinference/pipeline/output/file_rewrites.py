"""Rewrites the data files of a finished output, for three reasons:

- Schemas are unified. A task knows only its own rows. Its files may lack a column. A column without
  values has the type null, and a column may have integers where other tasks have fractions. Readers
  that use the schema of the first file would fail or drop the column.
- Small files are merged. Jobs commit after a few rows to show progress.
- Rows of changed or deleted input files are removed.

The new files have new names. A snapshot then names the new files
(`JobPass.write_unified_snapshot`), the old files are deleted, and the output is complete."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.changed_input_files import merged_origins
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import Content, DataFile, ManifestEntry, warnings_of
from batchinference.pipeline.commit.output_paths import renamed_part
from batchinference.pipeline.commit.retry_failed_rows import ids_of
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.output.writers.json import TEXT
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import ROW_BITS
from batchinference.pipeline.storage.arrow_files import parquet_footer, refuse_pickles
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import damaged_state
from batchinference.pipeline.type_widening import TypeMismatch, cast_to, unify_field
from batchinference.spec.progress import Counts

SMALL_BYTES, MERGED_BYTES = 8 << 20, 32 << 20
"""Files of at most SMALL_BYTES are merged into files of at most MERGED_BYTES."""
MERGED_ROWS = 10_000
"""The maximum number of rows of a merged file. More rows would take too long in the driver."""
_UNREADABLE = (BadOutput, ValueError, MemoryError)
"""Errors of reading a file. After such an error, the entry of the file is left unchanged."""


@dataclass(frozen=True)
class OutputSchema:
    """The columns that all data files of an output will have."""

    names: tuple[str, ...]
    """All columns, in their order in each file."""
    types: pa.Schema
    """The new type of each column that some files lack or that has several types."""
    typed: bool
    """Whether files have types; otherwise, columns differ only by name."""

    @classmethod
    def of(
        cls, directory: Location, entries: list[ManifestEntry], writer: RewritingWriter
    ) -> OutputSchema:
        """Return a schema that can hold the rows of all entries. Columns have the order in which
        they first occur in the entries, sorted by input rows."""
        ordered = sorted(entries, key=lambda entry: entry.row_ranges)
        names = tuple(dict.fromkeys(name for entry in ordered for name, _ in entry.columns))
        if writer.typed:
            return cls(names, _common_types(directory, entries), typed=True)
        present = [{name for name, _ in entry.columns} for entry in entries]
        absent = set(names).difference(set(names).intersection(*present))
        texts = pa.schema([(name, TEXT) for name in names if name in absent])
        return cls(names, texts, typed=False)

    def columns(self, entry: ManifestEntry) -> list[tuple[str, str]]:
        """Return the columns and types that the files of an entry should have after a rewrite."""
        types = {field.name: str(field.type) for field in self.types}
        return self._ordered(dict(entry.columns) | types)

    def fits(self, entry: ManifestEntry) -> bool:
        """Return whether an entry's files already have the columns that `columns` returns."""
        return self.column_key(self.columns(entry)) == self.column_key(entry.columns)

    def column_key(self, columns: list[tuple[str, str]]) -> tuple[object, ...]:
        """Return a value that is equal for files with the same columns (and types, if `typed`)."""
        return tuple(columns if self.typed else [name for name, _ in columns])

    def cast(self, table: pa.Table) -> pa.Table:
        """Return the rows of a file with this schema. A column keeps its type if a value does not
        fit the new type. For example, an integer may have more digits than a float."""
        for field in self.types:
            with suppress(TypeMismatch):
                table = cast_to(table, pa.schema([field]))
        columns = dict(zip(table.column_names, table.columns, strict=True))
        return pa.table(dict(self._ordered(columns)))

    def _ordered(self, types: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(name, types[name]) for name in self.names if name in types]


@dataclass(frozen=True)
class RewriteTask:
    """Rewrites the data files of entries with the same columns. The files of several entries are
    merged into one file. Entries that cannot be merged are rewritten one by one."""

    job_pass: JobPass
    entries: list[ManifestEntry]
    schema: OutputSchema
    writer: RewritingWriter

    def __call__(self) -> list[ManifestEntry]:
        """Write the new files, and return the entries that name them.

        If another pass has begun, deletes the new file and raises BadOutput."""
        if len(self.entries) == 1:
            return [self._rewritten(self.entries[0])]
        same, others = list[ManifestEntry](), list[ManifestEntry]()
        content = self.writer.write(self._tables(same, others))
        if len(same) == 1:
            same, others = [], others + same
        merged = [self._merged(same, content)] if same else []
        return merged + list(map(self._rewritten, others))

    def _tables(self, same: list[ManifestEntry], others: list[ManifestEntry]) -> Iterator[pa.Table]:
        """Yield the rows of the entries whose files have the schema of the first readable file. Add
        these entries to `same`, and all other entries to `others`.

        Entries are read one by one, because rows may need much more memory than their file."""
        schema: pa.Schema | None = None
        for entry in self.entries:
            try:
                tables = list(map(self._table, entry.data))
            except _UNREADABLE:
                others.append(entry)
                continue
            schema = schema or tables[0].schema
            if all(schema.equals(table.schema) for table in tables):
                same.append(entry)
                while tables:
                    yield tables.pop(0)
            else:
                others.append(entry)

    def _table(self, file: DataFile) -> pa.Table:
        """Return the rows of a file. Raises BadOutput if the file has changed."""
        content = unchanged_content(self.job_pass.layout.data, file)
        return self.schema.cast(self.writer.read(content))

    def _merged(self, entries: list[ManifestEntry], content: Content) -> ManifestEntry:
        return ManifestEntry(
            Counts.sum(entry.counts for entry in entries),
            [rows for entry in entries for rows in entry.row_ranges],
            [],
            [self._put(entries[0].data[0], content)],
            self.schema.columns(entries[0]),
            _merged_errors(self.job_pass, entries),
            warnings_of(entries),
            merged_origins(entries),
        )

    def _rewritten(self, entry: ManifestEntry) -> ManifestEntry:
        if self.schema.fits(entry):
            return entry
        try:
            tables = list(map(self._table, entry.data))
        except _UNREADABLE:
            return entry
        pairs = zip(entry.data, tables, strict=True)
        data = [self._put(old, self.writer.write([table])) for old, table in pairs]
        return replace(entry, data=data, columns=self.schema.columns(entry))

    def _put(self, old: DataFile, content: Content) -> DataFile:
        return put_renamed(self.job_pass, self.job_pass.layout.data, old, content)


def put_renamed(
    job_pass: JobPass, directory: Location, old: DataFile, content: Content
) -> DataFile:
    """Write and return a new file that replaces `old`. Raises as `put_rewritten` does."""
    name = renamed_part(old.name, uuid.uuid4().hex[:8])
    return put_rewritten(job_pass, directory, name, content)


def put_rewritten(job_pass: JobPass, directory: Location, name: str, content: Content) -> DataFile:
    """Write and return a file. If another pass has begun, delete the file and raise BadOutput."""
    job_pass.check_can_rewrite()
    file = directory / name
    file.write(content)
    try:
        job_pass.check_can_rewrite()
    except BadOutput:
        file.delete()
        raise
    return DataFile.of(name, content)


def unchanged_content(directory: Location, file: DataFile) -> bytes:
    """Return the content of a file in a manifest. Raises BadOutput if the content has changed."""
    content = (directory / file.name).read()
    if DataFile.of(file.name, content) != file:
        raise BadOutput(
            f"'{(directory / file.name).uri}' has changed since it was written. Restore it, or "
            "delete the output and run the job again"
        )
    return content


def _merged_errors(job_pass: JobPass, entries: Sequence[ManifestEntry]) -> DataFile | None:
    """Write the error records of all entries to one file and return it; None if there are none."""
    directory = job_pass.layout.errors
    files = [entry.errors for entry in entries if entry.errors]
    if not files:
        return None
    writer = ParquetWriter("snappy")
    content = writer.write(writer.read(unchanged_content(directory, file)) for file in files)
    return put_renamed(job_pass, directory, files[0], content)


def fit_in_driver(tasks: Sequence[RewriteTask]) -> bool:
    """Return whether the files of these tasks are small enough to run the tasks in the driver."""
    entries = [entry for task in tasks for entry in task.entries]
    rows = sum(entry.counts.written for entry in entries)
    return sum(map(size_of, entries)) <= MERGED_BYTES and rows <= MERGED_ROWS


def rewrites(
    job_pass: JobPass,
    entries: list[ManifestEntry],
    writer: RewritingWriter,
    mergeable: Collection[str] = (),
) -> tuple[list[RewriteTask], list[ManifestEntry]]:
    """Return the rewrites to run, and the entries that need no rewrite. Only small files whose
    names are in `mergeable` are merged. Columns without a common type keep their types."""
    written = [entry for entry in entries if entry.data]
    schema = OutputSchema.of(job_pass.layout.data, written, writer)
    tasks, others = [], [entry for entry in entries if not entry.data]
    for group in _groups(written, schema, mergeable):
        if len(group) > 1 or not all(schema.fits(entry) for entry in group):
            tasks.append(RewriteTask(job_pass, group, schema, writer))
        else:
            others += group
    return tasks, others


def _groups(
    entries: list[ManifestEntry], schema: OutputSchema, mergeable: Collection[str]
) -> Iterator[list[ManifestEntry]]:
    """Yield groups of entries to merge. The entries of a group have the same columns, and are in
    the order of the input. An entry that is not merged is a group of its own."""
    small: dict[object, list[ManifestEntry]] = defaultdict(list)
    for entry in entries:
        # an entry that a retry of failed rows removes as a whole is not merged
        separate = entry.shares or (entry.errors and entry.counts.failed >= entry.counts.read)
        merges = not separate and all(file.name in mergeable for file in entry.data)
        if merges and size_of(entry) <= SMALL_BYTES and entry.counts.written < MERGED_ROWS:
            small[schema.column_key(schema.columns(entry))].append(entry)
        else:
            yield [entry]
    for group in small.values():
        yield from _fitting_groups(sorted(group, key=lambda entry: entry.row_ranges))


def _fitting_groups(entries: Iterable[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    """Yield groups of consecutive entries with at most MERGED_BYTES and MERGED_ROWS."""
    group: list[ManifestEntry] = []
    size = rows = 0
    for entry in entries:
        size, rows = size + size_of(entry), rows + entry.counts.written
        if group and (size > MERGED_BYTES or rows > MERGED_ROWS):
            yield group
            group, size, rows = [], size_of(entry), entry.counts.written
        group.append(entry)
    if group:
        yield group


def size_of(entry: ManifestEntry) -> int:
    """Return the bytes of the data and error files of an entry."""
    return sum(file.bytes for file in entry.files)


def _common_types(directory: Location, entries: list[ManifestEntry]) -> pa.Schema:
    """Return a type for each uneven column, which some files lack or which has several types. Leave
    out columns if no type holds all values. Reads one file for each type of each uneven column."""
    files = [dict(entry.columns) for entry in entries]
    names = sorted({name for file in files for name in file})
    uneven = (name for name in names if len({file.get(name) for file in files}) > 1)
    # for each uneven column: a field for each of its types, by the name of the type
    fields: dict[str, dict[str, pa.Field]] = {name: {} for name in uneven}
    for entry in entries:
        new = [(name, kind) for name, kind in entry.columns if kind not in fields.get(name, {kind})]
        if new:
            file = entry.data[0]
            footer = parquet_footer(directory / file.name, file.bytes)
            schema = refuse_pickles(footer.schema.to_arrow_schema())
            for name, kind in new:
                fields[name][kind] = schema.field(name)
    common = (unify_field(list(by_type.values())) for by_type in fields.values())
    return pa.schema([field for field in common if field is not None])


def without_removed(
    job_pass: JobPass, entry: ManifestEntry, writer: RewritingWriter
) -> ManifestEntry:
    """Write the files of an entry without its removed rows, and return the entry of the new files.
    Raises BadOutput if a file has changed, or if another pass has begun."""
    data, new_indexes = list[DataFile](), dict[int, int]()
    runs = defaultdict[int, list[tuple[bool, int]]](list)
    for origin in entry.origins:
        for index, rows in origin.rows:
            runs[index].append((not origin.removed, rows))
    for index, file in enumerate(entry.data):
        new = _rewrite(job_pass, job_pass.layout.data, file, writer, runs[index])
        if new is not None:
            new_indexes[index] = len(data)
            data.append(new)
    origins = [
        replace(each, rows=[(new_indexes[at], rows) for at, rows in each.rows if at in new_indexes])
        for each in entry.origins
        if not each.removed
    ]
    errors = _rewrite_errors(job_pass, entry, entry.errors) if entry.errors else None
    return replace(entry, data=data, errors=errors, origins=origins)


def _rewrite_errors(job_pass: JobPass, entry: ManifestEntry, file: DataFile) -> DataFile | None:
    """Write a new error file without the records of removed rows; None if no record remains."""
    directory, writer = job_pass.layout.errors, ParquetWriter("snappy")
    files = ids_of(writer.read(unchanged_content(directory, file))) >> ROW_BITS
    keep = ~np.isin(files, [origin.file for origin in entry.removed])
    return _rewrite(job_pass, directory, file, writer, [(each, 1) for each in keep.tolist()])


def _rewrite(
    job_pass: JobPass,
    directory: Location,
    file: DataFile,
    writer: RewritingWriter,
    runs: list[tuple[bool, int]],
) -> DataFile | None:
    """Write a file without its removed rows, and return it; None if no row remains. Return `file`
    if no row is removed. `runs` are pairs for consecutive rows: whether to keep them, and their
    number."""
    keep, lengths = [is_kept for is_kept, _ in runs], [rows for _, rows in runs]
    if all(keep):
        return file
    if not any(keep):
        return None
    table = writer.read(unchanged_content(directory, file))
    if table.num_rows != sum(lengths):
        raise damaged_state(job_pass.directory)
    remaining = table.filter(pa.array(np.repeat(keep, lengths)))
    return put_renamed(job_pass, directory, file, writer.write([remaining]))

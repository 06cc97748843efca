"""The interface of readers, which convert files to tables of rows; one module per file format."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    runtime_checkable,
)

import numpy as np
import pyarrow as pa

from batchinference.pipeline.error_classification import is_about_the_file, raise_storage_error
from batchinference.pipeline.errors import Incomplete, describe
from batchinference.pipeline.row_batch import RowRange
from batchinference.pipeline.row_warnings import RowWarning
from batchinference.pipeline.storage import arrow_files
from batchinference.pipeline.storage.location import Location
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.text import cut

if TYPE_CHECKING:
    from batchinference.pipeline.input import ReadNote

CHUNK_ROWS = arrow_files.CHUNK_ROWS
"""Number of rows per table that a reader yields, if it can choose."""
Result = TypeVar("Result")
Item = TypeVar("Item")
SomeChunk = TypeVar("SomeChunk", bound="Chunk")
MAX_ABSENT = 200
"""Maximum characters of column names in the message of `describe_lacking`."""


@dataclass(frozen=True)
class BadRow:
    """Rows that cannot be decoded or are not needed. `warnings` are about the first row."""

    error: Exception
    rows: int = 1
    warnings: Sequence[RowWarning] = ()


Chunk: TypeAlias = pa.Table | BadRow
NOT_NEEDED = ValueError("the row is committed")
FILTERED = ValueError("the filter of the input removed the row")
"""The error of a BadRow for rows that are not read because the filter removes them."""
KEPT = f"{OWN_PREFIX}kept"
"""A hidden column (bool) in tables of readers: whether the filter of the input keeps the row."""


@dataclass(frozen=True)
class FileStats:
    """The number of rows of a file. Reading can start at the row numbers `starts` without reading
    earlier rows (None: at any row). `schema` is None if the column types were not inspected."""

    rows: int
    starts: list[int] | None = None
    schema: pa.Schema | None = None


class Recognize(Protocol):
    """Returns whether a file with these first bytes is of a format."""

    def __call__(self, head: bytes) -> bool: ...


class Reader(Protocol):
    """Reads the files of one format. Base class of all readers.

    If a file cannot be opened or fetched, a reader raises the storage error (OSError): no row has
    caused it. Data that cannot be decoded becomes a BadRow at its position. If the rest of a file
    cannot be decoded, a reader may raise an error. Each read yields the same rows in order."""

    rows_exact: ClassVar[bool] = False
    """Whether `rows_in` is exact. Otherwise it is an estimate."""
    sampled_files: ClassVar[int] = 8
    """Number of files that are inspected by default, before the first row is read."""
    recognizes: ClassVar[Recognize | None] = None
    """Recognizes the format by the first bytes of a file; None if they vary, as in CSV."""

    @classmethod
    def of(cls, options: Any) -> Reader:
        """Return the reader for the options of the format."""
        return cls(options)  # type: ignore[call-arg]

    @staticmethod
    def other_format(head: bytes) -> str | None:  # noqa: ARG004 - for subclasses
        """Return None if a file with these first bytes may be of this format. Otherwise, return
        what the file is, and the fix."""
        return None

    def for_file(self, constants: Mapping[str, Any] | None, deleted: bytes | None) -> Reader:
        """Return the reader of a data file of a table. The arguments are fields of `InputFile`."""
        return self

    lacking: str = ""
    """A remark about inspected files that lack columns of other files; set by `prepare`."""

    def prepare(self, samples: list[Location]) -> None:
        """Inspect sampled files to determine what applies to all files, such as column types."""
        return

    def read(self, file: Location) -> Iterator[Chunk]:
        """Yield the rows of a file, in order."""

    def counter(self) -> Reader:
        """Return a reader that yields the same number of rows, perhaps with other values."""
        return self

    def rows_in(self, file: Location, size: int) -> int | None:
        """Return the row count (see `rows_exact`) of a file of `size` bytes; None if unknown."""

    def count_listed(self, file: Location) -> int | None:
        """Return the number of rows of a URL manifest without fetching; None for other formats."""
        return None

    def columns(self) -> list[str] | None:
        """Return the columns that `read` yields, if known after `prepare`; else None."""

    def types(self) -> dict[str, pa.DataType]:
        """Return the types of the columns whose types are known after `prepare`."""
        return {}


@runtime_checkable
class StatsReader(Reader, Protocol):
    """A reader of files that store their number of rows and their column types."""

    rows_exact: ClassVar[bool] = True

    def stats(self, file: Location, size: int) -> FileStats:
        """Return the statistics of a file of `size` bytes, from its footer or header. Raises an
        error if the file is damaged."""

    def use_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Do what `prepare` does, given the schemas of the samples by URI."""

    def prepare(self, samples: list[Location]) -> None:
        results = inspected(samples, lambda file: self.stats(file, file.info().size))
        self.use_schemas(schemas_of((sample.uri, stats) for sample, stats in results))

    def rows_in(self, file: Location, size: int) -> int | None:
        return self.stats(file, size).rows


def describe_lacking(names: Mapping[str, Sequence[str]]) -> str:
    """Return a remark about files that lack columns of other files; empty if no file does. `names`
    has the columns of each file by its URI."""
    all_names = dict.fromkeys(name for columns in names.values() for name in columns)
    lacking = [uri for uri, columns in names.items() if len(set(columns)) < len(all_names)]
    if not lacking:
        return ""
    first, own = lacking[0], set(names[lacking[0]])
    absent = ", ".join(f"'{name}'" for name in all_names if name not in own)
    count = "1 file lacks" if len(lacking) == 1 else f"{len(lacking)} files lack"
    shown = cut(absent, MAX_ABSENT)
    return f"{count} columns of others, which are null there: {first} has no {shown}"


def schemas_of(inspected: Iterable[tuple[str, FileStats]]) -> dict[str, pa.Schema]:
    """Return the schemas of inspected files by URI, without files that have no rows. If no file has
    rows, all schemas are returned."""
    with_schema = [(uri, stats) for uri, stats in inspected if stats.schema is not None]
    with_rows = [(uri, stats) for uri, stats in with_schema if stats.rows]
    return {uri: stats.schema for uri, stats in with_rows or with_schema}


@runtime_checkable
class DivisibleReader(Reader, Protocol):
    """A reader that can read part of a file, so read tasks can share a file. `rows_in` is exact."""

    def read(self, file: Location) -> Iterator[Chunk]:
        return self.read_part(file, 0, None)

    def can_enter(self, path: str) -> bool:
        """Return whether a part of this file can be read without reading the earlier rows."""
        return True

    def read_part(
        self, file: Location, start: int, stop: int | None, gaps: Sequence[RowRange] = ()
    ) -> Iterator[Chunk]:
        """Yield the rows from `start` to before `stop` (None: the end of the file). If `gaps` has
        row ranges, a reader may yield a BadRow instead of rows outside of these ranges."""


def inspected(
    files: Iterable[Location], inspect: Callable[[Location], Result]
) -> Iterator[tuple[Location, Result]]:
    """Yield each file with the result of `inspect`. Damaged files are left out, because they become
    failed rows when they are read."""
    for file in files:
        try:
            result = inspect(file)
        except Exception as error:  # noqa: BLE001 - see error_of_file
            error_of_file(error)
        else:
            yield file, result


def error_of_file(error: Exception) -> Exception:
    """Return the error if the content of a file has caused it. Otherwise, raise the error."""
    raise_storage_error(error)
    if not is_about_the_file(error):
        raise error
    return error


def converted(table: pa.Table, convert: Callable[[pa.Table], pa.Table]) -> Iterator[Chunk]:
    """Yield the converted rows of a table. A row for which `convert` raises ValueError becomes a
    BadRow. To isolate this row, the table is halved again and again."""
    try:
        yield convert(table)
    except ValueError as error:
        half = table.num_rows // 2
        if not half:
            yield BadRow(error, table.num_rows)
            return
        yield from converted(table.slice(0, half), convert)
        yield from converted(table.slice(half), convert)


def or_bad(decode: Callable[[], Result]) -> Result | BadRow:
    """Return the result of `decode`, or a BadRow if the content of the file has caused an error.
    Other errors are raised, such as storage errors."""
    try:
        return decode()
    except Exception as error:
        if not is_about_the_file(error):
            raise
        return BadRow(error)


def grouped(
    items: Iterable[Item | BadRow],
    size_of: Callable[[Item], int] = lambda _: 0,
    max_size: int = sys.maxsize,
    max_items: int = sys.maxsize,
    key: Callable[[Item], object] = lambda _: None,
) -> Iterator[list[Item] | BadRow]:
    """Yield the items in lists, and each BadRow between the lists. A list ends at `max_items` items
    or at the total size `max_size`, and before an item of another key."""
    group, size = list[Item](), 0
    for item in items:
        if group and (isinstance(item, BadRow) or key(item) != key(group[0])):
            yield group
            group, size = [], 0
        if isinstance(item, BadRow):
            yield item
            continue
        group.append(item)
        size += size_of(item)
        if size >= max_size or len(group) == max_items:
            yield group
            group, size = [], 0
    if group:
        yield group


def plain(options: Result) -> Result:
    """Return a plain object with the fields of `options`, without properties. Workers can unpickle
    this object without importing pydantic and the specification."""
    return cast(Result, SimpleNamespace(**dict(options)))  # type: ignore[call-overload]


def size_of(chunk: Chunk) -> int:
    """Return the number of rows of a chunk."""
    return chunk.rows if isinstance(chunk, BadRow) else int(chunk.num_rows)


def split_kept(table: pa.Table) -> tuple[pa.Table, np.ndarray | None]:
    """Return a table without the hidden column KEPT, and the values of KEPT (bool) or None."""
    if KEPT not in table.column_names:
        return table, None
    return table.drop_columns([KEPT]), table.column(KEPT).to_numpy()


def with_notes(chunks: Iterable[SomeChunk], first: int, note: ReadNote) -> Iterator[SomeChunk]:
    """Yield the chunks. Each chunk is read inside of the context manager `note(id)`, with the id of
    the first row of the chunk. `first` is the id of the first row of the first chunk."""
    iterator, row = iter(chunks), first
    while True:
        with note(row):
            chunk = next(iterator, None)
        if chunk is None:
            return
        row += size_of(chunk)
        yield chunk


def slice_chunk(chunk: Chunk, start: int, rows: int) -> Chunk:
    """Return at most `rows` rows of a chunk, from row number `start` of the chunk on. Arrow's own
    `slice` does not limit the rows of a table without columns."""
    if isinstance(chunk, BadRow):
        warnings = () if start else chunk.warnings
        return BadRow(chunk.error, min(rows, chunk.rows - start), warnings)
    return chunk.slice(start, min(rows, chunk.num_rows - start))


def gaps_within(gaps: Sequence[RowRange], start: int, stop: int | None) -> Sequence[RowRange]:
    """Return the row ranges in `gaps` that overlap the range from `start` to before `stop` (None:
    the end of the file). `gaps` must be sorted."""
    begin = bisect_right(gaps, float(start), key=lambda gap: inf if gap[1] is None else gap[1])
    end = len(gaps) if stop is None else bisect_left(gaps, stop, key=itemgetter(0))
    return gaps[begin:end]


def parts_in_gaps(chunk: Chunk, row: int, gaps: Sequence[RowRange]) -> Iterator[tuple[int, Chunk]]:
    """Yield the parts of a chunk that are in the row ranges `gaps`. Before each part is the index
    of its first row in the chunk. If `gaps` or the chunk is empty, yield (0, chunk). `row` is the
    number of the first row of the chunk in the file."""
    size = size_of(chunk)
    inside = gaps_within(gaps, row, row + size) if gaps and size else [(row, None)]
    for first_row, after_row in inside:
        start = max(0, first_row - row)
        stop = size if after_row is None else min(size, after_row - row)
        yield start, slice_chunk(chunk, start, stop - start)


def only_gaps(gaps: Sequence[RowRange], row: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks with BadRows in place of the rows outside of `gaps`. The rows in `gaps` keep
    their numbers. `row` is the number of the first row of the first chunk."""
    for chunk in chunks:
        done, size = 0, size_of(chunk)
        for start, wanted in parts_in_gaps(chunk, row, gaps):
            if start > done:
                yield BadRow(NOT_NEEDED, start - done)
            yield wanted
            done = start + size_of(wanted)
        if done < size:
            yield BadRow(NOT_NEEDED, size - done)
        row += size


def skip_rows(rows: int, chunks: Iterator[Chunk], file: str) -> Iterator[Chunk]:
    """Yield the chunks without their first `rows` rows, which are known to exist. Raises Incomplete
    if the chunks have fewer rows. `file` is the name of the file in the message."""
    row, last = 0, None
    while row < rows:
        try:
            chunk = next(chunks, None)
        except Exception as error:  # noqa: BLE001 - see error_of_file
            chunk, last = None, BadRow(error_of_file(error))
        if chunk is None:
            check_end(file, row, rows, last)
            return
        row, last = row + size_of(chunk), chunk
        if row > rows:
            yield slice_chunk(chunk, rows - row + size_of(chunk), size_of(chunk))
    yield from chunks


def check_end(file: str, end: int, known: int, last: Chunk | None) -> None:
    """Raise Incomplete if a file ends at row `end`, although `known` rows were read before. `last`
    is the last chunk of the file, which may be a BadRow with the cause."""
    if end >= known:
        return
    begin = f"{file} could be read only up to row {end}, although {known} rows were read before"
    if isinstance(last, BadRow) and last.error is not NOT_NEEDED:
        problem = describe(last.error)
        raise Incomplete(f"{begin}: {problem}. Run the job again to compute the missing rows")
    raise Incomplete(
        f"{begin}, so the file changed while it was read. Start over with resume: false"
    )


def take_rows(rows: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the first `rows` rows of the chunks. Further chunks are not read."""
    while rows > 0 and (chunk := next(chunks, None)) is not None:
        yield slice_chunk(chunk, 0, rows)
        rows -= size_of(chunk)

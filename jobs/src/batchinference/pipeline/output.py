"""The state of an output: whose it is, which attempt this is, and how it is brought to its end."""

from __future__ import annotations

import json
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from batchinference import __version__
from batchinference.pipeline.coverage import check_coverage
from batchinference.pipeline.failures import BadOutput, Incomplete
from batchinference.pipeline.layout import Layout, part_prefix
from batchinference.pipeline.manifest import Counts, Manifest, WrittenFile, counts_of_name
from batchinference.pipeline.storage import Address, base_name
from batchinference.pipeline.tables import Mark, Table, reaching_table, table_for
from batchinference.spec.report import Report
from batchinference.spec.write import Write, WriteTable

FETCH_THREADS = 16


@dataclass(frozen=True)
class Attempt:
    """One run of a job towards its output."""

    layout: Layout
    number: int

    def counts(self) -> Counts:
        """Rows committed so far, from the names of the manifests."""
        return sum((counts for _, counts in self._commits()), Counts())

    def manifests(self) -> list[Manifest]:
        """All commits of this attempt, one a task."""
        directory = self.layout.manifests(self.number)
        with ThreadPoolExecutor(FETCH_THREADS) as pool:
            contents = pool.map(lambda commit: (directory / commit[0]).read(), self._commits())
            return [Manifest.parse(content) for content in contents]

    def _commits(self) -> list[tuple[str, Counts]]:
        """The name and the counts of one manifest a task; of a task that was tried again with
        other counts always the same one."""
        by_task = {}
        for info in sorted(self.layout.manifests(self.number).files(), key=lambda info: info.path):
            name = base_name(info.path)
            if found := counts_of_name(name):
                by_task[found[0]] = (name, found[1])
        return list(by_task.values())

    def check_and_clean(self, files: int, rows_each: int | None = None) -> list[Manifest]:
        """All commits, checked: each row of the input's `files` is there once, in files that are
        as they were put; `rows_each` is how many rows a file has, where all have the same. Removes
        the data and error files that no commit names.

        Raises Incomplete, and BadOutput when another run has taken over the output."""
        self.check_owner()
        manifests = self.manifests()
        check_coverage(manifests, files, rows_each)
        layout = self.layout
        _check_there(layout.data, [file for m in manifests for file in m.data])
        _check_there(layout.errors, [m.errors for m in manifests if m.errors])
        named = {file.name for m in manifests for file in m.files}
        for place in (layout.data, layout.errors):
            remove_parts(place, layout.key, keep=named)
        return manifests

    def commit(self, write: WriteTable, manifests: list[Manifest]) -> None:
        """Make the rows of a table visible, all of them at once."""
        receipts = [self.layout.data / file.name for m in manifests for file in m.data]
        with reaching_table():
            table = table_for(write)
            if write.mode in ("error", "ignore") and table.holds_rows():
                raise _foreign(write, self.layout)
            table.commit(receipts, Mark(self.layout.key, self.number))

    def check_owner(self) -> None:
        """Raise BadOutput when another run has taken over the output: it removes what this one
        writes, and this one must not touch what belongs to the other."""
        owner = _owner(self.layout)
        if owner != _Owner(self.layout.key, self.number):
            raise BadOutput(
                f"another run has taken over write.path '{self.layout.output.uri}' while this one "
                "was going on"
            )

    def complete(self, report: Report) -> None:
        """Mark the output complete, which nothing but this does."""
        self.layout.report.write(report.serialized())
        self.layout.success.write(b"")
        if self.layout.is_table:
            self.layout.data.delete_directory()


def _check_there(place: Address, files: list[WrittenFile]) -> None:
    found = place.data_files() if files else []
    there = {place.below(info.path): info.size for info in found}
    for file in files:
        if there.get(file.name) != file.bytes:
            raise Incomplete(f"'{(place / file.name).uri}' is gone, or not as it was written")


def remove_parts(place: Address, key: str, keep: Set[str] = frozenset()) -> None:
    """Delete the data or error files of some work but for those that belong to its output."""
    for info in place.data_files():
        name = place.below(info.path)
        if base_name(name).startswith(part_prefix(key)) and name not in keep:
            (place / name).delete()


def is_complete(layout: Layout) -> bool:
    """Whether the work of this layout is done, and its output there."""
    owner = _owner(layout)
    return owner is not None and owner.key == layout.key and layout.success.exists()


def begin(write: Write, layout: Layout) -> Attempt | None:
    """The next attempt at this output; None when there is nothing to do: it is
    complete already, or something is there and the mode is ignore.

    Raises BadOutput when the path holds something that this job must not touch, or cannot be used.
    """
    table = table_for(write) if isinstance(write, WriteTable) else None
    try:
        if layout.whole != layout and _is_same_work(layout):
            return None
        with reaching_table() if table is not None else nullcontext():
            return _begin(write, layout, table)
    except OSError as error:
        raise BadOutput(f"write.path '{write.path}' cannot be used: {error}") from error


def _begin(write: Write, layout: Layout, table: Table | None) -> Attempt | None:
    if layout.errors.path == layout.output.path:
        raise BadOutput(
            f"errors.path and write.path are both '{write.path}': readers would take bad rows for "
            "output"
        )
    owner = _owner(layout)
    if owner is None:
        return _begin_new(write, layout, table)
    if write.mode == "overwrite":
        _clear(layout, owner)
    elif owner.key != layout.key:
        if write.mode == "ignore":
            return None
        raise BadOutput(
            f"write.path '{layout.output.uri}' holds the output of another job: choose another "
            "path, or set write.mode to overwrite, or to append"
        )
    elif layout.success.exists():
        return None
    elif table is not None and table.holds(Mark(owner.key, owner.attempt)):
        layout.success.write(b"")  # all that was missing when the attempt before ended
        return None
    else:
        # what the attempt before has committed is done again
        _remove_files(layout, owner)
    if table is not None and _is_taken(write, layout, table):
        _refuse(write, layout)
        return None
    return _open(layout, owner.attempt + 1)


def _is_same_work(layout: Layout) -> bool:
    """Whether the output to add to is of the very same work, whose rows would be there twice.

    Raises BadOutput when it is not complete yet.
    """
    owner = _owner(layout.whole)
    if owner is None or owner.key != layout.key:
        return False
    if not layout.whole.success.exists():
        raise BadOutput(
            f"write.path '{layout.output.uri}' holds unfinished output of the same work: finish it "
            "with the mode with which it was begun"
        )
    return True


def _begin_new(write: Write, layout: Layout, table: Table | None) -> Attempt | None:
    """The first attempt at an output that no job of this kind has begun."""
    if _is_taken(write, layout, table):
        _refuse(write, layout)
        return None
    return _open(layout, 1)


def _is_taken(write: Write, layout: Layout, table: Table | None) -> bool:
    """Whether something is there that the mode does not allow to add to or to replace."""
    if table is not None:
        return write.mode in ("error", "ignore") and table.holds_rows()
    return write.mode != "append" and bool(layout.output.files(recursive=True))


def _refuse(write: Write, layout: Layout) -> None:
    """Raises BadOutput unless the mode is to leave what is there."""
    if write.mode != "ignore":
        raise _foreign(write, layout)


@dataclass(frozen=True)
class _Owner:
    """Whose output a directory holds, and how often it was attempted."""

    key: str
    attempt: int


def _owner(layout: Layout) -> _Owner | None:
    if not layout.job.exists():
        return None
    try:
        stored = json.loads(layout.job.read())
        return _Owner(str(stored["work"]), int(stored["attempt"]))
    except (ValueError, KeyError, TypeError):
        raise BadOutput(
            f"'{layout.job.uri}' is damaged, so whose output this is cannot be told: choose "
            "another write.path, or remove this one"
        ) from None


def _foreign(write: Write, layout: Layout) -> BadOutput:
    if layout.is_table:
        return BadOutput(
            f"the table that write names ({write.format}, '{getattr(write, 'table', write.path)}') "
            "has rows already: set write.mode to append, or to overwrite, or choose another one"
        )
    way_out = (
        "overwrite only replaces such output. Remove them yourself, or choose another path"
        if write.mode == "overwrite"
        else "choose another path, empty it, or set write.mode to append"
    )
    return BadOutput(
        f"write.path '{layout.output.uri}' holds files that are no output of a BatchInference: "
        f"{way_out}"
    )


def _clear(layout: Layout, owner: _Owner) -> None:
    # the mark of completeness goes first, so that half an output never looks whole; whose it is
    # stays until the new attempt replaces it, so that clearing it can be taken up again
    layout.success.delete()
    for appended in layout.appended():
        if (other := _owner(appended)) is not None:
            _remove_files(appended, other)
        appended.state.delete_directory()
    _remove_files(layout, owner)
    for name in ("manifests", "errors"):
        (layout.state / name).delete_directory()
    layout.report.delete()
    layout.spec.delete()
    layout.input.delete()


def _remove_files(layout: Layout, owner: _Owner) -> None:
    for place in (layout.errors, layout.data):
        remove_parts(place, owner.key)


def _open(layout: Layout, number: int) -> Attempt:
    layout.job.write(_json({"work": layout.key, "attempt": number, "version": __version__}))
    return Attempt(layout, number)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()

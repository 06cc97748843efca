"""One attempt at an output: what its tasks have committed, and how it is brought to its end."""

from __future__ import annotations

from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from batchinference.pipeline.coverage import check_coverage
from batchinference.pipeline.failures import BadOutput, Incomplete
from batchinference.pipeline.layout import Layout, part_prefix
from batchinference.pipeline.manifest import Counts, Manifest, WrittenFile, counts_of_name
from batchinference.pipeline.owner import Owner, owner_of
from batchinference.pipeline.storage import Address, base_name
from batchinference.pipeline.tables import reaching_table, table_for, taken
from batchinference.spec.report import Report
from batchinference.spec.write import WriteTable

FETCH_THREADS = 16


@dataclass(frozen=True)
class Attempt:
    """One run of a job towards its output."""

    layout: Layout
    owner: Owner

    @classmethod
    def open(cls, layout: Layout, number: int) -> Attempt:
        """Begin it: from here on the output belongs to it."""
        owner = Owner.new(layout.key, number)
        owner.write(layout)
        return cls(layout, owner)

    @property
    def number(self) -> int:
        return self.owner.attempt

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
        the data and error files that no commit names, and takes no more of them.

        Raises Incomplete, and BadOutput when another run has taken over the output."""
        self.check_owner()
        self.layout.closed(self.number).write(b"")
        manifests = self.manifests()
        check_coverage(manifests, files, rows_each)
        layout = self.layout
        _check_there(layout.data, [file for m in manifests for file in m.data])
        _check_there(layout.errors, [m.errors for m in manifests if m.errors])
        named = {file.name for m in manifests for file in m.files}
        for place in (layout.data, layout.errors):
            remove_parts(place, layout.key, keep=named)
        return manifests

    def replace_manifest(self, manifest: Manifest) -> None:
        """Put another in the place of one with the same task and counts."""
        (self.layout.manifests(self.number) / manifest.name).write(manifest.serialized())

    def commit(self, write: WriteTable, manifests: list[Manifest]) -> None:
        """Make the rows of a table visible, all of them at once."""
        receipts = [self.layout.data / file.name for m in manifests for file in m.data]
        with reaching_table():
            table = table_for(write)
            if write.mode in ("error", "ignore") and table.holds_rows():
                raise taken(write)
            table.commit(receipts, self.owner.mark)

    def check_owner(self) -> None:
        """Raise BadOutput when another run has taken over the output: it removes what this one
        writes, and this one must not touch what belongs to the other."""
        if owner_of(self.layout) != self.owner:
            raise BadOutput(
                f"another run has taken over write.path '{self.layout.output.uri}' while this one "
                "was going on"
            )

    def check_open(self) -> None:
        """Raise BadOutput when this task comes late: another run has taken over the output, or this
        one has finished it, with what the same task has committed when it ran elsewhere."""
        self.check_owner()
        if self.layout.closed(self.number).exists():
            raise BadOutput(f"the output in write.path '{self.layout.output.uri}' is finished")

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

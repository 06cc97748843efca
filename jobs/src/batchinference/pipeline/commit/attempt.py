"""One attempt at an output: what its tasks have committed, and how it is brought to its end."""

from __future__ import annotations

from collections.abc import Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.heartbeat import heartbeat_file, keep_heartbeat
from batchinference.pipeline.commit.layout import Layout, part_prefix
from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.commit.manifest import Manifest, parse_manifest_name
from batchinference.pipeline.commit.manifest_entry import ManifestEntry, RowCounts, total
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.stored_report import finished_report
from batchinference.pipeline.commit.table_commit import (
    CommittedTable,
    Fence,
    table_errors_as_bad_output,
    table_has_rows,
)
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import (
    Location,
    base_name,
    delete_all,
    remnant_of,
)
from batchinference.spec.report import Report
from batchinference.spec.write import WriteTable

FETCH_THREADS = 16


@dataclass(frozen=True)
class Attempt:
    """One run over what is missing of an output. It travels into the write tasks."""

    layout: Layout
    lease: Lease

    @classmethod
    def open(
        cls, layout: Layout, number: int, start: Snapshot, job: str = "", series: str = ""
    ) -> Attempt:
        """Begin it: from here on the output belongs to it, what others commit does not count, and
        of what they have put there is nothing left but what `start` names. `job` is by what this
        one is told from others that want the output, and `series` what it has in common with those
        that would put the same rows into a table."""
        lease = Lease.new(layout, number, job=job, series=series)
        start_of(layout, lease).write(replace(start, attempt=number).serialized())
        lease.write(layout)
        attempt = cls(layout, lease)
        with keep_heartbeat(lambda: attempt.heartbeat):
            attempt.remove_all_but(start.pieces)
        return attempt

    @property
    def number(self) -> int:
        return self.lease.attempt

    @property
    def place(self) -> Location:
        """Where its commits go."""
        return self.lease.place(self.layout)

    @property
    def heartbeat(self) -> Location:
        """Where it says that it goes on."""
        return heartbeat_file(self.layout, self.lease)

    @property
    def closed(self) -> Location:
        return self.place / "closed"

    @property
    def retyped(self) -> Location:
        """Where it is told which files were put anew, with columns of other types."""
        return self.place / "retyped"

    def counts(self) -> RowCounts:
        """Rows that it has committed so far, from the names of the manifests."""
        return total(counts for _, counts in self._commits())

    def manifests(self) -> list[Manifest]:
        """All of its commits, one a task. One that is damaged counts as not made."""
        with ThreadPoolExecutor(FETCH_THREADS) as pool:
            found = pool.map(lambda commit: _parsed(self.place / commit[0]), self._commits())
            key = self.layout.key
            return [one for one in found if one is not None and one.is_of(key)]

    def _commits(self) -> list[tuple[str, RowCounts]]:
        """The name and the counts of one manifest a task; of a task that was tried again always
        the same one."""
        by_task = {}
        for info in sorted(self.place.files(), key=lambda info: info.path):
            name = base_name(info.path)
            if found := parse_manifest_name(name):
                by_task[found[0]] = (name, found[1])
        return list(by_task.values())

    def close(self) -> list[Manifest]:
        """Take no more commits. All that were made come back.

        Raises BadOutput when another run has taken over the output."""
        self.check_lease()
        self.closed.write(b"")
        return self.manifests()

    def remove_all_but(self, pieces: Iterable[ManifestEntry]) -> None:
        """Delete the data and error files of this work that no piece names."""
        named = {file.name for piece in pieces for file in piece.files}
        for place in (self.layout.data, self.layout.errors):
            remove_parts(place, self.layout.key, keep=named)

    def commit(
        self, write: WriteTable, table: CommittedTable, end: Snapshot, report: Report
    ) -> None:
        """Make the rows of a table visible, all of them at once. What they are is told before it,
        so that of a driver that dies right after it nothing is missing.

        Raises BadOutput when another run has taken over the output."""
        self._tell(end, report)
        receipts = [self.layout.data / file.name for piece in end.pieces for file in piece.data]
        with table_errors_as_bad_output():
            if write.mode in ("error", "ignore") and table.holds_rows():
                raise table_has_rows(write)
            fence = Fence(self.lease.mark, self.lease.series_mark, self.check_lease)
            table.commit(receipts, fence)

    def check_lease(self) -> None:
        """Raise BadOutput when another run has taken over the output: it removes what this one
        writes, and this one must not touch what belongs to the other."""
        if read_lease(self.layout) != self.lease:
            raise BadOutput(
                f"another run has taken over write.path '{self.layout.output.uri}' while this one "
                "was going on"
            )

    def check_open(self) -> None:
        """Raise BadOutput when this task comes late: another run has taken over the output, or this
        one has finished it, with what the same task has committed when it ran elsewhere."""
        self.check_lease()
        if self.closed.exists():
            raise BadOutput(f"the output in write.path '{self.layout.output.uri}' is finished")

    def complete(self, end: Snapshot, report: Report) -> None:
        """Mark the output complete, which nothing but this does.

        Raises BadOutput when another run has taken over the output."""
        self._tell(end, report)
        self.lease.complete(self.layout)
        self.check_lease()
        if self.layout.is_table:
            self.layout.data.delete_directory()

    def complete_committed(self) -> None:
        """Mark a table complete whose driver died after the commit, when all was told.

        Raises BadOutput when that is gone or damaged."""
        end = Snapshot.read(self.layout.end, self.layout.key)
        self.complete(end, finished_report(self.layout, end))

    def _tell(self, end: Snapshot, report: Report) -> None:
        self.check_lease()
        self.layout.end.write(replace(end, attempt=self.number).serialized())
        self.layout.report.write(report.serialized())


def start_of(layout: Layout, lease: Lease) -> Location:
    """Where the snapshot lies with which an attempt began."""
    return lease.place(layout) / "start.json"


def _parsed(place: Location) -> Manifest | None:
    try:
        return Manifest.parse(place.read())
    except (ValueError, FileNotFoundError):
        return None


def remove_parts(place: Location, key: str, keep: Set[str] = frozenset()) -> None:
    """Delete the data or error files of some work but for those that belong to its output, and what
    is left of such that were never put."""
    names = map(place.below, (info.path for info in place.data_files()))
    delete_all(place / name for name in names if is_part(name, key) and name not in keep)


def is_part(path: str, key: str) -> bool:
    """Whether a file is one of some work, or is left of such that was never put."""
    name = base_name(path)
    return (remnant_of(name) or name).startswith(part_prefix(key))

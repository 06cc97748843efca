"""Checks that the stored files hold what was committed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from batchinference.pipeline.commit.layout import part_prefix
from batchinference.pipeline.commit.manifest_entry import ManifestEntry
from batchinference.pipeline.error_attribution import raise_storage_error
from batchinference.pipeline.storage.location import base_name
from batchinference.pipeline.storage.retry import with_retries
from batchinference.pipeline.verify.error_rows import wrong_errors
from batchinference.pipeline.verify.file_check import Checked, StoredFiles
from batchinference.pipeline.verify.findings import Found, Kind, Spot
from batchinference.pipeline.verify.jobs import Work
from batchinference.pipeline.verify.row_counts import DAMAGE
from batchinference.spec.write import WriteImages

THREADS = 8


@dataclass(frozen=True)
class Commits:
    """The files of an output that its manifest entries name. `data` is None for a table, which has
    no such files."""

    work: Work
    data: StoredFiles | None
    errors: StoredFiles

    @classmethod
    def of(cls, work: Work, *, quick: bool) -> Commits:
        layout, write = work.layout, work.spec.write
        data = None if layout.is_table else StoredFiles.of_rows(layout, write, quick=quick)
        return cls(work, data, StoredFiles.of_errors(layout, quick=quick))

    def check(self, entries: Sequence[ManifestEntry]) -> Iterator[Found]:
        """Yield all defects of these manifest entries and their files."""
        with ThreadPoolExecutor(THREADS) as pool:
            if self.data is not None:
                checked = pool.map(self.data.check, (f for entry in entries for f in entry.data))
                for entry in entries:
                    yield from self._of_data(entry, [*itertools.islice(checked, len(entry.data))])
            for entry, found in zip(entries, pool.map(self._of_errors, entries), strict=True):
                yield from found
                yield from self._of_rows(entry)

    def orphans(self, entries: Sequence[ManifestEntry]) -> Iterator[Found]:
        """Yield orphan files: files of the same work that none of these entries names."""
        named = {file.name for entry in entries for file in entry.files}
        prefix = part_prefix(self.work.lease.key)
        for stored in filter(None, (self.data, self.errors)):
            for name in sorted(stored.sizes.keys() - named):
                if base_name(name).startswith(prefix):
                    yield Kind.ORPHANS, Spot((stored.place / name).uri), 1

    def _of_data(self, entry: ManifestEntry, checked: list[Checked]) -> Iterator[Found]:
        found = [file.found for file in checked if file.found]
        yield from found
        counts = [file.rows for file in checked if file.rows is not None]
        if isinstance(self.work.spec.write, WriteImages):
            if len(checked) > entry.counts.written:
                yield self._miscounted(entry, f"{len(checked)} files", entry.counts.written)
        elif not found and len(counts) == len(checked) and sum(counts) != entry.counts.written:
            yield self._miscounted(entry, f"{sum(counts)} rows", entry.counts.written)

    def _of_errors(self, entry: ManifestEntry) -> list[Found]:
        failed = entry.counts.failed
        if entry.errors is None:
            return [self._miscounted(entry, "no failed rows", failed)] if failed else []
        checked, file = self.errors.check(entry.errors), self.errors.place / entry.errors.name
        if checked.found:
            return [checked.found]
        found = []
        if checked.rows != failed:
            found.append(self._miscounted(entry, f"{checked.rows} failed rows", failed))
        try:
            wrong = with_retries(lambda: wrong_errors(entry, file))
        except DAMAGE as error:
            raise_storage_error(error)
            return [(Kind.DAMAGED, Spot(file.uri, detail="it is not a list of failed rows"), 1)]
        return [*found, (Kind.WRONG_ERRORS, Spot(file.uri), wrong)] if wrong else found

    def _of_rows(self, entry: ManifestEntry) -> Iterator[Found]:
        """Yield a defect if the counts of an entry do not match the rows that it names."""
        counts = entry.counts
        named = sum(after - first for _, first, after in entry.row_ranges)
        if named != counts.read:
            yield self._miscounted(entry, f"{named} rows of the input", counts.read)
        elif named > counts.written + counts.failed + counts.skipped:
            yield self._miscounted(entry, "fewer rows than were read", counts.read)

    def _miscounted(self, entry: ManifestEntry, there: str, committed: int) -> Found:
        detail = f"{there}, and {committed} were committed"
        return Kind.MISCOUNTED, Spot(self._name(entry), detail=detail), 1

    def _name(self, entry: ManifestEntry) -> str:
        """Return the file that identifies an entry in findings: its first one."""
        if entry.data and self.data is not None:
            return (self.data.place / entry.data[0].name).uri
        if entry.errors:
            return (self.errors.place / entry.errors.name).uri
        return self.work.layout.state.uri

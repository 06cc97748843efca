"""Finds rows that kill their process, and makes failed rows of them.

A process stores a note before a step computes rows, and removes the note afterwards
(`crash_notes`). It does this only if it replaces a dead process or computes suspects. A note that
remains names the rows on which a process died. From then on, these rows are suspects: they are
computed apart from other rows, in parts that become smaller with each death.

- a process dies on 1,024 rows -> they are computed in 32 parts of 32 rows
- a process dies on 32 rows -> they are computed one by one
- two processes die on one row -> the row becomes a failed row

If other nodes can compute the row, it becomes a failed row only after deaths on two nodes. After
two deaths on one node, this node leaves the row out, and the next pass does not use the node. The
node is used again if processes also die elsewhere.

Tasks and actors follow the same rules. A process that replaces another one applies the rules to the
deaths of its predecessors. The driver applies them to all deaths when it plans the next pass. The
rows of a process that is lost with its node do not become suspects."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.row_batch import RowBatch, unpack_ids

PARTS = 32
"""Number of parts into which the rows of a note are divided. Each part has at least one row."""
DEATHS_ALONE = 2
"""Number of deaths on a single row after which the row becomes a failed row. If all deaths were on
one node, the row is left to other nodes instead."""
ADJACENT_ROWS = 4
"""If this many adjacent rows crash, their values are not the cause. It may be a device."""
CRASHED = (
    "the process died twice while it computed only this row: it was killed because memory ran out, "
    "or native code crashed"
)
"""The error of a row that became a failed row after deaths of processes."""


@dataclass(frozen=True)
class CrashNote:
    """The input rows that a step was computing, as ranges of IDs (first, after the last). `node` is
    the ID of the node that ran the process."""

    step: str
    ranges: tuple[tuple[int, int], ...]
    node: str = ""

    @classmethod
    def of(cls, step: str, ids: np.ndarray, node: str = "") -> CrashNote:
        """Return the note for rows with these input row IDs (int64, at least one)."""
        rows = RowSet.merged(ids, ids + 1)
        ranges = zip(rows.starts.tolist(), rows.stops.tolist(), strict=True)
        return cls(step, tuple(ranges), node)

    @property
    def first(self) -> int:
        """The ID of the first row."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The ID of the last row."""
        return self.ranges[-1][1] - 1

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(after - first for first, after in self.ranges)

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """Return a mask (bool) of the IDs (int64) that the note contains."""
        return RowSet(*np.array(self.ranges, np.int64).T).contains(ids)

    def serialized(self) -> str:
        """Return the note as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> CrashNote:
        """Return the note from its JSON."""
        fields = json.loads(text)
        ranges = tuple((first, after) for first, after in fields["ranges"])
        return cls(fields["step"], ranges, fields["node"])


Death = tuple[CrashNote, ...]
"""The notes of one dead process: several if several of its threads were computing rows."""


@dataclass(frozen=True)
class Isolation:
    """The rows that are computed apart or not at all, because of earlier deaths."""

    deaths: tuple[Death, ...] = ()
    unused: frozenset[str] | None = None
    """The IDs of the nodes that this pass does not use. None: no other node may compute a row on
    which processes died."""
    nodes: frozenset[str] = frozenset()
    """The IDs of all living nodes; empty if `unused` is None."""

    def __bool__(self) -> bool:
        return bool(self.deaths)

    def after(self, deaths: Iterable[Death]) -> Isolation:
        """Return the isolation after further deaths."""
        return replace(self, deaths=(*self.deaths, *deaths))

    @cached_property
    def _repeated(self) -> dict[int, list[CrashNote]]:
        """The notes of each row that killed DEATHS_ALONE processes while it was alone, by row
        ID."""
        alone = defaultdict[int, list[CrashNote]](list)
        for notes in self.deaths:
            if len(notes) == 1 and notes[0].rows == 1:
                alone[notes[0].first].append(notes[0])
        return {row: notes for row, notes in alone.items() if len(notes) >= DEATHS_ALONE}

    @cached_property
    def _single_nodes(self) -> dict[int, str]:
        """The node of each row of `_repeated` whose deaths were all on one node, by row ID."""
        nodes = {row: {note.node for note in notes} for row, notes in self._repeated.items()}
        return {row: min(names) for row, names in nodes.items() if len(names) == 1}

    @property
    def suspected_nodes(self) -> frozenset[str]:
        """The IDs of nodes that may kill processes on any row."""
        return frozenset(self._single_nodes.values()) - {""}

    @cached_property
    def crashed(self) -> dict[int, CrashNote]:
        """The last note of each row that becomes a failed row, by input row ID."""
        return {
            row: notes[-1]
            for row, notes in self._repeated.items()
            if row not in self._single_nodes or not self._others_compute(self._single_nodes[row])
        }

    def _others_compute(self, node: str) -> bool:
        """Return whether other nodes compute the rows on which processes died only on this node, in
        this pass or the next."""
        if self.unused is None:
            return False
        # this pass computes the rows of unused nodes on the other nodes
        return node in self.unused or bool(self.nodes - self.unused - self.suspected_nodes)

    @cached_property
    def suspects(self) -> list[CrashNote]:
        """The notes whose rows are computed apart, those with the fewest rows first."""
        notes = {note for death in self.deaths for note in death}
        suspects = [n for n in notes if not (n.rows == 1 and n.first in self.crashed)]
        return sorted(suspects, key=lambda note: (note.rows, note.first, note.step))

    @property
    def is_systemic(self) -> bool:
        """Whether ADJACENT_ROWS adjacent rows have crashed, so that their values are not the cause.
        The first row of a file counts as adjacent to any row of the previous file. Crashes in a
        series of very short files are thus detected as well."""
        rows = np.sort(np.array([*self.crashed], np.int64))
        if len(rows) < ADJACENT_ROWS:
            return False
        files, numbers = unpack_ids(rows)
        adjacent = (np.diff(rows) == 1) | ((np.diff(files) == 1) & (numbers[1:] == 0))
        pairs = np.lib.stride_tricks.sliding_window_view(adjacent, ADJACENT_ROWS - 1)
        return bool(pairs.all(axis=1).any())

    def divided(self, batch: RowBatch) -> tuple[list[RowBatch], RowBatch]:
        """Return the suspects of a batch in small parts, and the rest of the batch. The rest has
        the `ends` and `notes` of the batch. A part has all rows of an input row."""
        parts: list[RowBatch] = []
        for note in self.suspects:
            ids = np.unique(batch.ids)
            apart = ids[note.contains(ids)]
            if len(apart):
                suspects = replace(batch.select_inputs(apart), ends=(), notes=())
                parts += _cut(suspects, apart, math.ceil(note.rows / PARTS))
                batch = batch.without_inputs(apart)
        return parts, batch

    def without_deferred(self, batch: RowBatch, node: str) -> RowBatch:
        """Return the batch without the rows that only nodes other than `node` may compute. These
        rows stay missing until the next pass."""
        single = self._single_nodes.items()
        deferred = [row for row, name in single if name == node and row not in self.crashed]
        if not np.isin(batch.input_ids, deferred).any():
            return batch
        return batch.without_inputs(np.array(deferred, np.int64))

    def crashed_rows(self, batch: RowBatch) -> dict[int, CrashNote]:
        """Return the notes of the crashed rows of a batch, by row index."""
        indexes = np.flatnonzero(np.isin(batch.ids, [*self.crashed])).tolist()
        return {index: self.crashed[int(batch.ids[index])] for index in indexes}


NO_DEATHS = Isolation()
"""The isolation of a job in which no process has died."""


def _cut(batch: RowBatch, ids: np.ndarray, rows: int) -> Iterator[RowBatch]:
    """Yield a batch in parts of up to `rows` input rows. `ids` are the IDs of its input rows."""
    for start in range(0, len(ids), rows):
        yield batch.select_inputs(ids[start : start + rows])

"""Snapshots: what counts of an output at a moment, in one file.

An attempt begins with one, which is its fence: commits that are not in it, and not the attempt's
own, do not count, however late they come. A finished output ends with one, which names its files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from batchinference import __version__
from batchinference.pipeline.coverage import Gaps, Held, taken
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.manifest import Manifest
from batchinference.pipeline.pieces import Counts, Piece, counts_of
from batchinference.pipeline.sealed import check_seal, loaded, sealed
from batchinference.pipeline.storage import Address

FORMAT = 1
_WAY_OUT = (
    "begin anew: with resume: false, or where the output is complete with write.mode: overwrite"
)


@dataclass(frozen=True)
class Snapshot:
    """The pieces that count, and the rows of files whose end was seen."""

    work: str
    """The key of the work whose rows these are."""
    input: str
    """The digest of the list of files that the rows' numbers stand for."""
    pieces: list[Piece] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    attempt: int = 0
    """The attempt that began or ended with it."""

    def with_commits(self, manifests: Iterable[Manifest]) -> Snapshot:
        """With what counts of further commits."""
        manifests = list(manifests)
        ends = self.ends | {file: rows for m in manifests for file, rows in m.ends}
        pieces = [*self.pieces, *(piece for m in manifests for piece in m.pieces)]
        return replace(self, ends=ends).only(pieces)

    def only(self, pieces: list[Piece]) -> Snapshot:
        """With what counts of these pieces."""
        return replace(self, pieces=taken(pieces))

    def gaps(self, files: int, rows_each: int | None) -> Gaps:
        """What is missing of the input: so many files, of so many rows each where that is known
        of all beforehand. Raises Incomplete for rows behind the end of their file."""
        held = Held.of(self.pieces)
        held.check_ends(self.ends, rows_each)
        return held.gaps(files, self.ends, rows_each)

    def rows(self, files: int, rows_each: int | None) -> int:
        """Rows of the input, once nothing of it is missing."""
        return files * rows_each if rows_each is not None else sum(self.ends.values())

    @property
    def counts(self) -> Counts:
        return counts_of(self.pieces)

    def serialized(self) -> bytes:
        stored = {
            "format": FORMAT,
            "version": __version__,
            "work": self.work,
            "input": self.input,
            "attempt": self.attempt,
            "ends": list(self.ends.items()),
            "pieces": [piece.as_json() for piece in self.pieces],
        }
        return sealed(stored)

    @classmethod
    def read(cls, place: Address, work: str) -> Snapshot:
        """Raises BadOutput when it is damaged, another work's, or a later version's."""
        try:
            raw = loaded(place.read())
            if raw["format"] > FORMAT:
                raise _later(place, raw["version"])
            check_seal(raw)
            pieces = [Piece.of_json(piece) for piece in raw["pieces"]]
            ends = dict(raw["ends"])
            read = cls(raw["work"], raw["input"], pieces, ends, raw["attempt"])
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):
            raise damaged(place) from None
        if read.work != work:
            raise damaged(place)
        return read


def damaged(place: Address) -> BadOutput:
    return BadOutput(
        f"'{place.uri}' is gone, damaged or another output's, so what is done cannot be told: put "
        f"it back, or {_WAY_OUT}"
    )


def _later(place: Address, version: str) -> BadOutput:
    return BadOutput(
        f"'{place.uri}' was written by version {version}, which this one cannot read: go on with "
        f"that version or a later one, or {_WAY_OUT}"
    )

"""Row ids: the file and the position of an input row, packed into one integer.

An id packs the number of the file (in the sorted input snapshot) and the number of the row in the
file. Ids depend only on the input, so that a row has the same id in every attempt.
"""

from __future__ import annotations

import numpy as np

ROW_BITS = 40
MAX_FILES = 1 << (63 - ROW_BITS)
ROW_MASK = (1 << ROW_BITS) - 1
READ_STEP = "read"
"""The step name in the error record of a row that could not be decoded."""
NUMBERS_PER_FILE = 10**12
"""What the numbers of rows in consecutive files differ by (`write.rowNumber`)."""
RowRange = tuple[int, int | None]
"""First row and row after the last; the latter is None if the end of the file is unknown."""
MissingRows = dict[int, list[RowRange]]
"""Missing rows by file number. Files without missing rows are not included."""


def pack(file: int, row: int) -> int:
    return file << ROW_BITS | row


def unpack(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the file numbers and row numbers of ids (int64)."""
    return ids >> ROW_BITS, ids & ROW_MASK


def numbers_of(ids: np.ndarray, first_file: int) -> np.ndarray:
    """Return ids as numbers that people can read, in the same order (int64). `first_file` is the
    number of the first file of the input."""
    files, rows = unpack(ids)
    numbers: np.ndarray = (files + first_file) * NUMBERS_PER_FILE + rows
    return numbers


def consecutive(file: int, first: int, count: int) -> np.ndarray:
    """Return the ids of `count` rows of a file, from row `first` on (int64)."""
    start = pack(file, first)
    return np.arange(start, start + count, dtype=np.int64)

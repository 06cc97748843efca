"""Infers the type of texts, such as the values of a CSV column.

Texts remain texts if no type (number, date, timestamp or boolean) keeps the digits of all of them.
For example, `007`, `+49301`, `0x1F` and `12345678901234567.89` are text."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.declared_types import arrow_type

_LOSSY = ("bool", "int64", "uint64", "float64")
"""Types that lose a part of some texts, such as `007` and `1e400`."""
_TIMES = ("date", "timestamp<us>", "timestamp<ns>", "timestamp<us,UTC>", "timestamp<ns,UTC>")
_NO_FRACTION = "^[+-]?[0-9]+([eE][0-9]+)?$"
"""Matches integers, and texts such as `12E3`, which are not floats: programs write a float with a
point, or with a sign in the exponent."""
SAFE_DIGITS = 15
"""A number with at most this many digits keeps its digits if it is printed as float64."""
MAX_DIGITS = 800
"""Maximum number of significant digits of a float64."""
FIRST_VALUES = 64
"""Number of sample values that are cast first, because a failing cast of all values takes long."""
CHECKED_NUMBERS = 10_000
"""Maximum number of long numbers in a sample whose printed digits are compared."""


def typed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts and nulls in their inferred type, or as texts if the type would change one."""
    present = texts.drop_null()
    kind = inferred_type(present, present)
    values = texts.cast(arrow_type(kind))
    return texts.cast(pa.string()) if loss_mask(texts, values, kind).any() else values


def inferred_type(texts: pa.ChunkedArray, numbers: pa.ChunkedArray) -> str:
    """Return the type that fits texts without nulls; `string` if there are no texts. `numbers` are
    the same texts with a point as their decimal separator."""
    if not len(texts):
        return "string"
    if _fits(numbers, "float64"):
        return _number_type(numbers)
    if pc.all(pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"]))).as_py():
        return "bool"
    return next((kind for kind in _TIMES if _fits(texts, kind)), "string")


def _number_type(texts: pa.ChunkedArray) -> str:
    """Return the type for texts that can be cast to float64: an integer type, float64 or string."""
    if _have_leading_zeros(*buffers_of(texts.combine_chunks())).any():
        return "string"
    if not pc.all(pc.match_substring_regex(texts, _NO_FRACTION)).as_py():
        return "float64" if _are_exact(texts) else "string"
    # telephone numbers such as +49301 and part numbers such as 12E3 fit no integer type
    return next((kind for kind in ("int64", "uint64") if _fits(texts, kind)), "string")


def _fits(texts: pa.ChunkedArray, kind: str) -> bool:
    try:
        for part in (texts.slice(0, FIRST_VALUES), texts):
            part.cast(arrow_type(kind))
    except pa.ArrowInvalid:
        return False
    return True


def loss_mask(texts: pa.ChunkedArray, values: pa.ChunkedArray, inferred: str | None) -> np.ndarray:
    """Return a mask (bool) of the texts that would lose a part in an inferred type."""
    if inferred not in _LOSSY:
        return np.zeros(len(texts), bool)
    array = texts.combine_chunks()
    characters, limits = buffers_of(array)
    lengths = np.diff(limits)
    if inferred == "bool":
        mask = lengths < len("true")  # 0 and 1 would be printed as false and true
    else:
        mask = _have_leading_zeros(characters, limits)
    if inferred == "float64":
        doubtful = (lengths > SAFE_DIGITS) | _have_exponents(characters, limits)
        if doubtful.any():
            rows = pa.array(doubtful)
            mask[doubtful] |= _rounding_mask(texts.filter(rows), values.filter(rows))
    return mask & array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else mask


def buffers_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes (uint8) of all texts, and the offsets of the texts."""
    _, offsets, data = texts.buffers()
    integer = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    limits = np.frombuffer(offsets, integer)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"\0", np.uint8), limits


def _have_leading_zeros(characters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return a mask (bool) of texts that begin, after any sign, with a zero and a digit or `x`."""
    starts = limits[:-1]
    first = characters.take(starts, mode="clip")
    zero = starts + ((first == ord("-")) | (first == ord("+")))
    second = characters.take(zero + 1, mode="clip")
    digit = (second - ord("0") < 10) | (second == ord("x"))  # uint8 wraps around below 0
    is_zero = characters.take(zero, mode="clip") == ord("0")
    return np.asarray(is_zero & digit & (zero + 1 < limits[1:]))


def _have_exponents(characters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return a mask (bool) of the texts that contain `e` or `E`."""
    mask = np.zeros(len(limits) - 1, bool)
    text = characters[limits[0] : limits[-1]].tobytes().lower()
    if b"e" in text:  # searching bytes is fast
        positions = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("e")) + limits[0]
        mask[np.searchsorted(limits, positions, side="right") - 1] = True
    return mask


def _rounding_mask(texts: pa.ChunkedArray, numbers: pa.ChunkedArray) -> np.ndarray:
    """Return a mask (bool) of the numbers whose digits change if they are printed as float64."""
    differ = pc.not_equal(numbers.cast(pa.string()), texts).fill_null(False)
    mask: np.ndarray = differ.to_numpy()
    mask[mask] = [not _is_exact(text) for text in texts.filter(differ).to_pylist()]
    return mask


def _are_exact(texts: pa.ChunkedArray) -> bool:
    """Return whether these numbers keep their digits if they are printed as float64."""
    long = pc.greater(pc.binary_length(texts), SAFE_DIGITS)
    texts = texts.filter(pc.or_(long, pc.match_substring_regex(texts, "[eE]")))
    printed = texts.cast(pa.float64()).cast(pa.string())
    others = texts.filter(pc.not_equal(printed, texts)).slice(0, CHECKED_NUMBERS)
    return all(map(_is_exact, others.to_pylist()))


def _is_exact(text: str) -> bool:
    try:
        written = Decimal(text)
    except InvalidOperation:  # its exponent has too many digits
        return False
    digits = len(written.as_tuple().digits)
    if not written.is_finite() or digits > MAX_DIGITS:
        return not written.is_finite()
    return Decimal(f"{float(text):.{digits - 1}e}") == written

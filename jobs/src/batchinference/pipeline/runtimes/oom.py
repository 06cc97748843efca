"""Detects out-of-memory errors of libraries that have no exception type for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_WORDS = (
    "Failed to allocate memory",
    "RESOURCE_EXHAUSTED",
    "OOM when allocating",
    "bad allocation",
)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert out-of-memory errors of other libraries to torch's OutOfMemoryError.

    The caller then splits the batch in halves. ONNX Runtime, TensorFlow and JAX report the
    condition only in the error message.
    """
    try:
        yield
    except Exception as error:
        if any(words in str(error) for words in _WORDS):
            from torch import OutOfMemoryError

            raise OutOfMemoryError(str(error)) from error
        raise

"""A device without memory, in the words of libraries that have no error of their own for it."""

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
    """Raise torch's OutOfMemoryError, after which a batch is halved, for those of other libraries.

    ONNX Runtime, TensorFlow and JAX tell of it in the message alone.
    """
    try:
        yield
    except Exception as error:
        if any(words in str(error) for words in _WORDS):
            from torch import OutOfMemoryError

            raise OutOfMemoryError(str(error)) from error
        raise

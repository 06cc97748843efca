"""Finds out from the standard error why vLLM's engine died.

The error of a dead engine does not say why. The processes of the engine write the reason to the
standard error, which they share with this process. In Ray's processes, standard error is a file."""

import os
import stat

from batchinference.pipeline.error_classification import device_fault_in

MAX_BYTES = 1 << 20
"""Maximum number of bytes that are read, from the end of the standard error."""
_STANDARD_ERROR = "/proc/self/fd/2"


class EngineLog:
    """What is written to the standard error after the creation of this object."""

    def __init__(self) -> None:
        self._begin = _size() or 0
        self._fault: RuntimeError | None = None

    def device_fault(self) -> RuntimeError | None:
        """Return the fault of a device that ended the engine; None if none is known. The standard
        error cannot be read if it is not a file."""
        if self._fault is None:  # each row without an answer asks
            self._fault = self._read_fault()
        return self._fault and RuntimeError(*self._fault.args)

    def _read_fault(self) -> RuntimeError | None:
        size = _size()
        if size is None:
            return None
        try:
            with open(_STANDARD_ERROR, "rb") as log:
                log.seek(max(self._begin, size - MAX_BYTES))
                return device_fault_in(log.read(MAX_BYTES).decode(errors="replace"))
        except OSError:  # not on Linux
            return None


def _size() -> int | None:
    """Return the size of the standard error in bytes; None if it is closed or not a file."""
    try:
        about = os.fstat(2)
    except OSError:
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None

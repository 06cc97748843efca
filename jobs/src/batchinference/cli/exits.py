"""Exit codes."""

SUCCESS = 0
JOB_FAILED = 1
BAD_INPUT = 2
UNFINISHED = 3
INTERRUPTED = 130
_OF_REASON = {"BadInput": BAD_INPUT, "Interrupted": INTERRUPTED}


def code_of(reason: str | None) -> int:
    """Return the exit code for the reason of a failure."""
    return _OF_REASON.get(reason or "", JOB_FAILED)

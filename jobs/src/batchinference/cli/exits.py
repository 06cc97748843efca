"""The exit codes of commands."""

SUCCESS = 0
JOB_FAILED = 1
BAD_INPUT = 2
UNFINISHED = 3
INTERRUPTED = 130
_OF_REASON = {"BadInput": BAD_INPUT, "Interrupted": INTERRUPTED}


def code_of(reason: str | None) -> int:
    """Return the exit code of a job that failed for this reason."""
    return _OF_REASON.get(reason or "", JOB_FAILED)

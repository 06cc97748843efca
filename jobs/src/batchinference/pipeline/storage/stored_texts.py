"""Reads stored reports and logs. Others may have replaced them with very large files."""

from __future__ import annotations

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import with_retries

MAX_BYTES = 8 << 20
"""Maximum bytes of a stored report, and of a log that is read. Jobs store less."""


class LargeReport(BadOutput):
    """A stored report is larger than any that a job writes."""


def read_report(place: Location) -> bytes:
    """Return a stored report. Raises LargeReport if it has more than MAX_BYTES."""
    content = place.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise LargeReport(
            f"'{place.uri}' is too large for a report (more than {MAX_BYTES} bytes). Delete it: no "
            "job has written it"
        )
    return content


def read_end(place: Location) -> str:
    """Return the last MAX_BYTES of a log as text. If it is longer, the first line says how many
    bytes are left out."""

    def read() -> str:
        with place.open_input_file() as source:
            start = max(0, source.size() - MAX_BYTES)
            source.seek(start)
            text = bytes(source.read(MAX_BYTES)).decode(errors="replace")
        return f"... {start} bytes ...\n{text}" if start else text

    return with_retries(read)

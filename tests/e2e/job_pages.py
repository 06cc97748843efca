"""Fetches pages of `batchinference ui` for jobs on the cluster."""

from __future__ import annotations

from urllib.request import urlopen

from e2e.transcripts import COMMAND_SECONDS, CommandLine
from support.timeouts import scaled


def fetched_page(command_line: CommandLine, name: str) -> str:
    """Return the HTML of the page of a job."""
    with (
        command_line.serving(name) as address,
        urlopen(f"{address}jobs/0", timeout=scaled(COMMAND_SECONDS)) as answer,
    ):
        content: bytes = answer.read()
        return content.decode()

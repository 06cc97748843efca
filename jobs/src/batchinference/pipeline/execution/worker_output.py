"""Reads what steps print on this machine from the output files of Ray's workers."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from batchinference.credentials import LineMasker
from batchinference.pipeline.errors import is_user_file
from batchinference.text import without_controls

_RAY_LINE = re.compile(
    r":(job_id|task_name|actor_name):|\[\d{4}-\d\d-\d\d .*\] |\*\*\* |PC: @|\s+@ |\[failure_signal"
    r"|Extension modules: "
)
"""Matches the beginning of lines that Ray itself writes."""
_FRAME = re.compile(r'  File "(.+)", line \d+ in ')
"""Matches a line of the stack that a crashing Python prints."""
_PROGRESS_BAR = re.compile(r"\d%\|")
_WORKER = re.compile(r"worker-.*-(\d+)")
MAX_READ = 1 << 20
"""Maximum bytes that are read at once from a file."""


class WorkerOutput:
    """The lines that Ray's workers on this machine print. `directory` has Ray's logs."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._read: dict[Path, int] = {}
        """The number of bytes that were read from each file."""
        self._mask: defaultdict[Path, LineMasker] = defaultdict(LineMasker)

    def new_lines(self) -> list[str]:
        """Return the lines since the last call, each with the process that printed it. Secrets are
        masked, and control characters removed."""
        lines = []
        for file in sorted(self._directory.glob("worker-*")):
            process = _WORKER.match(file.stem)
            for line in self._lines_of(file):
                if _is_user_line(line):
                    name = process[1] if process else "?"
                    shown = self._mask[file](without_controls(line))
                    lines.append(f"[worker {name}] {shown}")
        return lines

    def _lines_of(self, file: Path) -> list[str]:
        """Return the complete lines that were added to a file."""
        start = self._read.get(file, 0)
        with file.open("rb") as opened:
            opened.seek(start)
            content = opened.read(MAX_READ)
        complete = content[: content.rfind(b"\n") + 1]
        if not complete and len(content) == MAX_READ:  # a very long line
            complete = content
        self._read[file] = start + len(complete)
        return complete.decode(errors="replace").splitlines()


def _is_user_line(line: str) -> bool:
    """Return whether a line may come from user code. In the stack of a crashed process, only lines
    about the user's files may."""
    if not line.strip() or _RAY_LINE.match(line) or _PROGRESS_BAR.search(line):
        return False
    frame = _FRAME.match(line)
    return frame is None or is_user_file(frame[1])

"""A job's parsed `write` section, for suites that do not test the parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from batchinference.spec.write import Write

_WRITE: TypeAdapter[Write] = TypeAdapter(Write)


def write_of(format_: str, path: Path | str = "/out", **fields: Any) -> Any:
    """Return a parsed `write` section. `fields` have the names of a job's file."""
    return _WRITE.validate_python({"format": format_, "path": str(path), **fields})

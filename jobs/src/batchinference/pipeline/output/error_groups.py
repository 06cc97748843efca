"""Groups failed rows by step and cause. Messages of the same cause differ only in values."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from batchinference.json_text import to_json

MAX_CAUSES, MAX_EXAMPLES = 500, 3
"""Maximum number of groups, and of examples per group, because error records are untrusted."""
OTHER_CAUSES = "other causes"
_VARIABLE = re.compile(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|(?<![a-z0-9])(?<!\.py:)\d+(\.\d+)?", re.I)
"""Parts of a message that differ from row to row: memory addresses, quoted values and numbers.
Numbers after a letter (`utf8`) and line numbers of Python files do not match."""
Record = dict[str, Any]


@dataclass
class ErrorGroup:
    """Failed rows with the same step and cause. `examples` are their first error records."""

    step: str
    cause: str
    rows: int = 0
    examples: list[Record] = field(default_factory=list)


def group_errors(records: Iterable[Record], max_causes: int = MAX_CAUSES) -> list[ErrorGroup]:
    """Return the groups of error records, the largest first. If there are `max_causes` groups,
    records with a new cause are put into the group OTHER_CAUSES."""
    groups: dict[tuple[str, str], ErrorGroup] = {}
    for record in records:
        key = (str(record["step"] or "read"), cause_of(str(record["error"])))
        if key not in groups and len(groups) >= max_causes:
            key = ("any", OTHER_CAUSES)
        group = groups.setdefault(key, ErrorGroup(*key))
        group.rows += 1
        if len(group.examples) < MAX_EXAMPLES:
            group.examples.append(record)
    return sorted(groups.values(), key=lambda group: (-group.rows, group.step, group.cause))


def cause_of(error: str) -> str:
    """Return the first line of an error with `...` in place of the parts that differ from row to
    row. If the first line ends with a colon, the second line is included."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return _VARIABLE.sub("...", " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1]))


def key_of_row(record: Record) -> str:
    """Return a text that identifies the row of an error record in URLs: its id and a hash of its
    path. The id alone may repeat, because each appending job counts its input files from 0."""
    path = str(record.get("path")).encode(errors="replace")
    return f"{record.get('id')}-{hashlib.sha256(path).hexdigest()[:16]}"


def fields_of(values: str) -> list[tuple[str, str]]:
    """Return the name and the value (as text) of each column in the field `values` of an error
    record. If the field is not a JSON object, return it as a column without a name."""
    try:
        fields = json.loads(values)
    except (TypeError, ValueError, RecursionError):
        fields = None  # the record is untrusted
    if not isinstance(fields, dict):
        return [("", str(values))]
    return [(name, it if isinstance(it, str) else to_json(it)) for name, it in fields.items()]

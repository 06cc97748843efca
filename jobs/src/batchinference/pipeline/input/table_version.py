"""The version of a table whose data files an input snapshot holds."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.storage.arrow_files import schema_of


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, or its changes after the version `since`, up to `version`.

    `name` names the table in messages. `schema` has its columns and their types. `table` identifies
    the table: another one in the same place has another identity."""

    name: str
    version: int
    schema: pa.Schema
    since: int | None = None
    table: str = ""

    def serialized(self) -> bytes:
        schema = base64.b64encode(self.schema.serialize()).decode()
        return json.dumps([self.name, self.version, schema, self.since, self.table]).encode()

    @classmethod
    def parse(cls, content: bytes) -> TableVersion:
        """Return a version from its stored form. Raises ValueError if it is not readable."""
        name, version, schema, *others = json.loads(content)
        return cls(name, version, schema_of(base64.b64decode(schema)), *others)

"""The version of a Delta or Iceberg table that a job reads. The input snapshot stores it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.storage.arrow_files import schema_of


@dataclass(frozen=True)
class TableVersion:
    """A version of a table; with `since`, the changes after the version `since`, up to `version`.

    `name` is the name of the table in messages. `table` is the id of the table. A table that is
    dropped and created again gets another id."""

    name: str
    version: int
    schema: pa.Schema
    since: int | None = None
    table: str = ""

    def serialized(self) -> bytes:
        """Return the stored form, which is JSON."""
        schema = base64.b64encode(self.schema.serialize()).decode()
        return json.dumps([self.name, self.version, schema, self.since, self.table]).encode()

    @classmethod
    def parse(cls, content: bytes) -> TableVersion:
        """Return a version from its stored form. Raises ValueError if it cannot be parsed."""
        name, version, schema, *others = json.loads(content)
        return cls(name, version, schema_of(base64.b64decode(schema)), *others)

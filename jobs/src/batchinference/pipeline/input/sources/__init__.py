"""One module a source that is not files: from its fields to Ray's read tasks."""

from __future__ import annotations

import importlib
from typing import cast

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.imports import FORMATS_EXTRA, need
from batchinference.pipeline.input.sources.base import TableInput
from batchinference.spec.read import Read

LIBRARIES = {"sql": "sqlalchemy", "huggingface": "datasets", "lance": "lance"}
"""The sources by their formats in the specification, and the library that each imports. A module
is imported when it is needed."""


def open_table(read: Read) -> TableInput:
    """Connect to a source and cut it into tasks. Raises BadInput that names the field at fault."""
    need(f"the format '{read.format}'", LIBRARIES[read.format], FORMATS_EXTRA, BadInput)
    module = importlib.import_module(f"{__name__}.{read.format}")
    return cast(TableInput, module.open_source(read))

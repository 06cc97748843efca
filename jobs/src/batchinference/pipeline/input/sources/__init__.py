"""Table sources, one module each: from the fields of the specification to Ray's read tasks."""

from __future__ import annotations

import importlib
from typing import cast

from batchinference.pipeline.errors import FORMATS_EXTRA, BadInput, require_package
from batchinference.pipeline.input.sources.base import TableInput
from batchinference.spec.read import Read

LIBRARIES = {"sql": "sqlalchemy", "huggingface": "datasets", "lance": "lance"}
"""The library that a source imports, by the source's format in the specification. The module of a
source has the name of its format and is imported when it is needed."""


def open_table(read: Read) -> TableInput:
    """Connect to a source and return it split into read tasks.

    Raises BadInput with the name of the incorrect field."""
    if library := LIBRARIES.get(read.format):
        require_package(f"the format '{read.format}'", library, FORMATS_EXTRA, BadInput)
    module = importlib.import_module(f"{__name__}.{read.format}")
    return cast(TableInput, module.open_source(read))

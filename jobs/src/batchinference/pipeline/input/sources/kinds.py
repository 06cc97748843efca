"""Opens the sources of all formats. The module of a format is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import cast

from batchinference.pipeline.errors import FORMATS_EXTRA, BadInput, require_package
from batchinference.pipeline.input.sources import TableInput
from batchinference.spec.read import Read

LIBRARIES = {"sql": "sqlalchemy", "huggingface": "datasets", "lance": "lance"}
"""The library that a source needs, by format. The module of a source has the name of its format."""


def open_table(read: Read) -> TableInput:
    """Return the source as an input. Raises BadInput with the name of the incorrect field."""
    if library := LIBRARIES.get(read.format):
        require_package(f"the format '{read.format}'", library, FORMATS_EXTRA, BadInput)
    module = importlib.import_module(f"{__package__}.{read.format}")
    return cast(TableInput, module.open_source(read))

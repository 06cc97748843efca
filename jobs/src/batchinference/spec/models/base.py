"""What every model of a step has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import ColumnName

Source = Annotated[str, Field(min_length=1, max_length=1024)]
Inputs = Annotated[dict[ColumnName, ColumnName], Field(min_length=1, max_length=32)]

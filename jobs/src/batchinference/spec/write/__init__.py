"""Where to write, and how: one model a target."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.write.base import WriteColumns, WriteModel, WritePartitioned, WriteRows
from batchinference.spec.write.files import (
    WriteCsv,
    WriteImages,
    WriteJson,
    WriteNumpy,
    WriteParquet,
    WriteWebdataset,
)

WriteFiles = WriteParquet | WriteJson | WriteCsv | WriteNumpy | WriteWebdataset | WriteImages
Write = Annotated[WriteFiles, Field(discriminator="format")]

__all__ = [
    "Write",
    "WriteColumns",
    "WriteCsv",
    "WriteFiles",
    "WriteImages",
    "WriteJson",
    "WriteModel",
    "WriteNumpy",
    "WriteParquet",
    "WritePartitioned",
    "WriteRows",
    "WriteWebdataset",
]

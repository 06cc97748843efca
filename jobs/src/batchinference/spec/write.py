"""Where to write, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.uris import Uri


class WriteModel(SpecModel):
    path: Uri
    """The directory or s3:// prefix that takes the output. It is the job's alone."""
    mode: Literal["error", "overwrite"] = "error"
    """What to do when the path already holds something: refuse, or remove it first."""


class WriteParquet(WriteModel):
    """Parquet files; tensors are written as plain lists."""

    format: Literal["parquet"]
    """The format of the output."""
    compression: Literal["snappy", "zstd", "gzip", "lz4", "none"] = "snappy"
    """Compression of the files."""


class WriteJson(WriteModel):
    """JSON Lines files."""

    format: Literal["json"]
    """The format of the output."""
    compression: Literal["gzip", "none"] = "none"
    """Compression of the files."""


Write = Annotated[WriteParquet | WriteJson, Field(discriminator="format")]

"""Lists of addresses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import ColumnName
from batchinference.spec.read.base import ReadFiles
from batchinference.spec.read.media import PictureOptions
from batchinference.spec.uris import Prefix


class ManifestOptions(PictureOptions):
    column: ColumnName = "uri"
    """The column with the addresses: https://, http://, storage, or paths, which start at the
    manifest's own directory."""
    decode: Literal["bytes", "image", "text"] = "bytes"
    """What becomes of the bytes behind an address, in a column of that name."""
    on_unreachable: Literal["fail", "error"] = "fail"
    """What an address becomes that gives no answer, after retries: the job's failure, because
    storage that is away comes back, or the error of its row, as fits addresses gathered from the
    web."""
    allow: Annotated[list[Prefix], Field(max_length=64)] = []
    """Where else addresses may lead, by prefixes such as https://intranet.example/photos/,
    s3://bucket/photos/ or /data/. The public internet and the manifest's own bucket or directory
    are always allowed; other addresses are errors of their rows."""
    max_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 64 << 20
    """How many bytes one address may have, after decompression."""


class ReadManifest(ReadFiles):
    """Parquet or CSV files of addresses, each of which is fetched; the other columns are kept."""

    format: Literal["manifest"]
    """The format of the files."""
    options: ManifestOptions = ManifestOptions()
    """Options of the format."""

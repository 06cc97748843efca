"""Lists of addresses."""

from __future__ import annotations

from typing import Literal

from batchinference.spec.base import ColumnName
from batchinference.spec.read.base import ReadFiles
from batchinference.spec.read.media import ImageOptions


class ManifestOptions(ImageOptions):
    column: ColumnName = "uri"
    """The column with the addresses: https://, http://, storage, or paths, which start at the
    manifest's own directory."""
    decode: Literal["bytes", "image", "text"] = "bytes"
    """What becomes of the bytes behind an address, in a column of that name."""
    on_unreachable: Literal["fail", "error"] = "fail"
    """What an address becomes that gives no answer, after retries: the job's failure, because
    storage that is away comes back, or the error of its row, as fits addresses gathered from the
    web."""


class ReadManifest(ReadFiles):
    """Parquet or CSV files of addresses, each of which is fetched; the other columns are kept."""

    format: Literal["manifest"]
    """The format of the files."""
    options: ManifestOptions = ManifestOptions()
    """Options of the format."""

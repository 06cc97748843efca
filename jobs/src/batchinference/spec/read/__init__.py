"""The input of a job, with one model per format and its options."""

from typing import Annotated, get_args

from pydantic import Field

from batchinference.spec.read.base import FileOptions, ReadFiles, ReadModel
from batchinference.spec.read.documents import DocumentOptions, ReadDocuments, Render
from batchinference.spec.read.files import (
    AudioOptions,
    CsvOptions,
    ImageOptions,
    JsonOptions,
    ManifestOptions,
    NumpyOptions,
    ParquetOptions,
    ReadAudio,
    ReadBinary,
    ReadCsv,
    ReadImages,
    ReadJson,
    ReadManifest,
    ReadNumpy,
    ReadOpenaiBatch,
    ReadParquet,
    ReadText,
    ReadVideo,
    ReadWebdataset,
    TextOptions,
    VideoOptions,
    WebdatasetOptions,
)
from batchinference.spec.read.sources import (
    HuggingfaceOptions,
    LanceOptions,
    ReadHuggingface,
    ReadItems,
    ReadLance,
    ReadSql,
    SqlOptions,
)
from batchinference.spec.read.tables import ReadDelta, ReadIceberg, ReadVersioned

Read = Annotated[
    ReadImages
    | ReadParquet
    | ReadJson
    | ReadOpenaiBatch
    | ReadCsv
    | ReadText
    | ReadBinary
    | ReadNumpy
    | ReadAudio
    | ReadVideo
    | ReadWebdataset
    | ReadManifest
    | ReadDocuments
    | ReadSql
    | ReadHuggingface
    | ReadLance
    | ReadDelta
    | ReadIceberg
    | ReadItems,
    Field(discriminator="format"),
]


def format_of(kind: type[ReadModel]) -> str:
    """Return the value of the field `format` of a class."""
    return str(get_args(kind.model_fields["format"].annotation)[0])


FILE_FORMATS: dict[str, type[ReadFiles]] = {
    format_of(kind): kind for kind in get_args(get_args(Read)[0]) if issubclass(kind, ReadFiles)
}
"""The class of each format of files."""

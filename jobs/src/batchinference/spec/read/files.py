"""Input formats that are files, and their options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import DELIMITER, NAMED_ONCE, ColumnName, Columns, Unique
from batchinference.spec.encodings import Encoding
from batchinference.spec.media import MAX_PIXELS, MaxPixels, Mode, SampleRate, Size
from batchinference.spec.read.base import FileOptions, ReadFiles, RowOptions
from batchinference.spec.uris import Prefix


class TextOptions(RowOptions):
    encoding: Encoding = "utf-8"
    """The Python name of the encoding."""
    drop_empty_lines: bool = True
    """Skip lines that contain only white space."""


class ReadText(ReadFiles):
    """Text files, one row per line, in a column `text`."""

    format: Literal["text"]
    """The format of the files."""
    options: TextOptions = TextOptions()
    """Options of the format."""


class BinaryOptions(RowOptions):
    pass


class ReadBinary(ReadFiles):
    """Files of any kind, one row per file, in a column `bytes`."""

    format: Literal["binary"]
    """The format of the files."""
    options: BinaryOptions = BinaryOptions()
    """Options of the format."""


class ParquetOptions(FileOptions):
    columns: Columns | None = None
    """The columns to read. Other columns are not fetched. All columns by default."""


class ReadParquet(ReadFiles):
    """Parquet files."""

    format: Literal["parquet"]
    """The format of the files."""
    options: ParquetOptions = ParquetOptions()
    """Options of the format."""


class JsonOptions(RowOptions):
    lines: bool = True
    """Whether each line is a JSON object (JSON Lines). An object may also span lines. If false, a
    file is one array of objects."""


class ReadJson(ReadFiles):
    """JSON files. The fields of an object are the columns of a row."""

    format: Literal["json"]
    """The format of the files."""
    options: JsonOptions = JsonOptions()
    """Options of the format."""


class CsvOptions(RowOptions):
    delimiter: Annotated[str, Field(pattern=DELIMITER, max_length=1)] = ","
    """The character between two fields."""
    column_names: Columns | None = None
    """The column names, for files without a header line."""
    encoding: Encoding = "utf-8"
    """The Python name of the encoding."""


class ReadCsv(ReadFiles):
    """Files of delimiter-separated values with a header line."""

    format: Literal["csv"]
    """The format of the files."""
    options: CsvOptions = CsvOptions()
    """Options of the format."""


class NumpyOptions(RowOptions):
    DEFAULT_ROW_BYTES = 1 << 30


class ReadNumpy(ReadFiles):
    """NumPy files, one row per element of the first axis: .npy with a column `data`, .npz with a
    column for each array."""

    format: Literal["numpy"]
    """The format of the files."""
    options: NumpyOptions = NumpyOptions()
    """Options of the format."""


class PixelOptions(FileOptions):
    """Options of formats with decoded images."""

    max_pixels: MaxPixels = MAX_PIXELS
    """Maximum number of pixels of an image. A larger image is a failed row."""


class PictureOptions(PixelOptions):
    """Options of formats with images."""

    mode: Mode = "RGB"
    """The Pillow mode to which every image is converted."""
    size: Size | None = None
    """Height and width in pixels to which every image is resized. Models need images of one size,
    and small images need less memory. Each image keeps its own size by default."""


class ImageOptions(PictureOptions, RowOptions):
    pass


class AudioOptions(RowOptions):
    DEFAULT_ROW_BYTES = 1 << 30

    sample_rate: SampleRate | None = None
    """Sampling rate in Hz to which all audio is resampled, such as 16000 for speech models. Each
    file keeps its own sampling rate by default."""
    mono: bool = False
    """Mix all channels into one. `amplitude` then has the shape samples, not channels x samples."""


class VideoOptions(PixelOptions):
    fps: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Number of frames to read per second: the first frame at or after each point in time. All
    frames by default."""
    size: Size | None = None
    """Height and width in pixels to which every frame is resized. Not resized by default."""
    include_timestamps: bool = False
    """Add a column `frame_timestamp`: the time of the frame in seconds."""


class ReadImages(ReadFiles):
    """Images, one row per file, in a column `image` of height x width x channels (uint8)."""

    format: Literal["images"]
    """The format of the files."""
    options: ImageOptions = ImageOptions()
    """Options of the format."""


class ReadAudio(ReadFiles):
    """Audio files, one row per file: `amplitude` of channels x samples (float32, from -1 to 1) and
    `sample_rate`."""

    format: Literal["audio"]
    """The format of the files."""
    options: AudioOptions = AudioOptions()
    """Options of the format."""


class ReadVideo(ReadFiles):
    """Videos, one row per frame: `frame` of height x width x RGB (uint8), and `frame_index`."""

    format: Literal["video"]
    """The format of the files."""
    options: VideoOptions = VideoOptions()
    """Options of the format."""


class TfrecordsOptions(RowOptions):
    DEFAULT_ROW_BYTES = 64 << 20

    list_columns: Columns | None = None
    """Features that are always lists. Any other feature is a list only if the first records have
    several values for it."""


class ReadTfrecords(ReadFiles):
    """Files of tf.train.Example records, optionally compressed with gzip. Each feature is a
    column."""

    format: Literal["tfrecords"]
    """The format of the files."""
    options: TfrecordsOptions = TfrecordsOptions()
    """Options of the format."""


class WebdatasetOptions(ImageOptions):
    decoder: bool = True
    """Decode members by their extension: images, JSON, text, and the labels in .cls and .index,
    which are integers if the first samples have only integers, and texts otherwise. Other members
    are bytes. If false, all members are bytes."""
    suffixes: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=64)]],
            Field(min_length=1, max_length=64, json_schema_extra=NAMED_ONCE),
            Unique,
        ]
        | None
    ) = None
    """The extensions to read, without the first dot. Other members are left out. The first samples
    of a few archives must have each of these extensions."""


class ReadWebdataset(ReadFiles):
    """Tar archives of samples. Members with the same name up to the first dot are a row, wherever
    they are in the archive, with this name in the column `__key__` and a column for each
    extension."""

    format: Literal["webdataset"]
    """The format of the files."""
    options: WebdatasetOptions = WebdatasetOptions()
    """Options of the format."""


class ManifestOptions(PictureOptions):
    column: ColumnName = "uri"
    """The column with the addresses: https:// or http:// URLs, URIs of an object store, or paths
    relative to the directory of the manifest."""
    decode: Literal["bytes", "image", "text"] = "bytes"
    """How the content of each address is decoded. This is also the name of the new column."""
    on_unreachable: Literal["fail", "error"] = "fail"
    """What happens if an address does not respond after retries. `fail`: the attempt fails, for
    storage whose outages are temporary. `error`: the row is a failed row, for addresses on the
    web."""
    allow: Annotated[list[Prefix], Field(max_length=64)] = []
    """Prefixes of further addresses that are allowed, such as https://intranet.example/photos/,
    s3://bucket/photos/ or /data/. The public internet and the bucket or directory of the manifest
    are always allowed. A row with any other address fails."""
    max_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 64 << 20
    """Maximum size in bytes of the content of an address, after decompression."""


class ReadManifest(ReadFiles):
    """Parquet or CSV files of addresses. Each address is fetched. Other columns are kept."""

    format: Literal["manifest"]
    """The format of the files."""
    options: ManifestOptions = ManifestOptions()
    """Options of the format."""

"""Input formats that are files, and their options."""

import math
import re
from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import DELIMITER, PUNCTUATION, ColumnName, Columns, Unique, invalid
from batchinference.spec.column_types import TimeZone
from batchinference.spec.file_extensions import HEIF, PARQUET, PICTURES, packed
from batchinference.spec.media import Encoding, FrameFields, ImageFields, SoundFields
from batchinference.spec.quantities import Quantity, Size
from batchinference.spec.read.base import (
    FileOptions,
    ReadFiles,
    RowOptions,
    TableOptions,
    TypedOptions,
)
from batchinference.spec.uri_fields import UriPrefix

USUAL_PICTURE, USUAL_FRAME, USUAL_OBJECT = (512, 512), (720, 1280), 1 << 18
"""Sizes to assume if a size is unknown: height and width in pixels, or the bytes of an object."""
NullValues = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64), Unique]


class TextOptions(RowOptions):
    encoding: Encoding = "utf-8"
    """The Python name of the encoding."""
    drop_empty_lines: bool = True
    """Skip lines that contain only white space."""


class ReadText(ReadFiles):
    """Text files, one row per line, in a column `text`."""

    EXTENSIONS = packed("txt", "text", "md", "rst", "log")
    COLUMNS = ("text",)

    format: Literal["text"]
    options: TextOptions = TextOptions()


class BinaryOptions(RowOptions):
    pass


class ReadBinary(ReadFiles):
    """Files of any kind, one row per file, in a column `bytes`."""

    HAS_TEXTS = False
    COLUMNS = ("bytes",)

    format: Literal["binary"]
    options: BinaryOptions = BinaryOptions()


class ParquetOptions(TableOptions):
    columns: Columns | None = None
    """The columns to read. Other columns are not fetched. All columns by default."""
    assume_timezone: TimeZone | None = None
    """The time zone of timestamps without one, such as UTC or Europe/Berlin. They become points in
    time, like timestamps with a time zone."""
    int96: Literal["us", "ns"] = "us"
    """The unit of INT96 timestamps, as Hive, Impala and older versions of Spark write them. `us`
    covers all years. `ns` has nanoseconds, but covers only the years 1677 to 2262. A row with a
    timestamp outside of these years is a failed row."""


class ReadParquet(ReadFiles):
    """Parquet files."""

    EXTENSIONS = PARQUET
    READS_TABLES = True
    TASK_ROWS = 1000

    format: Literal["parquet"]
    options: ParquetOptions = ParquetOptions()

    @property
    def own_columns(self) -> list[str] | None:
        return self.options.columns


class JsonOptions(TypedOptions, RowOptions):
    lines: bool = True
    """Whether each line is a JSON object (JSON Lines). An object may also span several lines. If
    false, a file is one array of objects."""


class ReadJson(ReadFiles):
    """JSON files. The fields of an object are the columns of a row."""

    EXTENSIONS = packed("json", "jsonl", "ndjson")

    format: Literal["json"]
    options: JsonOptions = JsonOptions()


class ReadOpenaiBatch(ReadFiles):
    """Request files of the OpenAI and Azure batch APIs: JSON Lines with the columns `custom_id`,
    `method`, `url` and `body`, which is JSON text. Further fields of a line are left out. A line
    that the batch API would refuse is a failed row, but a `custom_id` may be repeated."""

    EXTENSIONS = packed("jsonl", "ndjson", "json")
    COLUMNS = ("custom_id", "method", "url", "body")

    format: Literal["openaiBatch"]
    options: RowOptions = RowOptions()

    def wrong_option(self, columns: list[str]) -> tuple[str, str]:
        what = f"requests have the columns {', '.join(columns)}, and steps read others"
        return "format", f"{what}. Set read.format to json for lines of data"


class CsvOptions(TableOptions, RowOptions):
    delimiter: Annotated[str, Field(pattern=DELIMITER, max_length=1)] | None = None
    """The character between two fields. By default, a comma, or in .tsv files a tab. A first line
    such as `sep=;` names another delimiter, and is skipped."""
    column_names: Columns | None = None
    """The column names, for files without a header line."""
    encoding: Encoding = "utf-8"
    """The Python name of the encoding."""
    quote: Annotated[str, Field(pattern=PUNCTUATION, max_length=1)] = '"'
    """The character around a value that contains delimiters or line ends. Within the value, this
    character is doubled. Empty if the files have no quotes: `"` is then a part of the values."""
    escape: Annotated[str, Field(pattern=PUNCTUATION, max_length=1)] = ""
    """The character that makes a quote, delimiter or line end after it a part of the value, such as
    a backslash. A field that is this character and `N` is null. If `quote` is empty, `escape` also
    begins the sequences of MySQL and PostgreSQL: `\\n` is a line feed and `\\t` a tab."""
    comment: Annotated[str, Field(pattern=PUNCTUATION, max_length=1)] = ""
    """The character at the beginning of lines to leave out, such as `#`."""
    skip_lines: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Number of lines to leave out before the header."""
    newlines_in_values: bool = True
    """Whether values in quotes may have line ends. If false, a missing quote damages one line."""
    decimal: Literal[".", ","] = "."
    """The character before the fraction of a number. With a comma, `1.5` is not a number."""
    null_values: NullValues = []
    """Texts that mean null in all columns. In columns that are not text, an empty field and texts
    such as `NA` and `null` always mean null."""

    def _check(self) -> None:
        super()._check()
        characters = [self.delimiter or ",", self.quote, self.escape, self.comment]
        not_empty = [character for character in characters if character]
        if len(not_empty) > len(set(not_empty)):
            raise invalid(
                "delimiter, quote, escape and comment: two of them are the same character. A "
                "doubled quote is always a quote, so it needs no escape"
            )


class ReadCsv(ReadFiles):
    """Files of delimiter-separated values with a header line."""

    EXTENSIONS = packed("csv", "tsv")

    format: Literal["csv"]
    options: CsvOptions = CsvOptions()

    @property
    def own_columns(self) -> list[str] | None:
        return self.options.column_names

    def wrong_option(self, columns: list[str]) -> tuple[str, str] | None:
        shown = ", ".join(columns)[:60]
        line = f"the first line is '{shown}'"
        if any(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", name) for name in columns):
            names = ", ".join(f"NAME{number}" for number in range(1, len(columns) + 1))
            fix = f"which looks like a row and not like names. Write columnNames: [{names}]"
            return "options.columnNames", f"{line}, {fix}"
        if len(columns) != 1:
            return None
        if columns[0].startswith("#"):
            return "options.comment", f"{line}, a comment. Set it to '#'"
        if sign := next((sign for sign in ",;\t|" if sign in columns[0]), None):
            fix = f"{line}, and the only column. Set it to {sign!r}"
            return "options.delimiter", fix
        return None


class NumpyOptions(RowOptions):
    DEFAULT_ROW_BYTES = 1 << 30


class ReadNumpy(ReadFiles):
    """NumPy files, one row per element of the first axis. In .npz files, arrays are columns; in
    .npy files, the column is `data`."""

    EXTENSIONS = ("npy", "npz")
    HAS_TEXTS = False

    format: Literal["numpy"]
    options: NumpyOptions = NumpyOptions()


class PictureOptions(ImageFields, FileOptions):
    """Options of formats with images."""

    @property
    def picture_bytes(self) -> int:
        """Return the bytes of a picture in memory; approximate if its size is unknown."""
        return math.prod(self.size or USUAL_PICTURE) * len(self.mode)


class ImageOptions(PictureOptions, RowOptions):
    pages: Literal["first", "all"] = "first"
    """`first`: each file is one row. Of a file with several pages or frames, the first one is read.
    `all`: each page or frame is a row, with its number from 0 in a column `page_index`."""


class AudioOptions(SoundFields, RowOptions):
    DEFAULT_ROW_BYTES = 1 << 30


class VideoOptions(FrameFields, FileOptions):
    fps: Annotated[float, Field(gt=0, le=1000), *Quantity] | None = None
    """Frames per second to read: the first one at or after each point in time. All by default."""
    include_timestamps: bool = False
    """Add a column `frame_timestamp`: the time of the frame in seconds."""


class ReadImages(ReadFiles):
    """Images, one row per file or page: `image` of height x width x channels (uint8)."""

    EXTENSIONS = PICTURES
    PACKAGED = HEIF
    HAS_TEXTS = False

    format: Literal["images"]
    options: ImageOptions = ImageOptions()

    @property
    def own_columns(self) -> list[str] | None:
        return ["image", *["page_index"] * (self.options.pages == "all")]

    def row_bytes(self, size: int, rows: int) -> int:
        return self.options.picture_bytes


class ReadAudio(ReadFiles):
    """Audio files, one row per file: `amplitude` of channels x samples (float32, from -1 to 1) and
    `sample_rate`."""

    EXTENSIONS = (
        *("wav", "flac", "mp3", "ogg", "oga", "opus", "aif", "aiff", "aifc", "au", "snd", "caf"),
        *("w64", "rf64", "wave", "m4a", "m4b", "aac", "webm", "weba", "mka", "wma"),
        *("mp2", "ac3", "amr"),
    )
    AMBIGUOUS = ("mp4", "3gp", "mov")
    HAS_TEXTS = False
    INFLATION = 10
    COLUMNS = ("amplitude", "sample_rate")

    format: Literal["audio"]
    options: AudioOptions = AudioOptions()


class ReadVideo(ReadFiles):
    """Videos, one row per frame: `frame` of height x width x RGB (uint8), and `frame_index`."""

    EXTENSIONS = (
        *("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "m2ts", "mts"),
        *("wmv", "asf", "flv", "3gp", "3g2", "ogv", "vob", "mxf"),
    )
    HAS_TEXTS = False

    format: Literal["video"]
    options: VideoOptions = VideoOptions()

    @property
    def own_columns(self) -> list[str]:
        return ["frame", "frame_index", *["frame_timestamp"] * self.options.include_timestamps]

    def row_bytes(self, size: int, rows: int) -> int:
        return math.prod(self.options.size or USUAL_FRAME) * 3


class WebdatasetOptions(TypedOptions, PictureOptions, RowOptions):
    decoder: bool = True
    """Decode members by their extension: images, JSON, text, and labels in .cls and .index. Labels
    are integers if the first samples have only integers, and otherwise texts. Other members are
    bytes. If false, all members are bytes."""
    suffixes: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=64)]],
            Field(min_length=1, max_length=64),
            Unique,
        ]
        | None
    ) = None
    """The extensions to read, without the first dot. Other members are left out. The first samples
    of a few archives must have each of these extensions."""


class ReadWebdataset(ReadFiles):
    """Tar archives of samples. Members with the same name up to the first dot are a row, wherever
    they are in the archive. The row has this name in `__key__`, and a column for each extension."""

    EXTENSIONS = ("tar", "tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz")
    AMBIGUOUS = ("gz",)
    INFLATION = 10

    format: Literal["webdataset"]
    options: WebdatasetOptions = WebdatasetOptions()


class ManifestOptions(PictureOptions):
    column: ColumnName = "uri"
    """The column with the addresses: HTTP URLs, URIs of an object store, or paths relative to the
    directory of the manifest."""
    decode: Literal["bytes", "image", "text"] = "bytes"
    """How the content of each address is decoded. This is also the name of the new column."""
    on_unreachable: Literal["fail", "error"] = "fail"
    """What happens if an address does not respond after retries. `fail`, for storage with temporary
    outages: the attempt fails. `error`, for addresses on the web: the row is a failed row."""
    allow: Annotated[list[UriPrefix], Field(max_length=64)] = []
    """Prefixes of further addresses that are allowed, such as https://intranet.example/photos/,
    s3://bucket/photos/ or /data/. The public internet and the bucket or directory of the manifest
    are always allowed. A row with any other address fails."""
    max_bytes: Annotated[int, Field(ge=1, le=1 << 30), *Size] = 64 << 20
    """Maximum size of the content of an address, after decompression."""


class ReadManifest(ReadFiles):
    """Parquet or CSV files of addresses. Each address is fetched. Other columns are kept."""

    EXTENSIONS = (*PARQUET, *packed("csv"))
    READS_TABLES = True
    TASK_ROWS = 256

    format: Literal["manifest"]
    options: ManifestOptions = ManifestOptions()

    def row_bytes(self, size: int, rows: int) -> int:
        options = self.options
        return options.picture_bytes if options.decode == "image" else USUAL_OBJECT

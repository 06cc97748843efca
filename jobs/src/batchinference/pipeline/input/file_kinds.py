"""The file extensions of each format, and the extensions that say that a file is something else.

Files with other extensions, or with none, are recognized by their content (see `signatures`).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping

from batchinference.pipeline.input.signatures import SIGNED
from batchinference.pipeline.storage.location import COMPRESSIONS

HEIF, HEIF_PACKAGE = ("heic", "heif", "hif"), "pillow-heif"
_PARQUET = ("parquet", "parq", "pq")
_CSV, _JSON = ("csv", "tsv"), ("json", "jsonl", "ndjson")
_TEXT = ("txt", "text", "md", "rst", "log")


def _packed(*endings: str) -> tuple[str, ...]:
    """Return the extensions of files of lines, without and with a compression."""
    return (*endings, *(f"{ending}.{packed}" for packed in COMPRESSIONS for ending in endings))


EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "images": (
        *("jpg", "jpeg", "jpe", "jfif", "jif", "png", "apng", "webp", "gif", "bmp", "dib"),
        *("tif", "tiff", "jp2", "j2k", "j2c", "jpc", "jpf", "jpx", "avif"),
        *("ppm", "pgm", "pbm", "pnm", "mpo"),
    ),
    "parquet": _PARQUET,
    "json": _packed(*_JSON),
    "csv": _packed(*_CSV),
    "text": _packed(*_TEXT),
    "binary": (),
    "numpy": ("npy", "npz"),
    "audio": (
        *("wav", "flac", "mp3", "ogg", "oga", "opus", "aif", "aiff", "aifc", "au", "snd", "caf"),
        *("w64", "rf64", "wave", "m4a", "m4b", "aac", "webm", "weba", "mka", "wma"),
        *("mp2", "ac3", "amr"),
    ),
    "video": (
        *("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "m2ts", "mts"),
        *("wmv", "asf", "flv", "3gp", "3g2", "ogv", "vob", "mxf"),
    ),
    "tfrecords": ("tfrecords", "tfrecord", "tfrec", "tfrecords.gz", "tfrecord.gz", "tfrec.gz"),
    "webdataset": ("tar", "tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz"),
    "manifest": (*_PARQUET, *_packed("csv")),
}
"""The extensions of the files of each format; empty for all files."""
_AMBIGUOUS = {"audio": {"mp4", "3gp"}, "webdataset": {"gz"}, "tfrecords": {"gz"}}
"""Extensions of other formats with which a file may also be of this one."""
_TEMPORARY = """
tmp temp part partial crdownload download filepart inprogress _copying_ swp swo bak old orig crc md5
sha1 sha256 sha512 sig asc lock
"""
TEMPORARY = frozenset(_TEMPORARY.split())
"""Extensions of unfinished files, backups and checksums. A file with one is not read, because it
may be a copy of another."""
_OTHERS = """
html htm xml css js mjs py ipynb java c h cc cpp hpp cs rs go rb php pl r jl sh bat ps1 sql yaml yml
toml ini cfg conf properties tex bib rtf pdf doc docx xls xlsx xlsm ppt pptx odt ods odp epub eml
msg vcf ics avro orc arrow feather ipc lance h5 hdf5 hdf nc mat sav dta rds rda pkl pickle pt pth
ckpt safetensors onnx gguf joblib sqlite sqlite3 db mdb proto pb geojson kml kmz gpx shp shx dbf prj
cpg las laz ply obj stl glb gltf fbx usdz zip 7z rar gz bz2 zst lz4 xz lzo br jar war whl deb rpm
iso dmg exe dll so dylib pyc class svg eps ps ai psd xcf ico icns cur wmf emf tga jxl exr hdr pfm
dng cr2 cr3 nef nrw arw orf rw2 raf pef srw raw dcm nii fits svs ndpi scn mrxs lsm vtt srt ass m3u
m3u8 pls cue mid midi mod sf2 amr ape wv ra rm ac3 dts aae xmp woff woff2 ttf otf lnk url
"""
"""Extensions of files that no format reads. Raw pictures of cameras and scans begin like TIFF, but
Pillow would read only the thumbnail in them."""
_KNOWN = TEMPORARY.union(_OTHERS.split(), HEIF, *EXTENSIONS.values())
_EXTENSION = re.compile(r"[a-z0-9_-]{1,16}")


def extension_of(name: str) -> str:
    """Return the extension of a file name in lower case without its first dot, with that of a
    compression, such as `csv.gz`. It is empty if there is none that names a kind of file."""
    parts = name.lower().split(".")[1:]
    if not parts or parts[-1].isdigit() or not _EXTENSION.fullmatch(parts[-1]):
        return ""
    packed = parts[-1] in (*COMPRESSIONS, "xz") and _EXTENSION.fullmatch(".".join(parts[-2:-1]))
    return ".".join(parts[-2:]) if packed else parts[-1]


def is_known(extension: str) -> bool:
    """Return whether an extension tells the kind of a file."""
    return not _KNOWN.isdisjoint(extension.split("."))


def is_undecided(extension: str, file_format: str) -> bool:
    """Return whether only the content shows whether a file with this extension is of a format that
    has a signature."""
    if file_format not in SIGNED:
        return False
    return not is_known(extension) or extension in _AMBIGUOUS.get(file_format, ())


def reads_heif() -> bool:
    """Return whether HEIC pictures can be decoded here."""
    return importlib.util.find_spec(HEIF_PACKAGE.replace("-", "_")) is not None

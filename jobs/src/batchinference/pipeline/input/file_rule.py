"""Decides which files in an input directory a job reads, by name, extension and first bytes."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow.fs as pafs

from batchinference.pipeline.error_classification import is_transient
from batchinference.pipeline.input.ignored_files import Reason
from batchinference.pipeline.input.readers.kinds import reader_class
from batchinference.pipeline.input.signatures import HEAD_BYTES, is_heif
from batchinference.pipeline.storage.location import Location, base_name, is_hidden
from batchinference.spec.file_extensions import HEIF_PACKAGE, extension_of
from batchinference.spec.read import FILE_FORMATS, ReadFiles, format_of

_TEMPORARY = """
tmp temp part partial crdownload download filepart inprogress _copying_ swp swo bak old orig crc md5
sha1 sha256 sha512 sig asc lock
"""
TEMPORARY = frozenset(_TEMPORARY.split())
"""Extensions of unfinished files, backups and checksums. By default, such a file is not read,
because it may be a copy of another file."""
_UNREADABLE = """
xml css js mjs py ipynb java c h cc cpp hpp cs rs go rb php pl r jl sh bat ps1 sql yaml yml
toml ini cfg conf properties tex bib rtf doc xls xlsx xlsm ppt odt ods odp epub
msg vcf ics avro orc arrow feather ipc lance h5 hdf5 hdf nc mat sav dta rds rda pkl pickle pt pth
ckpt safetensors onnx gguf joblib sqlite sqlite3 db mdb proto pb geojson kml kmz gpx shp shx dbf prj
cpg las laz ply obj stl glb gltf fbx usdz zip 7z rar gz bz2 zst lz4 xz lzo br jar war whl deb rpm
iso dmg exe dll so dylib pyc class svg eps ps ai psd xcf ico icns cur wmf emf tga jxl exr hdr pfm
dng cr2 cr3 nef nrw arw orf rw2 raf pef srw raw dcm nii fits svs ndpi scn mrxs lsm vtt srt ass m3u
m3u8 pls cue mid midi mod sf2 ape wv ra rm dts aae xmp woff woff2 ttf otf lnk url
"""
"""Extensions of files that no format reads, even if their content looks readable. For example, raw
pictures of cameras begin like TIFF, but Pillow would read only the thumbnail in them."""
_KNOWN = TEMPORARY.union(
    _UNREADABLE.split(), *((*kind.EXTENSIONS, *kind.PACKAGED) for kind in FILE_FORMATS.values())
)


def is_known(extension: str) -> bool:
    """Return whether an extension is of a format, or of files that are not read by default."""
    return not _KNOWN.isdisjoint(extension.split("."))


def reads_heif() -> bool:
    """Return whether the package that decodes HEIC pictures is installed."""
    return importlib.util.find_spec(HEIF_PACKAGE.replace("-", "_")) is not None


EXAMINED_SAMPLE, MAX_EXAMINED = 64, 10_000
"""EXAMINED_SAMPLE files of each extension are opened first. If the decision is the same for all of
them, it also holds for the other files. At most MAX_EXAMINED files of a path are opened."""
THREADS = 32
_MARKER = re.compile(
    r"_success|_temporary|_(committed|started)_.*|_spark_metadata|_delta_log|_change_data"
    r"|_batchinference|__macosx|__pycache__|\._.*|\.ds_store|\.hoodie.*|\.git.*"
    r"|\.ipynb_checkpoints|\.trash.*|\.thumbnails|.*\.crc|.*\.sw[op]",
    re.IGNORECASE,
)
"""Matches hidden names of files and directories without data, such as those that Spark adds."""
_MARKER_FILE = re.compile("_(common_)?metadata|_logs|_tmp.*", re.IGNORECASE)
"""Matches names of files without data. Directories with these names may hold data."""
_SYSTEM_FILES = frozenset(("thumbs.db", "desktop.ini"))

Decision: TypeAlias = Literal["read"] | Reason
"""Whether a file is read, or why it is ignored."""
ByName: TypeAlias = Decision | Literal["examine"]
"""A decision by the name of a file. `examine` means that the first bytes of the file decide."""


@dataclass(frozen=True)
class FileRule:
    """Decides which files in a directory are read: files with one of the `endings`, such as `.csv`.
    Without `endings`, all files are read. Hidden files are never read. With `by_content`, the first
    bytes of a file with an unknown or ambiguous extension decide (`recognizes`)."""

    endings: tuple[str, ...]
    kind: type[ReadFiles] = ReadFiles
    by_content: bool = False
    recognizes: Callable[[bytes], bool] | None = None
    max_examined: int = MAX_EXAMINED

    @classmethod
    def of(cls, extensions: Sequence[str] | None, kind: type[ReadFiles]) -> FileRule:
        """Return the rule for these extensions, with or without a dot, in upper or lower case.
        `None` means the default of the format."""
        if extensions is None:
            endings = (*kind.EXTENSIONS, *(kind.PACKAGED if reads_heif() else ()))
            recognizes = reader_class(format_of(kind)).recognizes
            return cls(tuple(f".{ending}" for ending in endings), kind, True, recognizes)
        endings = tuple(extension.lower().removeprefix(".") for extension in extensions)
        return cls(tuple(f".{ending}" for ending in endings), kind)

    def decide(self, info: pafs.FileInfo, within: str) -> ByName:
        """Return the decision by the name of a file. `within` is its path below the directory."""
        if info.type != pafs.FileType.File:
            return Reason.SPECIAL
        parts = within.split("/")
        has_ending = not self.endings or parts[-1].lower().endswith(self.endings)
        decision: ByName = "read"
        if not has_ending:
            decision = self._decide_by_extension(parts[-1], info.size or 0)
        if any(map(is_hidden, parts)):
            may_be_data = has_ending or decision in ("examine", Reason.PACKAGE)
            return Reason.HIDDEN if may_be_data and not _is_marker(parts) else Reason.MARKER
        return decision

    def _decide_by_extension(self, name: str, size: int) -> ByName:
        extension = extension_of(name)
        if name.lower() in _SYSTEM_FILES:
            return Reason.MARKER
        if not self.by_content:
            return Reason.EXTENSION
        if extension in TEMPORARY or name.endswith("~"):
            return Reason.TEMPORARY
        if extension in self.kind.PACKAGED:
            return Reason.PACKAGE
        content_decides = not is_known(extension) or extension in self.kind.AMBIGUOUS
        if self.recognizes is None or not content_decides:
            return Reason.EXTENSION
        return "examine" if size else Reason.EMPTY

    def examine(self, files: Sequence[Location]) -> Iterator[tuple[Location, Decision]]:
        """Yield each file with the decision by its content. Opens at most `max_examined` files."""
        by_extension: dict[str, list[Location]] = {}
        for file in files:
            by_extension.setdefault(extension_of(base_name(file.path)), []).append(file)
        samples = [group[:: -(-len(group) // EXAMINED_SAMPLE)] for group in by_extension.values()]
        sampled = [file for sample in samples for file in sample][: self.max_examined]
        decisions = self._examined(sampled)
        undecided: list[Location] = []
        for group in by_extension.values():
            others = [file for file in group if file not in decisions]
            of_sample = {decisions[file] for file in group if file in decisions}
            if len(of_sample) == 1:
                decisions |= dict.fromkeys(others, of_sample.pop())
            else:
                undecided += others
        decisions |= self._examined(undecided[: self.max_examined - len(sampled)])
        return ((file, decisions.get(file, Reason.UNEXAMINED)) for file in files)

    def _examined(self, files: Sequence[Location]) -> dict[Location, Decision]:
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(files, pool.map(self._decide_by_content, files), strict=True))

    def _decide_by_content(self, file: Location) -> Decision:
        try:
            head = file.read(HEAD_BYTES)
        except OSError as error:
            if is_transient(error):
                raise
            return Reason.UNREADABLE
        if self.recognizes is not None and self.recognizes(head):
            return "read"
        if self.kind.PACKAGED and is_heif(head):
            return "read" if reads_heif() else Reason.PACKAGE
        return Reason.EXTENSION if is_known(extension_of(base_name(file.path))) else Reason.CONTENT


def _is_marker(parts: Sequence[str]) -> bool:
    """Return whether a hidden file is known to hold no data. `parts` are the names in its path."""
    return bool(_MARKER_FILE.fullmatch(parts[-1])) or any(
        _MARKER.fullmatch(part) for part in parts if is_hidden(part)
    )

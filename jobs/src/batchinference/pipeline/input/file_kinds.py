"""The file extensions that say that a file is of another format, or not for this program.

Files with other extensions, or with none, are recognized by their content (see `signatures`).
"""

from __future__ import annotations

import importlib.util

from batchinference.spec.file_extensions import HEIF_PACKAGE
from batchinference.spec.read import FILE_FORMATS

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
_KNOWN = TEMPORARY.union(
    _OTHERS.split(),
    *((*kind.EXTENSIONS, *kind.PACKAGED) for kind in FILE_FORMATS.values()),
)


def is_known(extension: str) -> bool:
    """Return whether an extension tells the kind of a file."""
    return not _KNOWN.isdisjoint(extension.split("."))


def reads_heif() -> bool:
    """Return whether HEIC pictures can be decoded here."""
    return importlib.util.find_spec(HEIF_PACKAGE.replace("-", "_")) is not None

"""Hashes of model files. Of a large file, samples are hashed, because reading all of it would take
minutes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar
from zipfile import BadZipFile, ZipFile

import pyarrow as pa
from pydantic import TypeAdapter

from batchinference.file_names import escaped
from batchinference.pipeline.storage.json import load_json
from batchinference.pipeline.storage.location import Location, base_name

SAMPLES, SAMPLE_BYTES = 64, 64 << 10
"""Samples at equal distances in a large file, and their size. Smaller files are hashed entirely."""
TENSOR_BYTES, MAX_TENSORS = 4 << 10, 512
"""Bytes from the middle of each tensor of a file, and how many tensors of a file are sampled."""
MAX_HEADER_BYTES = 16 << 20
READ_THREADS, FILE_THREADS = 16, 8
_SPANS = TypeAdapter(dict[str, tuple[int, int]])
File = TypeVar("File")
Hash = TypeVar("Hash")
Range = tuple[int, int]
"""The offset and the number of bytes."""


def hashes_of(place: Location) -> Iterator[tuple[str, str]]:
    """Yield `file NAME` and the hash of a file, or of each file in a directory and below. Hidden
    files are left out."""
    info = place.info()
    found = [info] if info.is_file else place.files(recursive=True)
    names = [base_name(info.path)] if info.is_file else [place.below(one.path) for one in found]
    shown = [
        (name, place.at(one.path))
        for name, one in zip(names, found, strict=True)
        if not any(part.startswith(".") for part in name.split("/"))
    ]
    yield from _hashes(shown, _hash)


def hashes_of_readable(files: Mapping[str, str]) -> dict[str, str]:
    """Return `file NAME` and the hash of each local file that can be read. `files` has the path of
    each file by its name."""
    found = _hashes([(escaped(name), path) for name, path in files.items()], _hash_or_none)
    return {name: hash_ for name, hash_ in found if hash_ is not None}


def _hashes(
    files: Sequence[tuple[str, File]], hash_of: Callable[[File, Executor], Hash]
) -> Iterator[tuple[str, Hash]]:
    """Yield `file NAME` and the result of `hash_of` for each file. Reads several files at once."""
    with ThreadPoolExecutor(READ_THREADS) as reads, ThreadPoolExecutor(FILE_THREADS) as pool:
        hashes = pool.map(lambda file: hash_of(file[1], reads), files)
        yield from zip((f"file {name}" for name, _ in files), hashes, strict=True)


def _hash_or_none(path: str, reads: Executor) -> str | None:
    try:
        return _hash(Location(path), reads)
    except Exception:  # noqa: BLE001 - a file that is only compared must not fail the job
        return None


def _hash(file: Location, reads: Executor) -> str:
    """Return a hash of the size and of samples of a file; of the whole content if it is small."""
    with file.filesystem.open_input_file(file.path) as opened:
        size = opened.size()
        digest = hashlib.sha256(str(size).encode())
        ranges = [(0, size)]
        if size > SAMPLES * SAMPLE_BYTES:
            digest.update(_members(opened))
            ranges = _samples(size)
            ranges += _tensors(opened, size) if file.path.endswith(".safetensors") else []
        for part in reads.map(lambda one: opened.read_at(one[1], one[0]), ranges):
            digest.update(part)
    return digest.hexdigest()


def _samples(size: int) -> list[Range]:
    """Return samples at equal distances, the first at the beginning, and one at the end."""
    starts = [size * number // SAMPLES for number in range(SAMPLES)]
    return [(start, SAMPLE_BYTES) for start in [*starts, size - SAMPLE_BYTES]]


def _tensors(opened: pa.NativeFile, size: int) -> list[Range]:
    """Return the header of a .safetensors file and the middle of its tensors; nothing if it is
    damaged. A head that was trained again can be much smaller than the distance of samples."""
    header = int.from_bytes(opened.read_at(8, 0), "little")
    begin = 8 + header
    if header > MAX_HEADER_BYTES or begin > size:
        return []
    try:
        fields: dict[str, Any] = load_json(opened.read_at(header, 8))
        fields.pop("__metadata__", None)
        found = _SPANS.validate_python({key: one["data_offsets"] for key, one in fields.items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    spans = sorted((begin + start, begin + end) for start, end in found.values())
    chosen = spans[:: 1 + max(0, len(spans) - 1) // MAX_TENSORS]
    inside = (span for span in chosen if begin <= span[0] <= span[1] <= size)
    return [(0, begin), *(_middle(*span) for span in inside)]


def _middle(start: int, end: int) -> Range:
    length = min(TENSOR_BYTES, end - start)
    return (start + end - length) // 2, length


def _members(opened: pa.NativeFile) -> bytes:
    """Return the names, sizes and checksums in the directory of a zip archive, such as a file of
    torch.save or Keras; nothing for other files."""
    if opened.read_at(2, 0) != b"PK":
        return b""
    try:
        with ZipFile(opened) as archive:
            members = [(one.filename, one.file_size, one.CRC) for one in archive.infolist()]
    except (BadZipFile, NotImplementedError, ValueError, EOFError):
        return b""
    return repr(members).encode()

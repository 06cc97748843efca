"""Decodes audio with libsndfile, and recognizes truncated recordings.

libsndfile reads truncated WAV and Ogg files without errors, so its log and the file are checked."""

from __future__ import annotations

import io
import re
from contextlib import suppress

import numpy as np
import soundfile
from soundfile import SoundFile

from batchinference.pipeline.media.truncated_files import (
    ACCEPT,
    STREAMED,
    is_chained_ogg,
    truncation_error,
)
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import SoundFields
from batchinference.spec.warnings import WarningName

BLOCK = 4096
"""Samples per read of a damaged file. The samples of the block with the damage are lost."""
_STATED = re.compile(r"(?m)^ *(?:data|SSND|Data Size|riff|Riff size) *: (\d+) \(should be (\d+)\)")
"""The lines of libsndfile's log about a chunk of samples that has another size than stated."""
_MP3_FRAME = 1152
"""Samples of an MP3 frame. Some programs also count the frame that holds the index."""
_MP3_HEAD = 256
_HAS_FRAMES, _HAS_BYTES = 1, 2
"""Flags in the index of an MP3 file: whether the index states numbers of frames, and of bytes."""
_MP3_SYNC, _MAX_MP3_FRAME = 0xFFE0, 1441
"""The first bits of an MP3 frame, and its maximum number of bytes. Up to one frame may follow the
bytes that the index states, because some programs do not count the frame with the index."""
_TAGS = (b"ID3", b"TAG", b"APETAGEX")
_TAG_HEADER, _ID3V1, _APE_HEADER = 10, 128, 32
_UNKNOWN_LENGTH = 2**63 - 1
_FLAC_HEAD = re.compile(rb"fLaC[\0\x80]\0\0\x22")
_RIFF_HEADER, _CHUNK_HEADER = 12, 8
CHAINED_FILE = (
    "the file consists of several recordings, of which only the first can be read. Divide it into "
    "one file per recording"
)
_FLOATS = ("FLOAT", "DOUBLE")
MAX_RATE = 1_000_000
"""Maximum sample rate in Hz, also of the option `sample_rate`, because resampling needs memory."""
SAMPLE_BYTES = 4


def check_size(samples: int, rate: int, options: SoundFields, max_bytes: int) -> None:
    """Raise ValueError if the rate is invalid, or if a recording takes more than `max_bytes` as
    float32 after resampling. `samples` is the number of samples of all channels together."""
    if not 1 <= rate <= MAX_RATE:
        raise ValueError(f"{rate} samples a second are not the rate of a recording")
    ratio = max(1.0, (options.sample_rate or rate) / rate)
    if samples * SAMPLE_BYTES * ratio > max_bytes:
        raise ValueError(f"{samples} samples take more bytes than maxRowBytes ({max_bytes})")


def warn_or_fail_at_end(missing: str, samples: np.ndarray, options: SoundFields) -> None:
    """Warn that the end of a recording is missing. Raises ValueError if the job does not accept
    truncated recordings, or if there are no samples at all."""
    if options.truncated == "fail" or not samples.size:
        raise ValueError(missing if ACCEPT in missing else f"{missing.rstrip('.')}. {ACCEPT}")
    warn(WarningName.TRUNCATED)


def warn_about_range(samples: np.ndarray) -> None:
    """Warn about floating-point samples that are NaN or outside of -1 to 1."""
    if samples.size and not (samples.min() >= -1 and samples.max() <= 1):
        warn(WarningName.OUT_OF_RANGE)


def read_sound(
    content: bytes, options: SoundFields, max_bytes: int
) -> tuple[np.ndarray, int, bool] | None:
    """Return the samples (channels x samples, float32), the sample rate in Hz, and whether these
    are certainly all samples. Return None if only FFmpeg may be able to read the file. Raises
    LibsndfileError if libsndfile does not know the format. Raises ValueError if the recording is
    damaged or takes more than `max_bytes`."""
    content, wrong_size = _with_corrected_size(content)
    with SoundFile(io.BytesIO(content)) as recording:
        is_chain = recording.format == "OGG" and is_chained_ogg(content)
        if is_chain or (recording.format == "FLAC" and len(_FLAC_HEAD.findall(content)) > 1):
            raise ValueError(CHAINED_FILE)
        if recording.frames == _UNKNOWN_LENGTH:
            return None
        channels, rate = recording.channels, recording.samplerate
        check_size(recording.frames * channels, rate, options, max_bytes)
        samples, damage = _read_samples(recording, content)
        missing = wrong_size or damage or _missing_end(recording, content, len(samples))
        if missing:
            warn_or_fail_at_end(missing, samples, options)
        if recording.subtype in _FLOATS:
            warn_about_range(samples)
        return samples.T, rate, _is_certainly_complete(len(samples), recording, content)


def _is_certainly_complete(samples: int, recording: SoundFile, content: bytes) -> bool:
    """Return whether the file certainly has no more than `samples` samples. In an MP3 file,
    libsndfile stops at the number of samples that the index states, or at its own estimate."""
    if recording.format != "MP3":
        return samples > 0
    if _index_of(content)[0]:
        return samples > 0 and len(_after_index(content)) <= _MAX_MP3_FRAME
    return bool(0 < samples != recording.frames)


def _with_corrected_size(content: bytes) -> tuple[bytes, str]:
    """Return the content of a file, and a text about damage or "". If a WAV file has more samples
    than it states, the size STREAMED (unknown) replaces the stated size. Then all samples are read.
    Raises ValueError if the file consists of several recordings."""
    at = _RIFF_HEADER
    while content.startswith(b"RIFF") and at + _CHUNK_HEADER <= len(content):
        head = content[at : at + _CHUNK_HEADER]
        size = int.from_bytes(head[4:], "little")
        begin, at = at + _CHUNK_HEADER, at + _CHUNK_HEADER + size + size % 2
        if not head.startswith(b"data"):
            continue
        after = content[begin + size :].lstrip(b"\0")  # without padding
        if after.startswith(b"RIFF"):
            raise ValueError(CHAINED_FILE)
        if not 0 < size < STREAMED or len(after) < _CHUNK_HEADER or _is_chunk(after, size % 2):
            break
        damage = f"the header states {size} of {len(content) - begin} bytes of samples"
        return content[: begin - 4] + STREAMED.to_bytes(4, "little") + content[begin:], damage
    return content, ""


def _is_chunk(after: bytes, padding: int) -> bool:
    """Return whether the bytes after the samples of a WAV file may be a chunk or a tag. Up to
    `padding` bytes may precede a chunk."""
    names = [after[at : at + 4] for at in (0, padding)]
    return after.startswith((b"TAG", b"ID3")) or any(
        name.isascii() and name.decode().isprintable() for name in names
    )


def _read_samples(recording: SoundFile, content: bytes) -> tuple[np.ndarray, str]:
    """Return the samples before any damage (samples x channels), and a text about damage or ""."""
    try:
        return _read_block(recording, recording.frames), ""
    except soundfile.LibsndfileError as error:
        damage = error.error_string or "the recording is damaged"
    blocks = [np.empty((0, recording.channels), np.float32)]
    with SoundFile(io.BytesIO(content)) as again, suppress(soundfile.LibsndfileError):
        while len(block := _read_block(again, BLOCK)):
            blocks.append(block)
    return np.concatenate(blocks), damage


def _read_block(recording: SoundFile, samples: int) -> np.ndarray:
    """Return the next samples of a recording (samples x channels), at most `samples`. The length of
    `out` limits the number, because this also works with codecs that cannot seek."""
    return np.asarray(recording.read(out=np.empty((samples, recording.channels), np.float32)))


def _missing_end(recording: SoundFile, content: bytes, samples: int) -> str:
    """Return what is missing at the end of a recording; empty if nothing is missing."""
    for stated, size in _STATED.findall(recording.extra_info):
        if int(size) < int(stated) < STREAMED:
            return f"the end of the file is missing: it has {size} of {stated} bytes of samples"
    if recording.format in ("OGG", "CAF"):
        missing = truncation_error(io.BytesIO(content), len(content))
        if missing is not None:
            return str(missing)
    tolerance = 0
    if recording.format == "MP3":
        index, _ = _index_of(content)
        exact = b"LAME" in index or b"Lav" in index
        # without an index, libsndfile only estimates the number of samples
        tolerance = 0 if exact else _MP3_FRAME if index else recording.frames
    if samples + tolerance < recording.frames:
        return f"only {samples} of {recording.frames} samples can be decoded"
    return ""


def is_chained_mp3(content: bytes) -> bool:
    """Return whether another recording follows the bytes that the index of an MP3 file states."""
    after = _after_index(content)
    is_next = after.startswith(_TAGS) or int.from_bytes(after[:2]) >= _MP3_SYNC
    return is_next and len(after) > _MAX_MP3_FRAME


def _after_index(content: bytes) -> bytes:
    """Return the bytes of an MP3 file after those that its index counts. The tags at the end of the
    file are left out. Return no bytes if the index does not count bytes."""
    index, begin = _index_of(content)
    at = max(index.find(b"Xing"), index.find(b"Info"))
    flags = int.from_bytes(index[at + 4 : at + 8])
    if not flags & _HAS_BYTES:
        return b""
    stated = at + 8 + 4 * (flags & _HAS_FRAMES)
    after = content[begin + int.from_bytes(index[stated : stated + 4]) :]
    if after[-_ID3V1:].startswith(b"TAG"):
        after = after[:-_ID3V1]
    if (tag := after[-_APE_HEADER:]).startswith(b"APETAGEX"):
        after = after[: -_APE_HEADER - int.from_bytes(tag[12:16], "little")]
    return after.strip(b"\0")


def _index_of(content: bytes) -> tuple[bytes, int]:
    """Return the beginning of an MP3 file after any ID3 tag, and the offset of this beginning. If
    there is no index (a `Xing` or `Info` frame), return empty bytes and the offset."""
    begin = 0
    if content.startswith(b"ID3"):
        sizes = content[6:_TAG_HEADER]
        begin = _TAG_HEADER + sum(size << (7 * at) for at, size in enumerate(reversed(sizes)))
    head = content[begin : begin + _MP3_HEAD]
    return head if b"Xing" in head or b"Info" in head else b"", begin

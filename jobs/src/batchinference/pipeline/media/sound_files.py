"""Decodes audio with libsndfile, and recognizes recordings whose end is missing.

libsndfile silently reads less than a WAV or Ogg file states, so its log and the file are inspected.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress

import numpy as np
import soundfile
from soundfile import SoundFile

from batchinference.pipeline.media.cut_files import ACCEPT, STREAMED, is_chained_ogg, missing_end
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import SoundFields
from batchinference.spec.warnings import WarningName

BLOCK = 4096
"""Samples per read of a damaged file. The samples of the block with the damage are lost."""
_STATED = re.compile(
    r"^ *(?:data|SSND|Data Size|riff|Riff size) *: (\d+) \(should be (\d+)\)", re.M
)
"""The lines of libsndfile's log about a chunk of samples with another size than stated."""
_MP3_FRAME = 1152
"""Samples of a frame. Some programs count the frame that holds the index."""
_MP3_HEAD = 256
_TAG_HEADER = 10
_FLOATS = ("FLOAT", "DOUBLE")
MAX_RATE = 1_000_000
"""Maximum sample rate in Hz, also for the option `sample_rate`. Resampling takes memory in
proportion to the rate."""
SAMPLE_BYTES = 4


def check_size(samples: int, rate: int, options: SoundFields, max_bytes: int) -> None:
    """Raise ValueError if samples of all channels take more bytes than the limit, as float32 after
    resampling, or if the rate is invalid."""
    if not 1 <= rate <= MAX_RATE:
        raise ValueError(f"{rate} samples a second are no rate of a recording")
    ratio = max(1.0, (options.sample_rate or rate) / rate)
    if samples * SAMPLE_BYTES * ratio > max_bytes:
        raise ValueError(f"{samples} samples take more bytes than max_row_bytes ({max_bytes})")


def check_end(missing: str, samples: np.ndarray, options: SoundFields) -> None:
    """Report that the end of a recording is missing. Raises ValueError unless the job accepts it
    and there are samples."""
    if options.truncated == "fail" or not samples.size:
        raise ValueError(missing if ACCEPT in missing else f"{missing.rstrip('.')}. {ACCEPT}")
    warn(WarningName.TRUNCATED)


def check_values(samples: np.ndarray) -> None:
    """Report floating-point samples outside of -1 to 1, or NaN."""
    if samples.size and not (samples.min() >= -1 and samples.max() <= 1):
        warn(WarningName.OUT_OF_RANGE)


def read_sound(
    content: bytes, options: SoundFields, max_bytes: int
) -> tuple[np.ndarray, int, bool]:
    """Return the samples (channels x samples, float32), the sample rate in Hz, and whether these
    are certainly all samples.

    Raises LibsndfileError if libsndfile does not know the format, and ValueError if the recording
    is damaged or takes more than `max_bytes`."""
    with SoundFile(io.BytesIO(content)) as recording:
        channels, rate = recording.channels, recording.samplerate
        check_size(recording.frames * channels, rate, options, max_bytes)
        samples, damage = _samples(recording, content)
        missing = damage or _missing_end(recording, content, len(samples))
        if missing:
            check_end(missing, samples, options)
        if recording.subtype in _FLOATS:
            check_values(samples)
        # libsndfile stops at the number of samples that it has estimated
        estimated = recording.format == "MP3" and not _index_of(content)
        certain = len(samples) > 0 and not (estimated and len(samples) == recording.frames)
        return samples.T, rate, certain


def _samples(recording: SoundFile, content: bytes) -> tuple[np.ndarray, str]:
    """Return the samples up to the damage (samples x channels), and the damage; empty for none."""
    try:
        return _block(recording, recording.frames), ""
    except soundfile.LibsndfileError as error:
        damage = error.error_string or "the recording is damaged"
    blocks = [np.empty((0, recording.channels), np.float32)]
    with SoundFile(io.BytesIO(content)) as again, suppress(soundfile.LibsndfileError):
        while len(block := _block(again, BLOCK)):
            blocks.append(block)
    return np.concatenate(blocks), damage


def _block(recording: SoundFile, samples: int) -> np.ndarray:
    """Return the next samples of a recording: samples x channels. Some codecs cannot seek, so the
    number of samples is given by the array."""
    block = np.empty((samples, recording.channels), np.float32)
    read: np.ndarray = recording.read(out=block)
    return read


def _missing_end(recording: SoundFile, content: bytes, samples: int) -> str:
    """Return what is missing at the end of a recording; empty if nothing is."""
    for stated, size in _STATED.findall(recording.extra_info):
        if int(size) < int(stated) < STREAMED:
            return f"the end of the file is missing: it has {size} of {stated} bytes of samples"
    if recording.format in ("OGG", "CAF"):
        missing = missing_end(io.BytesIO(content), len(content))
        if missing is not None:
            return str(missing)
    if recording.format == "OGG" and is_chained_ogg(content):
        return "the file is a chain of recordings, and only the first is read"
    tolerance = 0
    if recording.format == "MP3":
        index = _index_of(content)
        exact = b"LAME" in index or b"Lav" in index
        # without an index, the number of samples is an estimate
        tolerance = 0 if exact else _MP3_FRAME if index else recording.frames
    if samples + tolerance < recording.frames:
        return f"only {samples} of {recording.frames} samples can be decoded"
    return ""


def _index_of(content: bytes) -> bytes:
    """Return the beginning of an MP3 file if it has an index, which states the number of samples;
    else empty bytes."""
    begin = 0
    if content.startswith(b"ID3"):
        sizes = content[6:_TAG_HEADER]
        begin = _TAG_HEADER + sum(size << (7 * at) for at, size in enumerate(reversed(sizes)))
    head = content[begin : begin + _MP3_HEAD]
    return head if b"Xing" in head or b"Info" in head else b""

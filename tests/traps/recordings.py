"""Builds sounds and videos with generated samples and frames."""

from __future__ import annotations

import io
import struct
from fractions import Fraction

import numpy as np

from support.inputs.media_files import recorded, sound_of
from traps.case import Content

MP4 = {"container": "mp4", "codec": "libx264", "pixels": "yuv420p"}
"""The format of telephones, as arguments of `video`."""


def sine(seconds: float, rate: int = 8000, channels: int = 1) -> np.ndarray:
    """Return samples x channels of a tone, from -0.5 to 0.5."""
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)
    return np.repeat(tone.astype("float32")[:, None], channels, axis=1)


def sound(
    samples: np.ndarray, rate: int = 8000, kind: str = "WAV", subtype: str | None = None
) -> Content:
    """Return samples as a sound file."""
    return lambda: sound_of(samples, kind, rate, subtype=subtype)


def wave(samples: np.ndarray, rate: int = 8000, *, size: int | None = None) -> bytes:
    """Return 16-bit samples as a WAV file whose header claims `size` bytes of data."""
    data = (samples * 32767).astype("<i2").tobytes()
    claimed = len(data) if size is None else size
    form = struct.pack("<HHIIHH", 1, samples.shape[1], rate, rate * 2 * samples.shape[1],
                       2 * samples.shape[1], 16)  # fmt: skip
    riff = min(claimed + 36, 0xFFFFFFFF) if claimed else 0
    return (b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt " + struct.pack("<I", 16) + form
            + b"data" + struct.pack("<I", claimed) + data)  # fmt: skip


def encoded_sound(container: str, codec: str) -> Content:
    """Return a tone in a container that only FFmpeg writes, such as m4a or webm."""
    return lambda: recorded(sine(1, 48_000), container, codec)


def video(
    frames: int = 10,
    *,
    container: str = "matroska",
    codec: str = "ffv1",
    pixels: str = "bgr0",
    rotate: int = 0,
    streams: int = 1,
) -> Content:
    """Return a video of 32 x 16 pixels whose left half is red and whose right half is blue, with
    ten frames per second. `rotate` is how players turn it, in degrees."""

    def make() -> bytes:
        image = np.zeros((16, 32, 4), "uint8")
        image[:, :16, 0], image[:, 16:, 2], image[:, :, 3] = 255, 255, 255
        data = filmed(image, frames, container, codec, pixels, streams)
        return rotated(data, rotate) if rotate else data

    return make


def clear_video() -> bytes:
    """Return a video of two frames of transparent red pixels."""
    image = np.zeros((16, 32, 4), "uint8")
    image[:, :, 0] = 255
    return filmed(image, 2, "matroska", "ffv1", "bgra", 1)


def filmed(
    image: np.ndarray, frames: int, container: str, codec: str, pixels: str, streams: int
) -> bytes:
    """Return a video that shows a picture, of height x width x RGBA, in each stream."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        added = [file.add_stream(codec, rate=10) for _ in range(streams)]
        for stream in added:
            stream.height, stream.width = image.shape[:2]
            stream.pix_fmt = pixels
        for number in range(frames):
            for stream in added:
                frame = av.VideoFrame.from_ndarray(image, format="rgba").reformat(format=pixels)
                frame.pts, frame.time_base = number, Fraction(1, 10)
                file.mux(stream.encode(frame))
        for stream in added:
            file.mux(stream.encode(None))
    return out.getvalue()


def rotated(mp4: bytes, degrees: int) -> bytes:
    """Return an MP4 file whose track says that players rotate it clockwise, as phones write it."""
    at = mp4.index(b"tkhd") + 4 + 4 + 36  # version and flags, then the fields before the matrix
    cos, sin = {90: (0, 1), 180: (-1, 0)}[degrees]
    one = 1 << 16
    matrix = struct.pack(
        ">iiiiiiiii", cos * one, sin * one, 0, -sin * one, cos * one, 0, 0, 0, 1 << 30
    )
    return mp4[:at] + matrix + mp4[at + 36 :]

"""Builds the content of input files: tables, pictures, sounds, videos and archives."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from traps.case import Content, bytes_of

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def lines(*values: Any) -> str:
    """Return JSON lines. A text is a line as it is."""
    return "".join(v + "\n" if isinstance(v, str) else json.dumps(v) + "\n" for v in values)


def packed(content: Content) -> Content:
    return lambda: gzip.compress(bytes_of(content))


def parquet(columns: Any, **options: Any) -> Content:
    """Return a Parquet file of a table, or of columns."""
    return partial(_parquet, columns, options)


def _parquet(columns: Any, options: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    given = columns() if callable(columns) else columns
    table = given if isinstance(given, pa.Table) else pa.table(given)
    pq.write_table(table, out, **options)
    return out.getvalue()


def picture(color: Any = RED, kind: str = "PNG", *, mode: str = "RGB", size: tuple[int, int] = (8, 8), **options: Any) -> Content:
    """Return a picture of one colour. `size` is its width and height."""
    return partial(_picture, color, kind, mode, size, options)


def _picture(color: Any, kind: str, mode: str, size: tuple[int, int], options: Mapping[str, Any]) -> bytes:
    from PIL import Image

    return saved(Image.new(mode, size, color), kind, **options)


def saved(image: Any, kind: str, **options: Any) -> bytes:
    """Return a Pillow image as a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pixels(array: Any, kind: str = "PNG", **options: Any) -> Content:
    """Return an array of pixels as a picture."""

    def make() -> bytes:
        from PIL import Image

        return saved(Image.fromarray(np.asarray(array)), kind, **options)

    return make


def photo(kind: str = "JPEG", seed: int = 0, size: tuple[int, int] = (40, 60), **options: Any) -> bytes:
    """Return a picture of noise, of several kilobytes. `size` is its height and width."""
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype="uint8")
    return saved(Image.fromarray(noise), kind, **options)


def tar(members: Iterable[tuple[str, Content]]) -> Content:
    """Return an archive with these members, in this order."""
    given = list(members)

    def make() -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, content in given:
                data = bytes_of(content)
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    return make


def sine(seconds: float, rate: int = 8000, channels: int = 1) -> np.ndarray:
    """Return samples x channels of a tone, from -0.5 to 0.5."""
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)
    return np.repeat(tone.astype("float32")[:, None], channels, axis=1)


def sound(samples: np.ndarray, rate: int = 8000, kind: str = "WAV", subtype: str | None = None) -> Content:
    """Return samples as a sound file."""

    def make() -> bytes:
        import soundfile

        out = io.BytesIO()
        soundfile.write(out, samples, rate, format=kind, subtype=subtype)
        return out.getvalue()

    return make


def wave(samples: np.ndarray, rate: int = 8000, *, size: int | None = None) -> bytes:
    """Return 16-bit samples as a WAV file whose header claims `size` bytes of data."""
    data = (samples * 32767).astype("<i2").tobytes()
    claimed = len(data) if size is None else size
    form = struct.pack("<HHIIHH", 1, samples.shape[1], rate, rate * 2 * samples.shape[1],
                       2 * samples.shape[1], 16)  # fmt: skip
    riff = min(claimed + 36, 0xFFFFFFFF) if claimed else 0
    return (b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt " + struct.pack("<I", 16) + form
            + b"data" + struct.pack("<I", claimed) + data)  # fmt: skip


def encoded_sound(container: str, codec: str, seconds: float = 1.0, rate: int = 48000) -> Content:
    """Return a tone in a container that only FFmpeg writes, such as m4a or webm."""

    def make() -> bytes:
        import av

        out = io.BytesIO()
        tone = sine(seconds, rate)[:, 0][None]
        with av.open(out, "w", format=container) as file:
            stream = file.add_stream(codec, rate=rate, layout="mono")
            frame = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate, 0
            resampler = av.AudioResampler(stream.format, stream.layout, rate, _frame_size(stream))
            for part in [*resampler.resample(frame), *resampler.resample(None)]:
                for packet in stream.encode(part):
                    file.mux(packet)
            for packet in stream.encode(None):
                file.mux(packet)
        return out.getvalue()

    return make


def _frame_size(stream: Any) -> int:
    return int(stream.codec_context.frame_size or 960)


def video(frames: int = 10, fps: int = 10, *, container: str = "matroska", codec: str = "ffv1", size: tuple[int, int] = (32, 16), rotate: int = 0, streams: int = 1) -> Content:
    """Return a video whose left half is red and whose right half is blue."""

    def make() -> bytes:
        import av

        width, height = size
        image = np.zeros((height, width, 3), "uint8")
        image[:, : width // 2, 0] = 255
        image[:, width // 2 :, 2] = 255
        out = io.BytesIO()
        with av.open(out, "w", format=container) as file:
            added = []
            for _ in range(streams):
                stream = file.add_stream(codec, rate=fps)
                stream.width, stream.height = width, height
                stream.pix_fmt = "yuv420p" if codec != "ffv1" else "bgr0"
                added.append(stream)
            for number in range(frames):
                for stream in added:
                    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                    frame.pts, frame.time_base = number, Fraction(1, fps)
                    for packet in stream.encode(frame):
                        file.mux(packet)
            for stream in added:
                for packet in stream.encode(None):
                    file.mux(packet)
        data = out.getvalue()
        return rotated(data, rotate) if rotate else data

    return make


def rotated(mp4: bytes, degrees: int) -> bytes:
    """Return an MP4 file whose track says that players rotate it clockwise, as phones write it."""
    at = mp4.index(b"tkhd") + 4 + 4 + 36  # version and flags, then the fields before the matrix
    cos, sin = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    one = 1 << 16
    matrix = struct.pack(">iiiiiiiii", cos * one, sin * one, 0, -sin * one, cos * one, 0, 0, 0, 1 << 30)
    return mp4[:at] + matrix + mp4[at + 36 :]


def exif(orientation: int) -> bytes:
    """Return the metadata that says how the camera was held."""
    from PIL import Image

    data = Image.Exif()
    data[274] = orientation
    return data.tobytes()


def halves(kind: str = "PNG", **options: Any) -> Content:
    """Return a picture of 32 x 16 pixels whose left half is red and whose right half is blue."""
    image = np.zeros((16, 32, 3), "uint8")
    image[:, :16, 0], image[:, 16:, 2] = 255, 255
    return pixels(image, kind, **options)


def hidden(color: tuple[int, int, int], mode: str = "RGBA", kind: str = "PNG", **options: Any) -> Content:
    """Return a picture of one blue pixel; all others are transparent and have this colour."""

    def make() -> bytes:
        from PIL import Image

        image = Image.new("RGBA", (8, 8), (*color, 0))
        image.putpixel((7, 7), (0, 0, 255, 255))
        return saved(image if mode == "RGBA" else image.convert(mode), kind, **options)

    return make

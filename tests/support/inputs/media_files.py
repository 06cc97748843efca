"""Media files that are made byte by byte, or with options that few programs use."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
from av.codec.context import Flags
from PIL import Image

HEIGHT, WIDTH = 48, 64


def saved(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """Return an image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def sound_of(samples: np.ndarray, file_format: str, rate: int = 8000, **options: Any) -> bytes:
    """Return samples as the bytes of a file."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=file_format, **options)
    return buffer.getvalue()


def data_uri(image: Image.Image, file_format: str = "PNG") -> str:
    """Return an image as an address with its content."""
    return f"data:image/png;base64,{base64.b64encode(saved(image, file_format)).decode()}"


def exif(orientation: int) -> bytes:
    """Return EXIF data with an orientation."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def quarters() -> np.ndarray:
    """Return a picture whose quarters are red, green, blue and black: height x width x RGB."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[: HEIGHT // 2, : WIDTH // 2] = (255, 0, 0)
    pixels[: HEIGHT // 2, WIDTH // 2 :] = (0, 255, 0)
    pixels[HEIGHT // 2 :, : WIDTH // 2] = (0, 0, 255)
    return pixels


def png(width: int, depth: int, colour_type: int, row: bytes, transparent: bytes = b"") -> bytes:
    """Return a PNG file of one row of pixels. `transparent` is the content of the chunk tRNS."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, 1, depth, colour_type, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"tRNS", transparent) if transparent else b"",
            chunk(b"IDAT", zlib.compress(b"\0" + row)),
            chunk(b"IEND", b""),
        )
    )


def write_film(
    path: Path, frames: list[np.ndarray], codec: str, pixel_format: str, **options: str
) -> Path:
    """Write a video of 10 frames per second, RGB or RGBA. `options` are those of the container."""
    with av.open(path, "w", options=options) as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixel_format
        for pixels in frames:
            name = "rgba" if pixels.shape[2] == 4 else "rgb24"
            frame = av.VideoFrame.from_ndarray(pixels, name).reformat(format=pixel_format)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def turn_film(path: Path, a: int, b: int, c: int, d: int) -> Path:
    """Write a display matrix into the header of an MP4 file."""
    content = bytearray(path.read_bytes())
    at = content.find(b"tkhd") + 4 + 40  # after version, times, duration, layer and volume
    matrix = (a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    struct.pack_into(">9i", content, at, *matrix)
    path.write_bytes(content)
    return path


def recorded(
    samples: np.ndarray,
    container: str,
    codec: str,
    tracks: int = 1,
    quality: int | None = None,
    rate: int = 48000,
) -> bytes:
    """Return audio of one channel as FFmpeg writes it. With `quality`, its bit rate varies."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        for stream in [output.add_stream(codec, rate=rate, layout="mono") for _ in range(tracks)]:
            frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "fltp", "mono")
            frame.sample_rate, frame.pts = rate, 0
            context = stream.codec_context
            if quality is not None:
                context.flags |= Flags.qscale
                context.global_quality = quality
            size = context.frame_size or 1024
            converter = av.AudioResampler(context.format, "mono", rate, size)
            for part in [*converter.resample(frame), *converter.resample(None)]:
                output.mux(stream.encode(part))
            output.mux(stream.encode())
    return buffer.getvalue()

"""Pictures, sounds and videos: orientation, transparency, depth, pages and damage."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from traps import views
from traps.case import Cases, Content, Refused, Right, Row
from traps.inputs import (
    BLUE,
    GREEN,
    RED,
    encoded_sound,
    exif,
    halves,
    hidden,
    parquet,
    photo,
    picture,
    pixels,
    saved,
    sine,
    sound,
    tar,
    video,
    wave,
)

CASES = Cases()
WHITE = (255, 255, 255)
NO_SOUND_READER = {"datasets": "needs torchcodec to decode sound", "daft": "reads no samples of a file in a column", "pandas": "no reader for sound"}
NO_VIDEO_READER = {"ray": "needs decord to decode videos", "datasets": "needs torchcodec to decode videos"}
NO_SAMPLE_READER = {}


def looks(name: str, first: Any, last: Any, shape: tuple[int, ...] = (8, 8, 3)) -> Row:
    return {"path": name, "shape": [*shape], "first": _listed(first), "last": _listed(last)}


def _listed(color: Any) -> Any:
    return list(color) if isinstance(color, tuple) else color


def rgb(mode: str = "RGB") -> dict[str, Any]:
    """Return the options of the other tools for pictures of this mode."""
    return {"ray": {"mode": mode}, "daft": {"mode": mode}, "datasets": {}}


pictures: dict[str, Any] = {
    "read": {"format": "images", "options": {"include_paths": True}},
    "view": views.image,
    "near": 3,
}


def member(row: Row) -> Row:
    """Return the picture of a sample of an archive."""
    value = next(row[name] for name in ("png", "jpg", "tif", ".png", ".jpg", "tif") if name in row)
    if isinstance(value, bytes):
        import io

        from PIL import Image

        value = Image.open(io.BytesIO(value))
    return views.corners(value.convert("RGB") if hasattr(value, "convert") else value)


def in_archive(name: str, content: Content) -> dict[str, Any]:
    return {"files": {"a.tar": tar([(f"0.{name}", content)])}, "read": {"format": "webdataset", "options": {"include_paths": False}}, "view": member, "peers": {}}


def in_column(content: Content, **decode: Any) -> dict[str, Any]:
    """Return the fields of a case whose picture is in a column of a Parquet file."""

    def table() -> Any:
        import pyarrow as pa

        data = content() if callable(content) else content
        return {"image": pa.array([data], pa.binary())}

    return {
        "files": {"a.parquet": parquet(table)},
        "read": {"format": "parquet", "options": {"include_paths": False}},
        "steps": [{"name": "decode", "decode": {"column": "image", "format": "image", **decode}}],
        "view": lambda row: views.corners(row["image"]),
        "peers": {"daft": _daft_column, "datasets": _datasets_column},
    }


def _daft_column(directory: Any) -> list[Row]:
    import daft

    frame = daft.read_parquet(f"{directory}/in/*.parquet")
    found = frame.with_column("image", daft.col("image").decode_image(mode="RGB")).to_pylist()
    return [{"image": np.asarray(row["image"])} for row in found]


def _datasets_column(directory: Any) -> list[Row]:
    import datasets

    from traps.peers import with_datasets

    found = with_datasets.load("parquet", directory).cast_column("image", datasets.Image())
    return [{"image": np.asarray(row["image"].convert("RGB"))} for row in found]


def _view(*values: Any) -> Row:
    return {name: value for name, value in looks("", *values).items() if name != "path"}


composited = {"Composited": 1}
clear = CASES.kind("R07", "transparent pixels", **pictures)
clear(
    "three pictures with hidden colours that look the same",
    Right([looks(f"{n}.png", WHITE, BLUE) for n in "abc"], warnings={"Composited": 3}),
    files={"a.png": hidden((0, 0, 0)), "b.png": hidden((240, 30, 10)), "c.png": hidden(WHITE)},
)
clear("one transparent colour of an RGB picture", Right([looks("a.png", WHITE, WHITE)], warnings=composited), files={"a.png": picture((240, 30, 10), transparency=(240, 30, 10))})
clear(
    "a transparent colour of a palette, in PNG and GIF",
    Right([looks("a.png", WHITE, BLUE), looks("b.gif", WHITE, BLUE)], warnings={"Composited": 2}),
    files={"a.png": lambda: _palette("PNG"), "b.gif": lambda: _palette("GIF")},
)
clear("gray with transparency", Right([looks("a.png", WHITE, (29, 29, 29))], warnings=composited), files={"a.png": hidden((9, 9, 9), "LA")})
clear("half transparent red", Right([looks("a.png", (255, 127, 127), (255, 127, 127))], warnings=composited), files={"a.png": picture((255, 0, 0, 128), mode="RGBA")})
clear("transparency in WebP", Right([looks("a.webp", WHITE, BLUE)], warnings=composited), files={"a.webp": hidden((9, 9, 9), kind="WEBP", lossless=True, exact=True)})
clear("another background", Right([looks("a.png", (0, 128, 255), BLUE)], warnings=composited), options={"background": "#0080ff"}, files={"a.png": hidden((9, 9, 9))}, peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"))
clear("the mode RGBA keeps the transparency", Right([looks("a.png", (9, 8, 7, 0), (*BLUE, 255), (8, 8, 4))]), options={"mode": "RGBA"}, files={"a.png": hidden((9, 8, 7))},
      peers=rgb("RGBA") | {"datasets": "not compared"})
clear("the mode L", Right([looks("a.png", 255, 29, (8, 8))], warnings=composited), options={"mode": "L"}, files={"a.png": hidden((9, 9, 9))}, peers=rgb("L") | {"daft": "not compared", "datasets": "not compared"})
clear("RGBA without transparent pixels", Right([looks("a.png", RED, RED)]), files={"a.png": picture((*RED, 255), mode="RGBA")})
clear("a picture in an archive", Right([_view(WHITE, BLUE)], warnings=composited), **in_archive("png", hidden((9, 9, 9))))
clear("a picture in a column", Right([_view(WHITE, BLUE)], warnings=composited), **in_column(hidden((9, 9, 9))))
clear("a picture that is resized", Right([looks("a.png", WHITE, WHITE, (4, 4, 3))], warnings=composited), options={"size": [4, 4]}, files={"a.png": hidden((9, 9, 9), size=(8, 8)) if False else picture((9, 9, 9, 0), mode="RGBA")},
      peers={"ray": {"size": (4, 4)}, "daft": "not compared", "datasets": "not compared"})
clear("16 bits with transparency", Right([looks("a.png", WHITE, WHITE)], warnings={"Composited": 1}), Right([looks("a.png", WHITE, WHITE)], warnings={"Composited": 1, "DepthReduced": 1}), Right([], failed=1, says="16|transparen|mode"), files={"a.png": lambda: _gray_16_transparent()})


def _palette(kind: str) -> bytes:
    from PIL import Image

    image = Image.new("P", (8, 8), 0)
    image.putpalette([240, 30, 10, 0, 0, 255])
    image.putpixel((7, 7), 1)
    return saved(image, kind, transparency=0)


def _gray_16_transparent() -> bytes:
    """Return a gray PNG of 16 bits whose value 100 is transparent, and which has no other."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + struct.pack(">H", 100) * 8) * 8
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 0, 0, 0, 0))
            + chunk(b"tRNS", struct.pack(">H", 100)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))  # fmt: skip


ROTATED = {"Rotated": 1}
TALL, WIDE = (32, 16, 3), (16, 32, 3)
turned = CASES.kind("R11", "pictures and videos of a camera that was turned", **{**pictures, "near": 12})
turned("a JPEG of a camera that was held upright", Right([looks("a.jpg", RED, BLUE, TALL)], warnings=ROTATED), files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(6))})
FIRST = {1: RED, 2: BLUE, 3: BLUE, 4: RED, 5: RED, 6: RED, 7: BLUE, 8: BLUE}
turned(
    "all eight orientations",
    Right([looks(f"{n}.jpg", color, BLUE if color == RED else RED, WIDE if n < 5 else TALL) for n, color in FIRST.items()], warnings={"Rotated": 7}),
    files={f"{n}.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(n)) for n in FIRST},
)
turned(
    "the orientation in PNG, WebP and TIFF",
    Right([looks(name, RED, BLUE, TALL) for name in ("a.png", "b.webp", "c.tif")], warnings={"Rotated": 3}),
    files={"a.png": halves(exif=exif(6)), "b.webp": halves("WEBP", lossless=True, exif=exif(6)), "c.tif": halves("TIFF", tiffinfo={274: 6})},
)
turned("the orientation is to be ignored", Right([looks("a.jpg", RED, BLUE, WIDE)]), options={"orientation": "ignore"}, files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(6))},
       peers={"datasets": "no such option"})
turned("an orientation that does not exist", Right([looks("a.jpg", RED, BLUE, WIDE)]), files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(9))})
turned("a turned picture that is resized", Right([looks("a.jpg", RED, BLUE, (16, 8, 3))], warnings=ROTATED), options={"size": [16, 8]}, files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(6))},
       peers={"ray": {"size": (16, 8)}, "daft": "not compared", "datasets": "not compared"})
turned("a turned picture in an archive", Right([_view(RED, BLUE, TALL)], warnings=ROTATED), **in_archive("jpg", halves("JPEG", quality=95, subsampling=0, exif=exif(6))))
turned("a turned picture in a column", Right([_view(RED, BLUE, TALL)], warnings=ROTATED), **in_column(halves("JPEG", quality=95, subsampling=0, exif=exif(6))))
videos: dict[str, Any] = {"read": {"format": "video"}, "view": views.frame}
MP4 = {"container": "mp4", "codec": "libx264"}
turned(
    "a video of a telephone that was held upright",
    Right([{"path": "a.mp4", "index": n, **_view(RED, BLUE, TALL)} for n in range(2)], warnings={"Rotated": 2}),
    files={"a.mp4": video(2, rotate=90, **MP4)},
    peers=NO_VIDEO_READER | {"daft": {"size": (32, 16)}},
    **videos,
)
turned(
    "a video that is upside down",
    Right([{"path": "a.mp4", "index": n, **_view(BLUE, RED, WIDE)} for n in range(2)], warnings={"Rotated": 2}),
    files={"a.mp4": video(2, rotate=180, **MP4)},
    peers=NO_VIDEO_READER,
    **videos,
)
turned(
    "a turned video, with the orientation ignored",
    Right([{"path": "a.mp4", "index": n, **_view(RED, BLUE, WIDE)} for n in range(2)]),
    files={"a.mp4": video(2, rotate=90, **MP4)},
    options={"orientation": "ignore"},
    peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"),
    **videos,
)

CUT = "truncated|end|damaged|broken"
TRUNCATED = {"Truncated": 1}
JPEG = partial(photo, "JPEG", quality=90)
LARGE = partial(photo, "JPEG", size=(400, 600))


def shapes(row: Row) -> Row:
    """Return the name and shape of a picture: the pixels that are missing have no defined value."""
    return {"path": views.name(row), "shape": list(np.asarray(row["image"]).shape)}


def shaped(*names: str) -> list[Row]:
    return [{"path": name, "shape": [40, 60, 3]} for name in names]


cut = CASES.kind("R20", "pictures whose end is missing", **{**pictures, "view": shapes, "near": 0})
ACCEPT = {"truncated": "accept"}
LARGE_ROW = {"path": "large.jpg", "shape": [400, 600, 3]}
TAIL_ROW = {"path": "tail.jpg", "shape": [400, 600, 3]}
LARGE_FILES = {"large.jpg": LARGE, "tail.jpg": lambda: LARGE()[:-2]}
cut("a JPEG without its last two bytes, behind all pixels", Right([LARGE_ROW], failed=1, says=CUT), Right([LARGE_ROW, TAIL_ROW]), Right([LARGE_ROW, TAIL_ROW], warnings=TRUNCATED), files=LARGE_FILES)
cut("a small JPEG without its last 20 bytes", Right([], failed=1, says=CUT), files={"a.jpg": lambda: JPEG()[:-20]})
cut("the same, with the option", Right([LARGE_ROW, TAIL_ROW], warnings=TRUNCATED), options=ACCEPT, files=LARGE_FILES,
    peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"))
cut("half of a JPEG", Right([], failed=1, says=CUT), files={"a.jpg": lambda: JPEG()[: len(JPEG()) // 2]})
cut(
    "half of a PNG, WebP and TIFF, with the option",
    Right(shaped("a.png"), failed=2),
    Right(shaped("a.png", "c.tif"), failed=1, warnings={"Truncated": 2}),
    Right(shaped("a.png"), failed=2, warnings={"Truncated": 1}),
    Right(shaped("a.png", "b.webp", "c.tif"), warnings={"Truncated": 3}),
    options=ACCEPT,
    files={f"{n}.{end}": (lambda kind=kind: photo(kind)[: len(photo(kind)) // 2]) for n, end, kind in (("a", "png", "PNG"), ("b", "webp", "WEBP"), ("c", "tif", "TIFF"))},
    peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"),
)
cut("half of a PNG", Right([], failed=1, says=CUT), files={"a.png": lambda: photo("PNG")[: len(photo("PNG")) // 2]})
cut("a JPEG of 20 bytes, with the option", Right([], failed=1), options=ACCEPT, files={"a.jpg": lambda: JPEG()[:20]})
cut("an empty file beside a picture", Right(shaped("b.jpg"), failed=1), files={"a.jpg": b"", "b.jpg": JPEG})
cut("bytes behind the end of a JPEG", Right(shaped("a.jpg")), files={"a.jpg": lambda: JPEG() + b"\0" * 1000})
cut("a cut picture in an archive", Right([], failed=1, says=CUT), **{**in_archive("jpg", lambda: JPEG()[:-100]), "view": None})
cut("a cut picture in a column, with the option", Right([{"shape": [40, 60, 3]}], warnings=TRUNCATED), **{**in_column(lambda: JPEG()[:-100], truncated="accept"), "view": lambda row: {"shape": list(np.asarray(row["image"]).shape)}, "peers": dict.fromkeys(("ray", "daft", "datasets"), "no such option")})
cut("a GIF that is cut within its second frame", Right([{"path": "a.gif", "shape": [40, 60, 3]}], warnings={"PagesIgnored": 1}), Right([{"path": "a.gif", "shape": [40, 60, 3]}]), Right([], failed=1, says=CUT), Right([{"path": "a.gif", "shape": [40, 60, 3]}], warnings={"PagesIgnored": 1, "Truncated": 1}), files={"a.gif": lambda: _two("GIF")[:-200]})


def _two(kind: str) -> bytes:
    """Return a picture with two frames of noise."""
    import io

    from PIL import Image

    first, second = (Image.open(io.BytesIO(photo("PNG", seed))) for seed in (0, 1))
    return saved(first, kind, save_all=True, append_images=[second])


ends = CASES.kind("R16", "sounds and videos whose end is missing", read={"format": "audio", "options": {"include_paths": True}}, view=views.sound, near=0.1, peers=NO_SOUND_READER)


def heard(name: str, seconds: float = 1.0, rate: int = 8000, channels: int = 1, peak: float = 0.5) -> Row:
    return {"path": name, "rate": rate, "channels": channels, "seconds": seconds, "peak": peak}


WAV = wave(sine(1))
ends("a WAV file of which half is missing", Right([heard("b.wav")], failed=1, says=CUT), files={"a.wav": WAV[:8000], "b.wav": WAV})
ends("the same, with the option", Right([heard("a.wav", 0.5), heard("b.wav")], warnings=TRUNCATED), options=ACCEPT, files={"a.wav": WAV[:8044], "b.wav": WAV}, peers=NO_SOUND_READER | {"ray": "no such option"})
ends("half of a FLAC file", Right([], failed=1, says=CUT), files={"a.flac": lambda: _half(sound(sine(10, 44100), 44100, "FLAC"))})
ends("half of an Ogg and an MP3 file", Right([], failed=2, says=CUT), Right([heard("b.mp3", 5, 44100)], failed=1, says=CUT), files={"a.ogg": lambda: _half(sound(sine(10, 44100), 44100, "OGG")), "b.mp3": lambda: _half(sound(sine(10, 44100), 44100, "MP3"))})
ends("an m4a file without its index", Right([], failed=1, says=CUT + "|moov|invalid"), files={"a.m4a": lambda: encoded_sound("ipod", "aac")()[:4000]})
ends("a WAV file with a header and no samples", Right([heard("a.wav", 0.0, peak=0.0)]), Right([], failed=1), files={"a.wav": wave(sine(0))})
VIEW = {"format": "video"}
FRAMES = [{"path": "a.mkv", "index": n, **_view(RED, BLUE, WIDE)} for n in range(20)]


def some_frames(rows: Any) -> bool:
    return 0 < len(rows) < 20


ends("half of an MKV file", Right(holds=some_frames, failed=1, says=CUT), Right([], failed=1, says=CUT), read=VIEW, view=views.frame, files={"a.mkv": lambda: _half(video(20))}, peers=NO_VIDEO_READER)
ends("the same, with the option", Right(holds=some_frames, warnings=TRUNCATED), Right(holds=some_frames, failed=1, warnings=TRUNCATED), options=ACCEPT, read=VIEW, view=views.frame, files={"a.mkv": lambda: _half(video(20))}, peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"))
ends("half of an MP4 file, whose index is at its end", Right([], failed=1, says=CUT + "|moov|invalid"), read=VIEW, view=views.frame, files={"a.mp4": lambda: _half(video(20, **MP4))}, peers=NO_VIDEO_READER)


def _half(content: Content) -> bytes:
    data = content() if callable(content) else bytes(content)  # type: ignore[arg-type]
    return data[: len(data) // 2]


GRAY = np.linspace(0, 4095, 64).reshape(8, 8).astype("uint16")
REDUCED = {"DepthReduced": 1}


def shade(row: Row) -> Row:
    """Return the view of a picture, and a pixel in its middle."""
    middle = np.asarray(row["image"])[4, 4]
    return {**(views.image(row) if "path" in row else views.corners(row["image"])), "middle": middle.tolist()}


GRAYS = {"middle": [145, 145, 145]}
BLACK = (0, 0, 0)
SCALED = [{**looks("a.tif", BLACK, WHITE), **GRAYS}]
def clipped() -> list[Right]:
    """Return what is right for a range from 100 to 3000: 2340 becomes 197."""
    rows = [{**looks("a.tif", BLACK, WHITE), "middle": [197, 197, 197]}]
    return [Right(rows, warnings={**REDUCED, **more}) for more in ({}, {"OutOfRange": 1})]


depth = CASES.kind("R21", "pictures with more than 8 bits", **{**pictures, "view": shade})
depth("12 bits in a TIFF of 16 bits", Right(SCALED, warnings=REDUCED, notice="bit|range"), files={"a.tif": pixels(GRAY, "TIFF")})
depth("the same with a range", Right(SCALED, warnings=REDUCED), Right(SCALED), options={"range": [0, 4095]}, files={"a.tif": pixels(GRAY, "TIFF")}, peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"))
depth("the same as 16-bit numbers", Right([{**looks("a.tif", 0, 4095, (8, 8)), "middle": 2340}]), options={"mode": "I;16"}, files={"a.tif": pixels(GRAY, "TIFF")},
      peers=rgb("I;16") | {"daft": {"mode": "L16"}, "datasets": "not compared"})
depth("16 bits in a gray PNG", Right([{**looks("a.png", BLACK, WHITE), **GRAYS}], warnings=REDUCED, notice="bit|range"), files={"a.png": pixels(np.linspace(0, 65535, 64).reshape(8, 8).astype("uint16"))})
depth("16 bits in another byte order", Right(SCALED, warnings=REDUCED, notice="bit|range"), files={"a.tif": lambda: _big_endian(GRAY)})
depth("floating-point numbers, with a range", Right(SCALED, warnings=REDUCED), Right(SCALED), options={"range": [0, 1]}, files={"a.tif": pixels(np.linspace(0, 1, 64).reshape(8, 8).astype("float32"), "TIFF")}, peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"))
depth("floating-point numbers, without a range", Right([], failed=1, says="range|scale|float|mode"), files={"a.tif": pixels(np.linspace(0, 1, 64).reshape(8, 8).astype("float32"), "TIFF")})
depth("a picture that is nearly black, with 8 bits", Right([{**looks("a.png", (1, 1, 1), (1, 1, 1)), "middle": [1, 1, 1]}]), files={"a.png": picture((1, 1, 1))})
depth("one bit, and a palette", Right([{**looks("a.png", BLACK, BLACK), "middle": [0, 0, 0]}, {**looks("b.png", RED, RED), "middle": [*RED]}]), files={"a.png": picture(0, mode="1"), "b.png": lambda: _one_color_palette()})
depth("CMYK in JPEG", Right([{**looks("a.jpg", WHITE, WHITE), "middle": [*WHITE]}]), files={"a.jpg": picture((0, 0, 0, 0), "JPEG", mode="CMYK")})
depth("values outside of the range", *clipped(), options={"range": [100, 3000]}, files={"a.tif": pixels(GRAY, "TIFF")}, peers=dict.fromkeys(("ray", "daft", "datasets"), "no such option"))
depth("16 bits per colour in PNG", Right([{**looks("a.png", BLACK, WHITE), **GRAYS}], warnings=REDUCED, notice="bit|range"), Right([{**looks("a.png", BLACK, WHITE), **GRAYS}]), files={"a.png": lambda: _color_16()})
depth("a picture of 16 bits in a column", Right([{**_view(BLACK, WHITE), **GRAYS}], warnings=REDUCED, notice="bit|range"), **{**in_column(pixels(GRAY, "TIFF")), "view": shade})


def _big_endian(array: np.ndarray) -> bytes:
    """Return a TIFF of 16 bits in the byte order of Motorola."""
    import struct

    data = array.astype(">u2").tobytes()
    entries = [(256, 3, 8), (257, 3, 8), (258, 3, 16), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1), (278, 3, 8), (279, 4, len(data))]
    fields = b"".join(
        struct.pack(">HHI", tag, kind, 1) + (struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value))
        for tag, kind, value in entries
    )
    return b"MM\0*" + struct.pack(">I", 8 + len(data)) + data + struct.pack(">H", len(entries)) + fields + b"\0\0\0\0"


def _one_color_palette() -> bytes:
    from PIL import Image

    image = Image.new("P", (8, 8), 3)
    image.putpalette([0, 0, 0] * 3 + [*RED])
    return saved(image, "PNG")


def _color_16() -> bytes:
    """Return a colour PNG of 16 bits per channel, from black to white."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    values = np.linspace(0, 65535, 64).reshape(8, 8).astype(">u2")
    rows = b"".join(b"\0" + np.repeat(row[:, None], 3, 1).tobytes() for row in values)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))  # fmt: skip


def frames_of(kind: str, *colors: Any, **options: Any) -> Content:
    def make() -> bytes:
        from PIL import Image

        first, *others = (Image.new("RGB", (8, 8), color) for color in colors)
        return saved(first, kind, save_all=True, append_images=others, **options)

    return make


def page(row: Row) -> Row:
    return {**views.image(row), "page": row["page_index"]}


PAGES = {"PagesIgnored": 1}
SAYS = "page|frame"
NO_PAGES = dict.fromkeys(("ray", "daft", "datasets"), "no such option")
pages = CASES.kind("R22", "pages of a TIFF, frames of an animation", **pictures)
pages("two pages of a TIFF", Right([looks("a.tif", RED, RED)], warnings=PAGES, notice=SAYS), files={"a.tif": frames_of("TIFF", RED, GREEN)})
pages("all pages of a TIFF", Right([{**looks("a.tif", c, c), "page": n} for n, c in enumerate((RED, GREEN, BLUE))]), options={"pages": "all"}, view=page, files={"a.tif": frames_of("TIFF", RED, GREEN, BLUE)}, peers=NO_PAGES)
pages("three frames of a GIF", Right([looks("a.gif", RED, RED)], warnings=PAGES, notice=SAYS), files={"a.gif": frames_of("GIF", RED, GREEN, BLUE)})
pages(
    "all frames of GIF, WebP and PNG",
    Right([{**looks(name, c, c), "page": n} for name in ("a.gif", "b.webp", "c.png") for n, c in enumerate((RED, GREEN))]),
    options={"pages": "all"},
    view=page,
    files={"a.gif": frames_of("GIF", RED, GREEN), "b.webp": frames_of("WEBP", RED, GREEN, lossless=True), "c.png": frames_of("PNG", RED, GREEN)},
    peers=NO_PAGES,
)
pages("an animated WebP and PNG", Right([looks("a.webp", RED, RED), looks("b.png", RED, RED)], warnings={"PagesIgnored": 2}, notice=SAYS), files={"a.webp": frames_of("WEBP", RED, GREEN, lossless=True), "b.png": frames_of("PNG", RED, GREEN)})
pages("a picture with one page", Right([looks("a.tif", RED, RED), looks("b.gif", RED, RED)]), files={"a.tif": picture(kind="TIFF"), "b.gif": picture(kind="GIF")})
pages("a photo with a second one for depth (MPO)", Right([looks("a.jpg", RED, RED)], warnings=PAGES), Right([looks("a.jpg", RED, RED)]), files={"a.jpg": frames_of("MPO", RED, GREEN)})
pages("pages of different sizes", Right([{**looks("a.tif", RED, RED), "page": 0}, {**looks("a.tif", BLUE, BLUE, (4, 16, 3)), "page": 1}]), options={"pages": "all"}, view=page, files={"a.tif": lambda: _two_sizes()}, peers=NO_PAGES)
pages("a damaged second page", Right([{**looks("a.tif", RED, RED), "page": 0}], failed=1), options={"pages": "all"}, view=page, files={"a.tif": lambda: _two_sizes()[:-40]}, peers=NO_PAGES)
pages("pages in an archive", Right([_view(RED, RED)], warnings=PAGES, notice=SAYS), **in_archive("tif", frames_of("TIFF", RED, GREEN)))
pages("pages in a column", Right([_view(RED, RED)], warnings=PAGES, notice=SAYS), **in_column(frames_of("TIFF", RED, GREEN)))
pages("two tracks in a video", Right([{"path": "a.mkv", "index": n, **_view(RED, BLUE, WIDE)} for n in range(2)], warnings=PAGES), Right([{"path": "a.mkv", "index": n, **_view(RED, BLUE, WIDE)} for n in range(2)], warnings={"PagesIgnored": 2}), files={"a.mkv": video(2, streams=2)}, peers=NO_VIDEO_READER, **videos)


def _two_sizes() -> bytes:
    from PIL import Image

    return saved(Image.new("RGB", (8, 8), RED), "TIFF", save_all=True, append_images=[Image.new("RGB", (16, 4), BLUE)])


sounds = CASES.kind("R29", "sounds with unusual headers, depths and values", read={"format": "audio", "options": {"include_paths": True}}, view=views.sound, near=0.02, peers=NO_SOUND_READER)
sounds("a WAV of a stream, whose header has the largest size", Right([heard("a.wav")]), files={"a.wav": wave(sine(1), size=0xFFFFFFFF)})
sounds("a WAV of a stream, whose header has the size 0", Right([heard("a.wav")]), Right([], failed=1), files={"a.wav": wave(sine(1), size=0)})
sounds("8, 24 and 32 bits, and floating-point numbers", Right([heard(f"{t}.wav") for t in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")]), files={f"{t}.wav": sound(sine(1), subtype=t) for t in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")})
sounds("values above 1", Right([heard("a.wav", peak=3.0)], warnings={"OutOfRange": 1}), Right([heard("a.wav", peak=1.0)], warnings={"OutOfRange": 1}), files={"a.wav": sound(sine(1) * 6, subtype="FLOAT")})
sounds("stereo of which one side is silent", Right([heard("a.wav", channels=2)]), files={"a.wav": sound(np.hstack([sine(1), sine(1) * 0]))})
sounds("stereo that is mixed", Right([heard("a.wav", peak=0.25)]), options={"mono": True}, files={"a.wav": sound(np.hstack([sine(1), sine(1) * 0]))}, peers=NO_SOUND_READER | {"ray": "no such option"})
sounds("16 channels", Right([heard("a.wav", channels=16)]), files={"a.wav": sound(sine(1, channels=16))})
sounds("another rate", Right([heard("a.wav", rate=16000)]), options={"sample_rate": 16000}, files={"a.wav": sound(sine(1))}, peers=NO_SOUND_READER | {"ray": "no such option"})
sounds("metadata behind the samples", Right([heard("a.wav")]), files={"a.wav": wave(sine(1)) + b"LIST\x04\0\0\0INFO"})

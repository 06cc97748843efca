"""Pictures: transparency, orientation, missing ends, depth and pages; and frames of videos."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from support.inputs.media_files import exif
from traps import views
from traps.case import Cases, Content, Right, Row, bytes_of
from traps.cases.recordings import ACCEPT, CUT, NO_VIDEO_READER, VIDEO
from traps.inputs import parquet, tar
from traps.pictures import (
    BLUE,
    GREEN,
    RED,
    big_endian,
    color_16,
    frames_of,
    gray_16_transparent,
    halves,
    hidden,
    palette,
    photo,
    picture,
    pixels,
    red_palette,
    two_photos,
)
from traps.recordings import MP4, clear_video, video

CASES = Cases("pictures")
WHITE = (255, 255, 255)
REDUCED = {"DepthReduced": 1}
ASSUMED = {"DepthReduced": 1, "RangeAssumed": 1}


def looks(name: str, first: Any, last: Any, shape: tuple[int, ...] = (8, 8, 3)) -> Row:
    return {"path": name, "shape": [*shape], "first": _listed(first), "last": _listed(last)}


def _listed(color: Any) -> Any:
    return list(color) if isinstance(color, tuple) else color


def rgb(mode: str = "RGB") -> dict[str, Any]:
    """Return the options of the other tools for pictures of this mode."""
    return {"ray": {"mode": mode}, "daft": {"mode": mode}, "datasets": {}}


pictures: dict[str, Any] = {
    "read": {"format": "images", "options": {"includePaths": True}},
    "view": views.image,
    "near": 3,
}


def member(row: Row) -> Row:
    """Return the picture of a sample of an archive."""
    value = next(row[name] for name in ("png", "jpg", "tif", ".png", ".jpg", "tif") if name in row)
    if isinstance(value, bytes):
        value = Image.open(io.BytesIO(value))
    return views.corners(value.convert("RGB") if hasattr(value, "convert") else value)


def in_archive(name: str, content: Content) -> dict[str, Any]:
    return {
        "files": {"a.tar": tar([(f"0.{name}", content)])},
        "read": {"format": "webdataset", "options": {"includePaths": False}},
        "view": member,
        "peers": {},
    }


def in_column(content: Content, **decode: Any) -> dict[str, Any]:
    """Return the fields of a case whose picture is in a column of a Parquet file."""
    return {
        "files": {"a.parquet": parquet(lambda: {"image": [bytes_of(content)]})},
        "read": {"format": "parquet", "options": {"includePaths": False}},
        "steps": [{"name": "decode", "decode": {"column": "image", "format": "image", **decode}}],
        "view": lambda row: views.corners(row["image"]),
        "peers": {"daft": _daft_column, "datasets": _datasets_column},
    }


def _daft_column(directory: Any) -> list[Row]:
    import daft

    frame = daft.read_parquet(f"{directory}/in/*.parquet")
    values = frame.with_column("image", daft.col("image").decode_image(mode="RGB")).to_pylist()
    return [{"image": np.asarray(row["image"])} for row in values]


def _datasets_column(directory: Any) -> list[Row]:
    import datasets

    from traps.peers import with_datasets

    column = with_datasets.load("parquet", directory).cast_column("image", datasets.Image())
    return [{"image": np.asarray(row["image"].convert("RGB"))} for row in column]


def _view(*values: Any) -> Row:
    return {name: value for name, value in looks("", *values).items() if name != "path"}


composited = {"Composited": 1}
clear = CASES.kind("R07", "transparent pixels", **pictures)
clear(
    "three pictures with hidden colours that look the same",
    Right([looks(f"{n}.png", WHITE, BLUE) for n in "abc"], warnings={"Composited": 3}),
    files={"a.png": hidden((0, 0, 0)), "b.png": hidden((240, 30, 10)), "c.png": hidden(WHITE)},
)
clear(
    "one transparent colour of an RGB picture",
    Right([looks("a.png", WHITE, WHITE)], warnings=composited),
    files={"a.png": picture((240, 30, 10), transparency=(240, 30, 10))},
)
clear(
    "a transparent colour of a palette, in PNG and GIF",
    Right([looks("a.png", WHITE, BLUE), looks("b.gif", WHITE, BLUE)], warnings={"Composited": 2}),
    files={"a.png": palette("PNG"), "b.gif": palette("GIF")},
)
clear(
    "gray with transparency",
    Right([looks("a.png", WHITE, (29, 29, 29))], warnings=composited),
    files={"a.png": hidden((9, 9, 9), "LA")},
)
clear(
    "half transparent red",
    Right([looks("a.png", (255, 127, 127), (255, 127, 127))], warnings=composited),
    files={"a.png": picture((255, 0, 0, 128), mode="RGBA")},
)
clear(
    "transparency in WebP",
    Right([looks("a.webp", WHITE, BLUE)], warnings=composited),
    files={"a.webp": hidden((9, 9, 9), kind="WEBP", lossless=True, exact=True)},
)
clear(
    "the mode RGBA keeps the transparency",
    Right([looks("a.png", (9, 8, 7, 0), (*BLUE, 255), (8, 8, 4))]),
    options={"mode": "RGBA"},
    files={"a.png": hidden((9, 8, 7))},
    peers=rgb("RGBA") | {"datasets": "not compared"},
)
clear(
    "the mode L",
    Right([looks("a.png", 255, 29, (8, 8))], warnings=composited),
    options={"mode": "L"},
    files={"a.png": hidden((9, 9, 9))},
    peers=rgb("L") | {"daft": "not compared", "datasets": "not compared"},
)
clear(
    "RGBA without transparent pixels",
    Right([looks("a.png", RED, RED)]),
    files={"a.png": picture((*RED, 255), mode="RGBA")},
)
clear(
    "a picture in an archive",
    Right([_view(WHITE, BLUE)], warnings=composited),
    **in_archive("png", hidden((9, 9, 9))),
)
clear(
    "a picture in a column",
    Right([_view(WHITE, BLUE)], warnings=composited),
    **in_column(hidden((9, 9, 9))),
)
clear(
    "a picture that is resized",
    Right([looks("a.png", WHITE, WHITE, (4, 4, 3))], warnings=composited),
    options={"size": [4, 4]},
    files={"a.png": picture((9, 9, 9, 0), mode="RGBA")},
    peers={"ray": {"size": (4, 4)}, "daft": "not compared", "datasets": "not compared"},
)
clear(
    "16 bits with transparency",
    Right([looks("a.png", WHITE, WHITE)], warnings={"Composited": 1, "RangeAssumed": 1}),
    files={"a.png": gray_16_transparent},
)


clear(
    "a video with transparency",
    Right(
        [{"path": "a.mkv", "index": n, **_view(WHITE, WHITE, (16, 32, 3))} for n in range(2)],
        warnings={"Composited": 2},
    ),
    files={"a.mkv": clear_video},
    peers=NO_VIDEO_READER,
    **VIDEO,
)
clear(
    "transparency and a turned camera in one picture",
    Right([looks("a.png", WHITE, WHITE, (32, 16, 3))], warnings={"Composited": 1, "Rotated": 1}),
    files={"a.png": picture((9, 9, 9, 0), mode="RGBA", size=(32, 16), exif=exif(6))},
)


ROTATED = {"Rotated": 1}
TALL, WIDE = (32, 16, 3), (16, 32, 3)
turned = CASES.kind(
    "R11", "pictures and videos of a camera that was turned", **{**pictures, "near": 12}
)
turned(
    "a JPEG of a camera that was held upright",
    Right([looks("a.jpg", RED, BLUE, TALL)], warnings=ROTATED),
    files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(6))},
)
FIRST = {1: RED, 2: BLUE, 3: BLUE, 4: RED, 5: RED, 6: RED, 7: BLUE, 8: BLUE}
turned(
    "all eight orientations",
    Right(
        [
            looks(f"{n}.jpg", color, BLUE if color == RED else RED, WIDE if n < 5 else TALL)
            for n, color in FIRST.items()
        ],
        warnings={"Rotated": 7},
    ),
    files={f"{n}.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(n)) for n in FIRST},
)
turned(
    "the orientation in PNG, WebP and TIFF",
    Right(
        [looks(name, RED, BLUE, TALL) for name in ("a.png", "b.webp", "c.tif")],
        warnings={"Rotated": 3},
    ),
    files={
        "a.png": halves(exif=exif(6)),
        "b.webp": halves("WEBP", lossless=True, exif=exif(6)),
        "c.tif": halves("TIFF", tiffinfo={274: 6}),
    },
)
turned(
    "the orientation is to be ignored",
    Right([looks("a.jpg", RED, BLUE, WIDE)]),
    options={"orientation": "ignore"},
    files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(6))},
    peers={"datasets": "no such option"},
)
turned(
    "an orientation that does not exist",
    Right([looks("a.jpg", RED, BLUE, WIDE)]),
    files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(9))},
)
turned(
    "a turned picture that is resized",
    Right([looks("a.jpg", RED, BLUE, (16, 8, 3))], warnings=ROTATED),
    options={"size": [16, 8]},
    files={"a.jpg": halves("JPEG", quality=95, subsampling=0, exif=exif(6))},
    peers={"ray": {"size": (16, 8)}, "daft": "not compared", "datasets": "not compared"},
)
turned(
    "a turned picture in an archive",
    Right([_view(RED, BLUE, TALL)], warnings=ROTATED),
    **in_archive("jpg", halves("JPEG", quality=95, subsampling=0, exif=exif(6))),
)
turned(
    "a turned picture in a column",
    Right([_view(RED, BLUE, TALL)], warnings=ROTATED),
    **in_column(halves("JPEG", quality=95, subsampling=0, exif=exif(6))),
)
turned(
    "a video of a telephone that was held upright",
    Right(
        [{"path": "a.mp4", "index": n, **_view(RED, BLUE, TALL)} for n in range(2)],
        warnings={"Rotated": 2},
    ),
    files={"a.mp4": video(2, rotate=90, **MP4)},
    peers=NO_VIDEO_READER | {"daft": {"size": (32, 16)}},
    **VIDEO,
)
turned(
    "a video that is upside down",
    Right(
        [{"path": "a.mp4", "index": n, **_view(BLUE, RED, WIDE)} for n in range(2)],
        warnings={"Rotated": 2},
    ),
    files={"a.mp4": video(2, rotate=180, **MP4)},
    peers=NO_VIDEO_READER,
    **VIDEO,
)

JPEG = partial(photo, "JPEG", quality=90)
LARGE = partial(photo, "JPEG", size=(400, 600))


def shapes(row: Row) -> Row:
    """Return the name and shape of a picture: the pixels that are missing have no defined value."""
    return {"path": views.name(row), "shape": list(np.asarray(row["image"]).shape)}


def shaped(*names: str) -> list[Row]:
    return [{"path": name, "shape": [40, 60, 3]} for name in names]


cut = CASES.kind("R20", "pictures whose end is missing", **{**pictures, "view": shapes, "near": 0})
LARGE_ROW = {"path": "large.jpg", "shape": [400, 600, 3]}
TAIL_ROW = {"path": "tail.jpg", "shape": [400, 600, 3]}
LARGE_FILES = {"large.jpg": LARGE, "tail.jpg": lambda: LARGE()[:-2]}
cut(
    "a JPEG without its last two bytes, behind all pixels",
    Right([LARGE_ROW], failed=1, says=CUT),
    Right([LARGE_ROW, TAIL_ROW]),
    files=LARGE_FILES,
)
cut(
    "a small JPEG without its last 20 bytes",
    Right([], failed=1, says=CUT),
    files={"a.jpg": lambda: JPEG()[:-20]},
)
cut(
    "half of a JPEG",
    Right([], failed=1, says=CUT),
    files={"a.jpg": lambda: JPEG()[: len(JPEG()) // 2]},
)
cut(
    "half of a PNG",
    Right([], failed=1, says=CUT),
    files={"a.png": lambda: photo("PNG")[: len(photo("PNG")) // 2]},
)
cut(
    "a JPEG of 20 bytes, with the option",
    Right([], failed=1),
    options=ACCEPT,
    files={"a.jpg": lambda: JPEG()[:20]},
)
cut(
    "an empty file beside a picture",
    Right(shaped("b.jpg"), failed=1),
    files={"a.jpg": b"", "b.jpg": JPEG},
)
cut(
    "bytes behind the end of a JPEG",
    Right(shaped("a.jpg")),
    files={"a.jpg": lambda: JPEG() + b"\0" * 1000},
)
cut(
    "a cut picture in an archive",
    Right([], failed=1, says=CUT),
    **{**in_archive("jpg", lambda: JPEG()[:-100]), "view": None},
)
cut(
    "a GIF that is cut within its second frame",
    Right([{"path": "a.gif", "shape": [40, 60, 3]}], warnings={"PagesIgnored": 1}),
    files={"a.gif": lambda: two_photos("GIF")[:-200]},
)


GRAY = np.linspace(0, 4095, 64).reshape(8, 8).astype("uint16")


def shade(row: Row) -> Row:
    """Return the view of a picture, and a pixel in its middle."""
    middle = np.asarray(row["image"])[4, 4]
    return {
        **(views.image(row) if "path" in row else views.corners(row["image"])),
        "middle": middle.tolist(),
    }


GRAYS = {"middle": [145, 145, 145]}
BLACK = (0, 0, 0)
SCALED = [{**looks("a.tif", BLACK, WHITE), **GRAYS}]


depth = CASES.kind("R21", "pictures with more than 8 bits", **{**pictures, "view": shade})
depth(
    "12 bits in a TIFF of 16 bits",
    Right(SCALED, warnings=ASSUMED, notice="bit|range"),
    files={"a.tif": pixels(GRAY, "TIFF")},
)
depth(
    "the same as 16-bit numbers",
    Right([{**looks("a.tif", 0, 4095, (8, 8)), "middle": 2340}]),
    options={"mode": "I;16"},
    files={"a.tif": pixels(GRAY, "TIFF")},
    peers=rgb("I;16") | {"daft": {"mode": "L16"}, "datasets": "not compared"},
)
depth(
    "16 bits in a gray PNG",
    Right([{**looks("a.png", BLACK, WHITE), **GRAYS}], warnings=REDUCED, notice="bit|range"),
    files={"a.png": pixels(np.linspace(0, 65535, 64).reshape(8, 8).astype("uint16"))},
)
depth(
    "16 bits in another byte order",
    Right(SCALED, warnings=ASSUMED, notice="bit|range"),
    files={"a.tif": lambda: big_endian(GRAY)},
)
depth(
    "floating-point numbers, without a range",
    Right([], failed=1, says="range|scale|float|mode"),
    files={"a.tif": pixels(np.linspace(0, 1, 64).reshape(8, 8).astype("float32"), "TIFF")},
)
depth(
    "a picture that is nearly black, with 8 bits",
    Right([{**looks("a.png", (1, 1, 1), (1, 1, 1)), "middle": [1, 1, 1]}]),
    files={"a.png": picture((1, 1, 1))},
)
depth(
    "one bit, and a palette",
    Right(
        [
            {**looks("a.png", BLACK, BLACK), "middle": [0, 0, 0]},
            {**looks("b.png", RED, RED), "middle": [*RED]},
        ]
    ),
    files={"a.png": picture(0, mode="1"), "b.png": red_palette},
)
depth(
    "CMYK in JPEG",
    Right([{**looks("a.jpg", WHITE, WHITE), "middle": [*WHITE]}]),
    files={"a.jpg": picture((0, 0, 0, 0), "JPEG", mode="CMYK")},
)
depth(
    "16 bits per colour in PNG",
    Right([{**looks("a.png", BLACK, WHITE), **GRAYS}], warnings=REDUCED, notice="bit|range"),
    Right([{**looks("a.png", BLACK, WHITE), **GRAYS}]),
    files={"a.png": color_16},
)
depth(
    "a picture of 16 bits in a column",
    Right([{**_view(BLACK, WHITE), **GRAYS}], warnings=ASSUMED, notice="bit|range"),
    **{**in_column(pixels(GRAY, "TIFF")), "view": shade},
)
depth(
    "a video with 10 bits",
    Right(
        [{"path": "a.mkv", "index": n, **_view(RED, BLUE, WIDE)} for n in range(2)],
        warnings={"DepthReduced": 2},
    ),
    files={"a.mkv": video(2, pixels="yuv444p10le")},
    peers=NO_VIDEO_READER,
    **VIDEO,
)
depth(
    "an AVIF with 10 bits",
    Right([{**looks("a.avif", RED, RED), "middle": [*RED]}]),
    files={"a.avif": picture(kind="AVIF", quality=100)},
)


PAGES = {"PagesIgnored": 1}
SAYS = "page|frame"
pages = CASES.kind("R22", "pages of a TIFF, frames of an animation", **pictures)
pages(
    "two pages of a TIFF",
    Right([looks("a.tif", RED, RED)], warnings=PAGES, notice=SAYS),
    files={"a.tif": frames_of("TIFF", RED, GREEN)},
)
pages(
    "three frames of a GIF",
    Right([looks("a.gif", RED, RED)], warnings=PAGES, notice=SAYS),
    files={"a.gif": frames_of("GIF", RED, GREEN, BLUE)},
)
pages(
    "an animated WebP and PNG",
    Right(
        [looks("a.webp", RED, RED), looks("b.png", RED, RED)],
        warnings={"PagesIgnored": 2},
        notice=SAYS,
    ),
    files={
        "a.webp": frames_of("WEBP", RED, GREEN, lossless=True),
        "b.png": frames_of("PNG", RED, GREEN),
    },
)
pages(
    "a picture with one page",
    Right([looks("a.tif", RED, RED), looks("b.gif", RED, RED)]),
    files={"a.tif": picture(kind="TIFF"), "b.gif": picture(kind="GIF")},
)
pages(
    "a photo with a second one for depth (MPO)",
    Right([looks("a.jpg", RED, RED)], warnings=PAGES),
    files={"a.jpg": frames_of("MPO", RED, GREEN)},
)
pages(
    "pages in an archive",
    Right([_view(RED, RED)], warnings=PAGES, notice=SAYS),
    **in_archive("tif", frames_of("TIFF", RED, GREEN)),
)
pages(
    "pages in a column",
    Right([_view(RED, RED)], warnings=PAGES, notice=SAYS),
    **in_column(frames_of("TIFF", RED, GREEN)),
)
pages(
    "two tracks in a video",
    Right(
        [{"path": "a.mkv", "index": n, **_view(RED, BLUE, WIDE)} for n in range(2)], warnings=PAGES
    ),
    files={"a.mkv": video(2, streams=2)},
    peers=NO_VIDEO_READER,
    **VIDEO,
)

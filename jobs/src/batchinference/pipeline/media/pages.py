"""Lists the pages of image files: pages of a scan, and frames of an animation."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

from PIL import Image
from PIL.ExifTags import Base

_SMALLER, _MASK = 1, 4
"""Bits of the type of a TIFF image: a smaller version of another one, and a mask of another one."""
_MPO_ENTRIES = 0xB002
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_NETPBM = re.compile(
    rb"P(?:4|([56]))%b(\d{1,9})%b(\d{1,9})(?(1)%b(\d{1,9}))\s" % (_GAP, _GAP, _GAP)
)
"""The header of a binary Netpbm image: its kind, width, height, and white unless it has 1 bit."""


def pages_of(image: Image.Image) -> list[int]:
    """Return the numbers of the pages of a file that has not been decoded, without previews and
    masks. A page that cannot be decoded is included. Raises ValueError if previews are all that can
    be decoded."""
    if image.format == "TIFF":
        pages = _tiff_pages(image)
        if not pages and Base.SubIFDs in getattr(image, "tag_v2", ()):
            raise ValueError(
                "only a thumbnail of the photograph can be read, as in most raw files of cameras. "
                "Convert it to TIFF or JPEG"
            )
        return pages or [0]
    pages = list(range(getattr(image, "n_frames", 1)))
    if image.format == "MPO":
        entries = getattr(image, "mpinfo", {}).get(_MPO_ENTRIES, [])
        pages = [page for page in pages if page == 0 or not _is_preview(entries[page])]
    return pages


def _tiff_pages(image: Any) -> list[int]:
    """Return the pages of a TIFF file. The page after a damaged list entry is the last one."""
    pages, damaged = [], False
    for page in count():
        try:
            image.seek(page)
        except EOFError:
            break
        except SyntaxError:  # the pixels are of an unknown kind
            pass
        except (OSError, TypeError, ValueError, KeyError):
            damaged = True
        if damaged or not int(image.tag_v2.get(Base.NewSubfileType, 0)) & (_SMALLER | _MASK):
            pages.append(page)
        if damaged:
            break
    image.seek(0)
    return pages


def ignored_images(content: bytes) -> int:
    """Return how many images follow the first one in a PPM file. Pillow does not read them."""
    at, images = 0, 0
    while head := _NETPBM.match(content, at):
        kind, width, height, white = head.groups()
        samples = int(width) * (3 if kind == b"6" else 1)
        row = samples * (2 if int(white) > 255 else 1) if kind else (samples + 7) // 8
        at = head.end() + row * int(height)
        images += 1
    return max(0, images - 1)


def _is_preview(entry: dict[str, Any]) -> bool:
    """Return whether an entry of an MPO file is a smaller version of the first image."""
    return "Thumbnail" in str(entry.get("Attribute", {}).get("MPType"))

"""Lists the pages of image files: pages of a scan, and frames of an animation."""

from __future__ import annotations

from itertools import count
from typing import Any

from PIL import Image
from PIL.ExifTags import Base

_SMALLER, _MASK = 1, 4
"""Bits of the type of a TIFF image: a smaller version of another one, and a mask of another one."""
_MPO_ENTRIES = 0xB002


def pages_of(image: Image.Image) -> list[int]:
    """Return the numbers of the pages of a file that has not been decoded, without previews and
    masks. A page that cannot be decoded is included."""
    if image.format == "TIFF":
        return _tiff_pages(image) or [0]
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


def _is_preview(entry: dict[str, Any]) -> bool:
    """Return whether an entry of an MPO file is a smaller version of the first image."""
    return "Thumbnail" in str(entry.get("Attribute", {}).get("MPType"))

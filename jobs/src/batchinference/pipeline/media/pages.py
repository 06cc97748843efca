"""Lists the pages of image files: pages of a scan, and frames of an animation."""

from __future__ import annotations

from typing import Any

from PIL import Image
from PIL.ExifTags import Base

_SMALLER, _MASK = 1, 4
"""Bits of the type of a TIFF image: a smaller version of another one, and a mask of another one."""
_MPO_ENTRIES = 0xB002


def pages_of(image: Image.Image) -> list[int]:
    """Return the numbers of the pages of a file that has not been decoded, without previews and
    masks. A damaged page list counts up to the damage."""
    count = getattr(image, "n_frames", 1)
    if count == 1:
        return [0]
    current, format_ = image.tell(), image.format
    if format_ == "TIFF":
        pages = [page for page in range(count) if _is_tiff_page(image, page)]
        image.seek(current)
    elif format_ == "MPO":
        entries = getattr(image, "mpinfo", {}).get(_MPO_ENTRIES, [])
        pages = [page for page in range(count) if page == 0 or not _is_preview(entries[page])]
    else:
        pages = list(range(count))
    return pages or [0]


def _is_tiff_page(image: Any, page: int) -> bool:
    image.seek(page)
    return not int(image.tag_v2.get(Base.NewSubfileType, 0)) & (_SMALLER | _MASK)


def _is_preview(entry: dict[str, Any]) -> bool:
    """Return whether an entry of an MPO file is a smaller version of the first image."""
    return "Thumbnail" in str(entry.get("Attribute", {}).get("MPType"))

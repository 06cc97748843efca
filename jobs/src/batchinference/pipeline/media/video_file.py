"""Opens films that others may have made.

FFmpeg tells formats apart by content and not by name. Some describe streams: to read one, FFmpeg
would open sockets or other files. Only formats that hold pictures themselves are opened. A test
finds other calls of `av.open`.
"""

from __future__ import annotations

from typing import Any

import av
from av.container import InputContainer

FORMATS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "mpeg", "mpegvideo"),
    *("m4v", "mpegts", "asf", "flv", "ogg", "mxf"),
)
_NOTHING_ELSE = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": ""}


def open_video(source: Any, **options: Any) -> InputContainer:
    """Return an open film. FFmpeg opens no other file and no socket for it. Raises FFmpegError."""
    film: InputContainer = av.open(source, "r", options=_NOTHING_ELSE, **options)
    return film

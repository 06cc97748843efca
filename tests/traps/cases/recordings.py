"""Sounds and videos: missing ends, unusual headers, depths and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from traps import views
from traps.case import Cases, Content, Right, Row, bytes_of
from traps.recordings import encoded_sound, sine, sound, wave

CASES = Cases("recordings")
NO_SOUND_READER = {
    "datasets": "needs torchcodec to decode sound",
    "daft": "reads no samples of a file in a column",
    "pandas": "no reader for sound",
}
NO_VIDEO_READER = {
    "ray": "needs decord to decode videos",
    "datasets": "needs torchcodec to decode videos",
}
CUT = "truncated|end|damaged|broken"
TRUNCATED = {"Truncated": 1}
ACCEPT = {"truncated": "accept"}
VIDEO: dict[str, Any] = {"read": {"format": "video"}, "view": views.frame}


def half(content: Content) -> Content:
    """Return the first half of a file."""
    return lambda: bytes_of(content)[: len(bytes_of(content)) // 2]


ends = CASES.kind(
    "R16",
    "sounds and videos whose end is missing",
    read={"format": "audio", "options": {"includePaths": True}},
    view=views.sound,
    near=0.1,
    peers=NO_SOUND_READER,
)


def heard(
    name: str, seconds: float = 1.0, rate: int = 8000, channels: int = 1, peak: float = 0.5
) -> Row:
    return {"path": name, "rate": rate, "channels": channels, "seconds": seconds, "peak": peak}


WAV = wave(sine(1))
ends(
    "a WAV file of which half is missing",
    Right([heard("b.wav")], failed=1, says=CUT),
    files={"a.wav": WAV[:8000], "b.wav": WAV},
)
ends(
    "half of a FLAC file",
    Right([], failed=1, says=CUT),
    files={"a.flac": half(sound(sine(10, 44100), 44100, "FLAC"))},
)
ends(
    "half of an Ogg and an MP3 file",
    Right([], failed=2, says=CUT),
    files={
        "a.ogg": half(sound(sine(10, 44100), 44100, "OGG")),
        "b.mp3": half(sound(sine(10, 44100), 44100, "MP3")),
    },
)
ends(
    "an m4a file without its index",
    Right([], failed=1, says=CUT + "|moov|invalid"),
    files={"a.m4a": lambda: encoded_sound("ipod", "aac")()[:4000]},
)
ends(
    "a WAV file with a header and no samples",
    Right([heard("a.wav", 0.0, peak=0.0)]),
    files={"a.wav": wave(sine(0))},
)


ends(
    "two Ogg files in one",
    Right([heard("a.ogg", 2.0, 44100)]),
    Right([heard("a.ogg", 1.0, 44100)], warnings=TRUNCATED),
    Right([], failed=1),
    files={"a.ogg": lambda: bytes_of(sound(sine(1, 44100), 44100, "OGG")) * 2},
)
ends(
    "two WAV files in one",
    Right([heard("a.wav", 2.0)]),
    Right([heard("a.wav", 1.0)]),
    Right([], failed=1),
    files={"a.wav": WAV * 2},
)


sounds = CASES.kind(
    "R29",
    "sounds with unusual headers, depths and values",
    read={"format": "audio", "options": {"includePaths": True}},
    view=views.sound,
    near=0.02,
    peers=NO_SOUND_READER,
)
sounds(
    "a WAV of a stream, whose header has the largest size",
    Right([heard("a.wav")]),
    files={"a.wav": wave(sine(1), size=0xFFFFFFFF)},
)
sounds(
    "a WAV of a stream, whose header has the size 0",
    Right([heard("a.wav")]),
    files={"a.wav": wave(sine(1), size=0)},
)
sounds(
    "8, 24 and 32 bits, and floating-point numbers",
    Right([heard(f"{t}.wav") for t in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")]),
    files={
        f"{t}.wav": sound(sine(1), subtype=t)
        for t in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")
    },
)
sounds(
    "values above 1",
    Right([heard("a.wav", peak=3.0)], warnings={"OutOfRange": 1}),
    Right([heard("a.wav", peak=1.0)], warnings={"OutOfRange": 1}),
    files={"a.wav": sound(sine(1) * 6, subtype="FLOAT")},
)
sounds(
    "stereo of which one side is silent",
    Right([heard("a.wav", channels=2)]),
    files={"a.wav": sound(np.hstack([sine(1), sine(1) * 0]))},
)
sounds(
    "16 channels",
    Right([heard("a.wav", channels=16)]),
    files={"a.wav": sound(sine(1, channels=16))},
)
sounds(
    "metadata behind the samples",
    Right([heard("a.wav")]),
    files={"a.wav": wave(sine(1)) + b"LIST\x04\0\0\0INFO"},
)

"""Audio input: decoders, tracks, lengths, resampling, and recordings whose end is missing."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from plugins.messages import Messages
from support.inputs.media_files import recorded, write_film
from support.inputs.read_files import Outcome, read_content, read_files

SPEECH_RATE = 16000


def sine(hertz: float, rate: int = SPEECH_RATE, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


def write_audio(path: Path, *channels: np.ndarray, rate: int = SPEECH_RATE) -> Path:
    kind = {"format": "OGG", "subtype": "OPUS"} if path.suffix == ".opus" else {}
    soundfile.write(path, np.stack(channels, axis=1) / 2, rate, **kind)
    return path


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "opus", "mp3", "aiff", "au", "caf"])
def test_samples_equal_those_of_soundfile(tmp_path: Path, ending: str) -> None:
    path = write_audio(tmp_path / f"a.{ending}", sine(440), sine(220))
    outcome = read_files("audio", tmp_path)
    expected, rate = soundfile.read(path, dtype="float32", always_2d=True)
    (amplitude,) = outcome.column("amplitude")
    assert amplitude.dtype == np.float32
    assert np.allclose(amplitude, expected.T, atol=1e-6)
    assert outcome.column("sample_rate").tolist() == [rate]


def test_mono_averages_the_channels(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav", sine(440), sine(220))
    (amplitude,) = read_files("audio", tmp_path, mono=True).column("amplitude")
    expected = soundfile.read(path, dtype="float32")[0].mean(axis=1)
    assert np.array_equal(amplitude, expected)


@pytest.mark.parametrize("mono", [True, False])
def test_resampling_keeps_a_tone(tmp_path: Path, mono: bool) -> None:
    for rate, wanted in ((44100, 16000), (8000, 16000), (48000, 44100)):
        write_audio(tmp_path / "a.wav", sine(440, rate), sine(440, rate), rate=rate)
        outcome = read_files("audio", tmp_path, sampleRate=wanted, mono=mono)
        (amplitude,) = outcome.column("amplitude")
        assert outcome.column("sample_rate").tolist() == [wanted]
        assert amplitude.shape == ((wanted // 2,) if mono else (2, wanted // 2))
        inner = np.atleast_2d(amplitude)[:, 100:-100]  # the filter rings at the ends
        assert np.abs(inner - sine(440, wanted)[100:-100] / 2).max() < 1e-3


def test_resampling_removes_frequencies_above_half_the_new_rate(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", sine(10000, 44100), rate=44100)
    (amplitude,) = read_files("audio", tmp_path, sampleRate=8000).column("amplitude")
    assert np.abs(amplitude[:, 200:-200]).max() < 1e-2


def test_file_with_a_gap_is_a_failed_row(tmp_path: Path, messages: Messages) -> None:
    path = write_audio(tmp_path / "a.opus", sine(440, 48000, 1), sine(0, 48000, 1), rate=48000)
    content = bytearray(path.read_bytes())
    quarter = len(content) // 4
    content[2 * quarter : 3 * quarter] = bytes(quarter)
    path.write_bytes(content)
    (error,) = read_files("audio", tmp_path).bad.values()
    messages.check(error)


RATE = 48000
TONE = (np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE) / 2).astype(np.float32)
NOISE = np.random.default_rng(0).standard_normal(10 * RATE).cumsum()
SOUND = (0.8 * (NOISE - NOISE.mean()) / np.abs(NOISE).max()).astype(np.float32)


def encoded(samples: np.ndarray, file_format: str, subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE, format=file_format, subtype=subtype)
    return buffer.getvalue()


def read(folder: Path, content: bytes, **options: Any) -> Outcome:
    return read_content("audio", folder, content, **options)


def amplitude(outcome: Outcome) -> np.ndarray:
    (samples,) = outcome.column("amplitude")
    return np.asarray(samples)


@pytest.mark.parametrize(
    ("container", "codec", "error"),
    [
        ("ipod", "alac", 1e-3),
        ("matroska", "flac", 1e-3),
        ("matroska", "pcm_s24le", 1e-6),
        ("matroska", "pcm_f32le", 0),
        ("mov", "pcm_s24be", 1e-6),
        ("avi", "pcm_u8", 1e-2),
        ("webm", "libopus", 2e-2),
        ("ogg", "flac", 1e-3),
        ("wv", "wavpack", 1e-2),
        ("wav", "pcm_mulaw", 2e-2),
    ],
)
def test_audio_that_libsndfile_does_not_know_is_decoded(
    tmp_path: Path, container: str, codec: str, error: float
) -> None:
    outcome = read(tmp_path, recorded(TONE, container, codec))
    assert outcome.column("sample_rate").tolist() == [RATE]
    assert amplitude(outcome).shape == (1, RATE)
    assert np.abs(amplitude(outcome)[0] - TONE)[2000:-2000].max() <= error
    assert outcome.warnings == {}


@pytest.mark.parametrize(
    ("container", "codec"),
    [("ipod", "aac"), ("mp4", "aac"), ("adts", "aac"), ("3gp", "aac"), ("ac3", "ac3")],
)
def test_lossy_audio_has_about_its_length(tmp_path: Path, container: str, codec: str) -> None:
    outcome = read(tmp_path, recorded(TONE, container, codec), sampleRate=16000, mono=True)
    assert amplitude(outcome).shape[0] == pytest.approx(16000, abs=600)


def test_first_track_is_read_and_the_others_are_counted(tmp_path: Path) -> None:
    outcome = read(tmp_path, recorded(TONE, "matroska", "flac", tracks=3))
    assert amplitude(outcome).shape == (1, RATE)
    assert outcome.warnings == {(0, 0): {"PagesIgnored": 2}}


def test_film_without_sound_is_a_failed_row(tmp_path: Path) -> None:
    write_film(tmp_path / "a.mkv", [np.zeros((48, 64, 3), np.uint8)], "ffv1", "yuv420p")
    (error,) = read_files("audio", tmp_path / "a.mkv").bad.values()
    assert "no sound" in error


@pytest.mark.parametrize(
    "text", ["", "no sound", "#EXTM3U\nhttp://127.0.0.1:9/a.mp3\n", "ffconcat version 1.0\n"]
)
def test_lists_of_other_files_and_texts_are_no_recordings(tmp_path: Path, text: str) -> None:
    (error,) = read(tmp_path, text.encode()).bad.values()
    assert "not recognised" in error


def test_limit_applies_while_audio_is_decoded(tmp_path: Path) -> None:
    content = recorded(np.zeros(60 * RATE, np.float32), "matroska", "flac")
    assert len(content) < 100_000
    (error,) = read(tmp_path, content, maxRowBytes=1_000_000).bad.values()
    assert "maxRowBytes" in error


@pytest.mark.parametrize(
    ("file_format", "subtype", "error"),
    [("WAV", "PCM_U8", 1e-2), ("WAV", "PCM_24", 1e-6), ("WAV", "PCM_32", 1e-7),
     ("WAV", "DOUBLE", 0), ("AIFF", "PCM_S8", 1e-2), ("WAV", "GSM610", 0.3),
     ("WAV", "MS_ADPCM", 1e-2)],
)  # fmt: skip
def test_integers_have_the_scale_of_floating_numbers(
    tmp_path: Path, file_format: str, subtype: str, error: float
) -> None:
    result = amplitude(read(tmp_path, encoded(TONE, file_format, subtype)))
    assert np.abs(result[0, :RATE] - TONE)[2000:-2000].max() <= error


@pytest.mark.parametrize("value", [1.5, -1.1, float("nan"), float("inf")])
def test_values_beyond_the_range_are_kept_and_counted(tmp_path: Path, value: float) -> None:
    samples = np.array([0.5, value], np.float32)
    for content in (encoded(samples, "WAV", "FLOAT"), recorded(samples, "matroska", "pcm_f32le")):
        outcome = read(tmp_path, content)
        assert amplitude(outcome)[0].tolist() == pytest.approx(samples.tolist(), nan_ok=True)
        assert outcome.warnings == {(0, 0): {"OutOfRange": 0}}
    full = encoded(np.array([-1, 1], np.float32), "WAV", "FLOAT")
    assert read(tmp_path, full).warnings == {}


CUT = [
    *(("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("AIFF", "PCM_16")),
    *(("AU", "PCM_16"), ("CAF", "PCM_16"), ("W64", "PCM_16"), ("RF64", "PCM_16")),
    *(("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")),
]
CUT_TRACKS = [
    *(("matroska", "flac"), ("matroska", "pcm_s16le"), ("webm", "libopus"), ("ogg", "flac")),
    *(("adts", "aac"), ("avi", "pcm_s16le")),
]


@pytest.mark.parametrize("kind", [*CUT, *CUT_TRACKS])
@pytest.mark.parametrize("left", ["half", "all but 2 bytes"])
def test_missing_end_fails_the_row_or_is_counted(
    tmp_path: Path, kind: tuple[str, str], left: str
) -> None:
    content = encoded(SOUND, *kind) if kind in CUT else recorded(SOUND, *kind)
    cut = content[: len(content) // 2] if left == "half" else content[:-2]
    (error,) = read(tmp_path, cut).bad.values()
    assert "truncated" in error
    outcome = read(tmp_path, cut, truncated="accept")
    assert outcome.warnings == {(0, 0): {"Truncated": 0}}
    share = amplitude(outcome).shape[1] / len(SOUND)
    assert (0.3 < share < 0.7) if left == "half" else share > 0.95
    assert read(tmp_path, content).warnings == {}


def test_file_whose_index_is_missing_says_so(tmp_path: Path, messages: Messages) -> None:
    content = recorded(SOUND, "ipod", "aac")
    for truncated in ("fail", "accept"):
        (error,) = read(tmp_path, content[: len(content) // 2], truncated=truncated).bad.values()
        messages.check(error)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000, 0])
def test_recording_that_states_no_size_is_complete(tmp_path: Path, size: int) -> None:
    content = bytearray(encoded(TONE, "WAV", "PCM_16"))
    for at in (4, content.find(b"data") + 4):
        struct.pack_into("<I", content, at, size)
    outcome = read(tmp_path, bytes(content))
    assert (amplitude(outcome).shape, outcome.warnings) == ((1, RATE), {})


def test_mp3_of_varying_rate_without_an_index_is_complete(tmp_path: Path) -> None:
    """libsndfile estimates the length of such a file from its first frames, and stops there."""
    samples = np.concatenate([SOUND, np.zeros(5 * RATE, np.float32)])
    content = recorded(samples, "mp3", "libmp3lame", quality=500)
    at = content.find(b"Xing") if b"Xing" in content[:500] else content.find(b"Info")
    without = content[:at] + b"\0\0\0\0" + content[at + 4 :]
    assert amplitude(read(tmp_path, without)).shape[1] >= len(samples)


MP3_TAGS = {
    "no tag": b"",
    "ID3v1": b"TAG" + bytes(125),
    "APE": b"APETAGEX" + struct.pack("<IIII8x", 2000, 2032, 1, 1 << 31) + b"x" * 2000
    + b"APETAGEX" + struct.pack("<IIII8x", 2000, 2032, 1, 1 << 31),
}  # fmt: skip


@pytest.mark.parametrize("tag", MP3_TAGS)
def test_tags_after_an_mp3_are_no_recording(tmp_path: Path, tag: str) -> None:
    outcome = read(tmp_path, encoded(SOUND, "MP3") + MP3_TAGS[tag])
    assert (amplitude(outcome).shape, outcome.warnings) == ((1, len(SOUND)), {})


def test_joined_mp3_files_are_read(tmp_path: Path) -> None:
    first, second = encoded(SOUND, "MP3"), encoded(TONE, "MP3")
    length = amplitude(read(tmp_path, first + second)).shape[1]
    assert length == pytest.approx(len(SOUND) + len(TONE), abs=5000)  # with silence between them


@pytest.mark.parametrize("kind", [("FLAC", "PCM_16"), ("OGG", "OPUS"), ("WAV", "PCM_16")])
def test_joined_recordings_are_a_failed_row(tmp_path: Path, kind: tuple[str, str]) -> None:
    """Nothing is damaged, so that there is nothing to accept or to restore."""
    content = encoded(SOUND, *kind) * 2
    for truncated in ("fail", "accept"):
        (error,) = read(tmp_path, content, truncated=truncated).bad.values()
        assert "several recordings" in error
        assert "accept" not in error


def test_recording_that_changes_its_rate_is_a_failed_row(tmp_path: Path) -> None:
    faster = io.BytesIO()
    soundfile.write(faster, TONE, 24000, format="MP3")
    adts = recorded(TONE, "adts", "aac")
    other = recorded(TONE, "adts", "aac", rate=24000)
    for content in (encoded(TONE, "MP3") + faster.getvalue(), adts + other):
        (error,) = read(tmp_path, content).bad.values()
        assert "Divide it" in error


def test_flac_of_unknown_length_is_read(tmp_path: Path) -> None:
    content = bytearray(encoded(TONE, "FLAC"))
    (fields,) = struct.unpack_from(">Q", content, 18)
    struct.pack_into(">Q", content, 18, fields >> 36 << 36)  # the last 36 bits are the length
    outcome = read(tmp_path, bytes(content))
    assert (amplitude(outcome).shape, outcome.warnings) == ((1, RATE), {})


def test_wav_file_with_more_samples_than_it_states(tmp_path: Path) -> None:
    content = bytearray(encoded(TONE, "WAV", "PCM_16"))
    struct.pack_into("<I", content, content.find(b"data") + 4, 1000)
    (error,) = read(tmp_path, bytes(content)).bad.values()
    assert f"1000 of {2 * RATE} bytes" in error
    outcome = read(tmp_path, bytes(content), truncated="accept")
    assert amplitude(outcome).shape == (1, RATE)
    assert outcome.warnings == {(0, 0): {"Truncated": 0}}


@pytest.mark.parametrize(
    "after", [b"LIST\4\0\0\0INFO", b"\1LIST\4\0\0\0INFO", b"TAG" + bytes(125), bytes(4000)]
)
def test_other_data_after_the_samples_of_a_wav_file(tmp_path: Path, after: bytes) -> None:
    content = encoded(TONE[:-1], "WAV", "PCM_U8")
    outcome = read(tmp_path, content[: content.find(b"data") + 8 + RATE - 1] + after)
    assert (amplitude(outcome).shape, outcome.warnings) == ((1, RATE - 1), {})


@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("rate", [8000, 16000, 96000])
@pytest.mark.parametrize("mono", [True, False])
def test_tiny_recordings_are_resampled(
    tmp_path: Path, count: int, rate: int, *, mono: bool
) -> None:
    samples = np.full((count, 2), 0.5, np.float32)
    outcome = read(tmp_path, encoded(samples, "WAV", "FLOAT"), sampleRate=rate, mono=mono)
    expected = -(-count * rate // RATE)
    assert amplitude(outcome).shape == ((expected,) if mono else (2, expected))
    assert outcome.column("sample_rate").tolist() == [rate]

"""Audio input: samples as soundfile decodes them, resampled and mixed on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from plugins.messages import Messages
from support.inputs.read_files import read_files

RATE = 16000


def sine(hertz: float, rate: int = RATE, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


def write_audio(path: Path, *channels: np.ndarray, rate: int = RATE) -> Path:
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


def test_files_keep_their_own_length_and_rate(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", sine(440))
    write_audio(tmp_path / "b.wav", sine(440, 8000, 0.1), rate=8000)
    outcome = read_files("audio", tmp_path)
    assert [samples.shape for samples in outcome.column("amplitude")] == [(1, 8000), (1, 800)]
    assert outcome.column("sample_rate").tolist() == [RATE, 8000]


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


def test_undecodable_files_are_failed_rows(tmp_path: Path) -> None:
    good = write_audio(tmp_path / "a.flac", sine(440)).read_bytes()
    bad = {"b.flac": good[: len(good) // 2], "c.wav": b"", "d.mp3": b"no sound at all"}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    write_audio(tmp_path / "e.wav", sine(440))
    outcome = read_files("audio", tmp_path)
    assert outcome.places == [(0, 0), (4, 0)]
    assert list(outcome.bad) == [(1, 0), (2, 0), (3, 0)]
    assert "lost sync" in outcome.bad[1, 0]
    assert outcome.bad[2, 0] == outcome.bad[3, 0] == "ValueError: Format not recognised."


def test_file_with_a_gap_is_a_failed_row(tmp_path: Path, messages: Messages) -> None:
    path = write_audio(tmp_path / "a.opus", sine(440, 48000, 1), sine(0, 48000, 1), rate=48000)
    content = bytearray(path.read_bytes())
    quarter = len(content) // 4
    content[2 * quarter : 3 * quarter] = bytes(quarter)
    path.write_bytes(content)
    (error,) = read_files("audio", tmp_path).bad.values()
    messages.check(error)

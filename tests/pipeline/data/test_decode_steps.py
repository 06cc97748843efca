"""Decode steps: bytes become images, audio, text or values. Bad content fails its row."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image
from skimage import data

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult, load_step
from batchinference.pipeline.steps import decode as decode_step
from batchinference.spec.steps import Step


def run(values: Any, **decode: Any) -> pa.Table | TransformResult:
    table = values if isinstance(values, pa.Table) else pa.table({"raw": values})
    step = {"name": "step", "decode": {"column": "raw", **decode}}
    return load_step(Step.model_validate(step), Device())(table)


def decoded(values: Any, **decode: Any) -> list[Any]:
    """Return the values of the only column, if no row fails."""
    table = run(values, **decode)
    assert isinstance(table, pa.Table)
    return values_of(table.column("raw"))


def encoded(pixels: np.ndarray, file_format: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format)
    return buffer.getvalue()


def recorded(samples: np.ndarray, rate: int = 8000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="wav", subtype="FLOAT")
    return buffer.getvalue()


PICTURES = [data.chelsea()[:40, :50], data.coffee()[:32, :32]]
FILES = [encoded(picture) for picture in PICTURES]
SAMPLES = np.linspace(-0.5, 0.5, 1600, dtype=np.float32).reshape(800, 2)


def test_images_are_decoded() -> None:
    for found, picture in zip(decoded(FILES, format="image"), PICTURES, strict=True):
        assert np.array_equal(found, picture)
    (small,) = decoded(FILES[:1], format="image", size=[8, 6], mode="L")
    expected = Image.fromarray(PICTURES[0]).convert("L").resize((6, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(small, np.asarray(expected))


def test_images_of_hugging_face_are_decoded() -> None:
    structs = [{"bytes": file, "path": "a.png"} for file in FILES]
    for found, picture in zip(decoded(structs, format="image"), PICTURES, strict=True):
        assert np.array_equal(found, picture)


def test_audio_is_decoded() -> None:
    table = run([recorded(SAMPLES)], format="audio", output="sound")
    assert isinstance(table, pa.Table)
    assert table.column_names == ["raw", "sound", "sample_rate"]
    assert np.array_equal(values_of(table.column("sound"))[0], SAMPLES.T)
    assert table.column("sample_rate").to_pylist() == [8000]
    resampled = run([recorded(SAMPLES)], format="audio", sampleRate=16000, mono=True)
    assert isinstance(resampled, pa.Table)
    assert resampled.column("sample_rate").to_pylist() == [16000]
    assert values_of(resampled.column("raw"))[0].ndim == 1


def test_text_and_json_are_decoded() -> None:
    assert decoded(["é".encode()], format="text") == ["é"]
    assert decoded(["é".encode("latin-1")], format="text", encoding="latin-1") == ["é"]
    values = [{"a": 1, "b": ["x"]}, {"a": 2, "b": []}]
    for raw in (list(map(json.dumps, values)), [json.dumps(value).encode() for value in values]):
        assert decoded(raw, format="json") == values


def test_null_stays_null() -> None:
    first, second, third = decoded([FILES[0], None, FILES[1]], format="image")
    assert second is None
    assert (first.shape, third.shape) == (PICTURES[0].shape, PICTURES[1].shape)
    assert decoded([None, b"a"], format="text") == [None, "a"]
    table = run(pa.table({"raw": pa.array([None, recorded(SAMPLES)])}), format="audio")
    assert isinstance(table, pa.Table)
    assert table.column("sample_rate").to_pylist() == [None, 8000]


DEEP = "[" * 200 + "]" * 200
WIDE = json.dumps({f"key {number}": 1 for number in range(5000)})
BAD: dict[str, list[tuple[Any, str]]] = {
    "image": [(b"no image", "cannot identify"), (FILES[0][:300], "")],
    "audio": [(b"no sound", "")],
    "text": [(b"\xff", "can't decode")],
    "json": [("{", ""), (DEEP, "deeper than 100"), (WIDE, "more than 4000"), ("9" * 5000, "digit")],
}


@pytest.mark.parametrize("format_", BAD)
def test_value_that_cannot_be_decoded_fails_its_row(format_: str) -> None:
    good = {"image": FILES[0], "audio": recorded(SAMPLES), "text": b"a", "json": b"1"}[format_]
    for bad, reason in BAD[format_]:
        result = run([bad, good.decode() if isinstance(bad, str) else good], format=format_)
        assert isinstance(result, TransformResult)
        assert result.parents.tolist() == [1]
        assert result.table.num_rows == 1
        assert reason in str(result.failed[0])


def test_image_with_too_many_pixels_fails_its_row() -> None:
    result = run(FILES, format="image", maxPixels=1500)
    assert isinstance(result, TransformResult)
    assert "2000" in str(result.failed[0]) or "50 x 40" in str(result.failed[0])
    assert result.parents.tolist() == [1]


def test_all_rows_may_fail() -> None:
    text = run(["text"], format="image")
    assert isinstance(text, TransformResult)
    assert "expected bytes, got str" in str(text.failed[0])
    result = run([b"x", b"y"], format="image")
    assert isinstance(result, TransformResult)
    assert (result.table.num_rows, set(result.failed)) == (0, {0, 1})


def test_missing_column_and_library_fail_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobFailure, match="step 'step' reads column 'raw'"):
        run(pa.table({"other": [b"a"]}), format="text")

    def need(what: str, module: str, _package: str, failure: type[JobFailure]) -> None:
        raise failure(f"{what} needs {module}")

    monkeypatch.setattr(decode_step, "need", need)
    with pytest.raises(ModelLoad, match="step 'step' needs soundfile"):
        run([b""], format="audio")

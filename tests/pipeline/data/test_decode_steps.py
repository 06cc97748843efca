"""Decode steps: bytes become images, audio, text or values, and bad content fails its row. Options
of images and audio apply wherever they are decoded."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.execution.step_runner import SegmentRunner
from batchinference.pipeline.row_batch import merged
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import decode as decode_step
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.steps.transform import TransformResult
from batchinference.plan import Stage
from batchinference.spec import SpecError, parse
from batchinference.spec.steps import Step
from support.documents.minimal import document
from support.inputs.formats import add_member
from support.inputs.media_files import exif, saved
from support.inputs.photographs import photograph
from support.inputs.read_files import Outcome, read_files
from support.outputs.batches import end, good, outcomes
from support.outputs.stages import TOLERANT


def run(values: Any, **decode: Any) -> pa.Table | TransformResult:
    table = values if isinstance(values, pa.Table) else pa.table({"raw": values})
    step = {"name": "step", "decode": {"column": "raw", **decode}}
    return load_step(Step.model_validate(step), Device())(table)


def decoded(values: Any, **decode: Any) -> list[Any]:
    """Return the values of the only column, if no row fails."""
    table = run(values, **decode)
    assert isinstance(table, pa.Table)
    return values_of(table.column("raw"))


def recorded(samples: np.ndarray, rate: int = 8000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="wav", subtype="FLOAT")
    return buffer.getvalue()


PICTURES = [photograph("chelsea")[:40, :50], photograph("coffee")[:32, :32]]
FILES = [saved(Image.fromarray(picture), "PNG") for picture in PICTURES]
SAMPLES = np.linspace(-0.5, 0.5, 1600, dtype=np.float32).reshape(800, 2)


def test_images_are_decoded() -> None:
    for result, picture in zip(decoded(FILES, format="image"), PICTURES, strict=True):
        assert np.array_equal(result, picture)
    (small,) = decoded(FILES[:1], format="image", size=[8, 6], mode="L")
    expected = Image.fromarray(PICTURES[0]).convert("L").resize((6, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(small, np.asarray(expected))


def test_images_of_hugging_face_are_decoded() -> None:
    structs = [{"bytes": file, "path": "a.png"} for file in FILES]
    for result, picture in zip(decoded(structs, format="image"), PICTURES, strict=True):
        assert np.array_equal(result, picture)


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
    assert decoded(["\ufeffé".encode()], format="text") == ["é"]
    assert decoded(["\ufeffé".encode("utf-16-le")], format="text", encoding="utf-16-le") == ["é"]
    values = [{"a": 1, "b": ["x"]}, {"a": 2, "b": []}]
    for raw in (list(map(json.dumps, values)), [json.dumps(value).encode() for value in values]):
        assert decoded(raw, format="json", fields={"a": "int64", "b": "list<string>"}) == values


def test_null_stays_null() -> None:
    first, second, third = decoded([FILES[0], None, FILES[1]], format="image")
    assert second is None
    assert (first.shape, third.shape) == (PICTURES[0].shape, PICTURES[1].shape)
    assert decoded([None, b"a"], format="text") == [None, "a"]
    table = run(pa.table({"raw": pa.array([None, recorded(SAMPLES)])}), format="audio")
    assert isinstance(table, pa.Table)
    assert table.column("sample_rate").to_pylist() == [None, 8000]


DEEP = "[" * 10**5 + "]" * 10**5
BAD: dict[str, list[tuple[Any, str]]] = {
    "image": [(b"no image", "cannot identify"), (FILES[0][:300], "")],
    "audio": [(b"no sound", "")],
    "text": [(b"\xff", "can't decode")],
    "json": [("{", ""), (DEEP, "nested too deep"), ("9" * 5000, "digit")],
}
FIELDS = {"a": "int64", "b": "list<struct<c: string>>"}


@pytest.mark.parametrize("format_", BAD)
def test_value_that_cannot_be_decoded_fails_its_row(format_: str) -> None:
    good = {"image": FILES[0], "audio": recorded(SAMPLES), "text": b"a", "json": b"{}"}[format_]
    options = {"fields": FIELDS} if format_ == "json" else {}
    for bad, reason in BAD[format_]:
        values = [bad, good.decode() if isinstance(bad, str) else good]
        result = run(values, format=format_, **options)
        assert isinstance(result, TransformResult)
        assert result.parents.tolist() == [1]
        assert result.table.num_rows == 1
        assert reason in str(result.failed[0])


def test_declared_fields_have_their_type_for_any_document() -> None:
    good = [{"a": 1, "b": [{"c": "x", "more": 1}], "other": {}}, {"b": None}]
    bad = [{"a": {}}, {"a": 1.5}, {"a": "1"}, {"a": 10**30}, {"b": [1]}, [], 1, "text"]
    for documents in ([*good, *bad], [*bad, *good]):
        result = run([json.dumps(one) for one in documents], format="json", fields=FIELDS)
        assert isinstance(result, TransformResult)
        assert result.table.to_pydict()["raw"] == [
            {"a": 1, "b": [{"c": "x"}]},
            {"a": None, "b": None},
        ]
        assert len(result.failed) == len(bad)
    empty = run(["{}"], format="json", fields={"a": "float64"})
    assert isinstance(empty, pa.Table)
    assert empty.schema.field("raw").type == pa.struct([("a", pa.float64())])


def test_fields_have_the_types_of_columns() -> None:
    fields = {"price": "decimal<4, 2>", "day": "date", "any": "json", "n": "int8"}
    document = '{"n": 7, "any": {"b": 1.50, "a": []}, "day": "2024-02-29", "price": 1.10}'
    expected = {"price": Decimal("1.10"), "day": date(2024, 2, 29), "n": 7}
    for raw in (document, document.encode("utf-16")):
        assert decoded([raw], format="json", fields=fields) == [
            {**expected, "any": '{"b": 1.50, "a": []}'}
        ]


def test_string_is_the_json_of_any_other_value() -> None:
    fields = {"a": "string", "b": "list<string>"}
    documents = ['{"a": 1.50, "b": [1e5, "x", null]}', '{"a": {"c": true}}', '{"a": null, "b": []}']
    for raw in (documents, [text.encode() for text in documents]):
        assert decoded(raw, format="json", fields=fields) == [
            {"a": "1.50", "b": ["1e5", "x", None]},
            {"a": '{"c": true}', "b": None},
            {"a": None, "b": []},
        ]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("float64", "9007199254740993"),
        ("float64", "1e400"),
        ("int8", "128"),
        ("date", '"2024-02-30"'),
        ("decimal<4, 2>", "1.005"),
        ("int64", "1.50"),
        ("int64", "true"),
        ("bool", "1"),
        ("json", '{"b": }'),
        ("int64", '1, "a": 2'),
    ],
)
def test_value_that_would_be_changed_fails_its_row(declared: str, value: str) -> None:
    fields = {"a": declared}
    result = run([f'{{"a": {value}}}', "{}"], format="json", fields=fields)
    assert isinstance(result, TransformResult)
    assert (set(result.failed), result.table.num_rows) == ({0}, 1)
    assert f'"{value}"' not in str(result.failed[0])


def test_large_values_are_decoded_in_parts() -> None:
    picture = saved(Image.new("1", (5000, 5000)), "PNG")  # 75 MB in RGB
    step = Step.model_validate({"name": "s", "decode": {"column": "raw", "format": "image"}})
    runner = SegmentRunner([Stage("s", (step,))], TOLERANT)
    table = pa.table({"raw": [picture, b"bad", picture, FILES[0]]})
    before = merged([good(0, 0, table), end(0, 4)])
    parts = list(runner(before))
    assert [len(part.ids) for part in parts] == [1, 1, 1]
    full = merged(parts)
    assert outcomes(full) == {0: "good", 1: "failed", 2: "good", 3: "good"}
    assert (full.ends, full.ids.tolist()) == (before.ends, [0, 2, 3])


def test_rows_of_an_input_row_stay_together() -> None:
    images = [saved(Image.new("RGB", (2500, 2500)), "PNG")] * 5  # 19 MB each in RGB
    table = pa.table({"raw": [images, images[:1]]})
    steps = [{"explode": {"column": "raw"}}, {"decode": {"column": "raw", "format": "image"}}]
    made = [Step.model_validate({"name": f"s{n}", **one}) for n, one in enumerate(steps)]
    runner = SegmentRunner([Stage("s", tuple(made))], TOLERANT)
    parts = list(runner(good(0, 0, table)))
    assert [(part.ids.tolist(), part.input_ids.tolist()) for part in parts] == [
        ([0] * 5, [0]),
        ([1], [1]),
    ]


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

    def require(what: str, module: str, _package: str, failure: type[JobFailure]) -> None:
        raise failure(f"{what} needs {module}")

    monkeypatch.setattr(decode_step, "require_package", require)
    with pytest.raises(ModelLoad, match="step 'step' needs soundfile"):
        run([b""], format="audio")


Decoded = tuple[list[np.ndarray], dict[int, list[str]], list[int]]
"""The good pictures, the warnings of each row, and the rows that failed."""


def of_outcome(outcome: Outcome, column: str) -> Decoded:
    warnings = {row: sorted(names) for (_, row), names in outcome.warnings.items()}
    good = list(outcome.column(column)) if outcome.good else []
    return good, warnings, [row for _, row in outcome.bad]


def of_archive(folder: Path, contents: list[bytes], **options: Any) -> Decoded:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, content in enumerate(contents):
            add_member(archive, f"{number}.png", content)
    return of_outcome(read_files("webdataset", folder / "a.tar", **options), "png")


def of_manifest(folder: Path, contents: list[bytes], **options: Any) -> Decoded:
    for number, content in enumerate(contents):
        (folder / f"{number}.any").write_bytes(content)
    names = pa.table({"uri": [f"{number}.any" for number in range(len(contents))]})
    pq.write_table(names, folder / "list.parquet")
    outcome = read_files("manifest", folder / "list.parquet", decode="image", **options)
    return of_outcome(outcome, "image")


def of_step(_: Path, contents: list[bytes], format_: str = "image", **options: Any) -> Decoded:
    decode = {"column": "raw", "format": format_, **options}
    step = load_step(Step.model_validate({"name": "step", "decode": decode}), Device())
    with collect_warnings() as warnings:
        result = step(pa.table({"raw": contents}))
    failed = list(result.failed) if isinstance(result, TransformResult) else []
    table = result.table if isinstance(result, TransformResult) else result
    assert isinstance(table, pa.Table)
    by_row: dict[int, list[str]] = {}
    for warning in warnings:
        by_row.setdefault(warning.row, []).append(warning.name.value)
    good = values_of(table.column("raw"))
    return list(good), {row: sorted(names) for row, names in by_row.items()}, failed


every_way = pytest.mark.parametrize("read", [of_archive, of_manifest, of_step])
Read = Callable[..., Decoded]
PLAIN = saved(Image.new("RGB", (8, 16), (9, 8, 7)), "PNG")


@every_way
def test_orientation_and_background(tmp_path: Path, read: Read) -> None:
    layer = saved(Image.new("RGBA", (8, 16), (9, 8, 7, 0)), "PNG", exif=exif(6))
    pictures, warnings, failed = read(tmp_path, [PLAIN, layer, PLAIN], background="#00ff7f")
    assert [picture.shape for picture in pictures] == [(16, 8, 3), (8, 16, 3), (16, 8, 3)]
    assert pictures[1][0, 0].tolist() == [0, 255, 127]
    assert (warnings, failed) == ({1: ["Composited", "Rotated"]}, [])
    pictures, warnings, _ = read(tmp_path, [layer], orientation="ignore", mode="RGBA")
    assert (pictures[0].shape, warnings) == ((16, 8, 4), {})


@every_way
def test_cut_images(tmp_path: Path, read: Read) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    cut = saved(Image.fromarray(noise), "PNG")[:6000]
    _, _, failed = read(tmp_path, [PLAIN, cut])
    assert failed == [1]
    pictures, warnings, failed = read(tmp_path, [PLAIN, cut], truncated="accept")
    assert (len(pictures), warnings, failed) == (2, {1: ["Truncated"]}, [])


@every_way
def test_range_and_pages(tmp_path: Path, read: Read) -> None:
    deep = Image.fromarray(np.array([[0, 500, 1000]], np.uint16))
    content = saved(deep, "TIFF", save_all=True, append_images=[deep])
    pictures, warnings, _ = read(tmp_path, [PLAIN, content], mode="L", range=[0, 1000])
    assert (pictures[1].tolist(), warnings) == ([[0, 128, 255]], {1: ["PagesIgnored"]})
    (picture,), _, _ = read(tmp_path, [content], mode="I;16")
    assert (picture.dtype, picture.tolist()) == (np.uint16, [[0, 500, 1000]])


def test_audio_of_a_step() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.linspace(-0.5, 0.5, 800), 8000, format="wav")
    contents = [buffer.getvalue(), buffer.getvalue()[:-400]]
    _, _, failed = of_step(Path(), contents, "audio")
    assert failed == [1]
    sounds, warnings, failed = of_step(Path(), contents, "audio", truncated="accept")
    assert [sound.shape for sound in sounds] == [(1, 800), (1, 600)]
    assert (warnings, failed) == ({1: ["Truncated"]}, [])


@pytest.mark.parametrize("format_", ["webdataset", "manifest", "video"])
def test_all_pages_are_only_for_images(format_: str) -> None:
    read = {"format": format_, "paths": ["in"], "options": {"pages": "all"}}
    with pytest.raises(SpecError, match=r"options\.pages"):
        parse(document(read=read))

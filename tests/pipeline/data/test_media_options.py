"""The options of images and audio apply wherever they are decoded, and warnings name their rows."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult, load_step
from batchinference.spec import SpecError, parse
from batchinference.spec.steps import Step
from support.documents.minimal import document
from support.inputs.formats import add_member
from support.inputs.media_files import exif, saved
from support.inputs.read_files import Outcome, read_files

Found = tuple[list[np.ndarray], dict[int, list[str]], list[int]]
"""The good pictures, the warnings of each row, and the rows that failed."""


def of_outcome(outcome: Outcome, column: str) -> Found:
    warnings = {row: sorted(names) for (_, row), names in outcome.warnings.items()}
    good = list(outcome.column(column)) if outcome.good else []
    return good, warnings, [row for _, row in outcome.bad]


def of_archive(folder: Path, contents: list[bytes], **options: Any) -> Found:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, content in enumerate(contents):
            add_member(archive, f"{number}.png", content)
    return of_outcome(read_files("webdataset", folder / "a.tar", **options), "png")


def of_manifest(folder: Path, contents: list[bytes], **options: Any) -> Found:
    for number, content in enumerate(contents):
        (folder / f"{number}.any").write_bytes(content)
    names = pa.table({"uri": [f"{number}.any" for number in range(len(contents))]})
    pq.write_table(names, folder / "list.parquet")
    outcome = read_files("manifest", folder / "list.parquet", decode="image", **options)
    return of_outcome(outcome, "image")


def of_step(_: Path, contents: list[bytes], format_: str = "image", **options: Any) -> Found:
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
Read = Callable[..., Found]
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

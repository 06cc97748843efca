"""A read format, a step, a runtime and an output format need their own module and one registration:
those that are defined here run in a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline import runtimes, steps
from batchinference.pipeline.errors import PIPELINE_EXTRA
from batchinference.pipeline.input import readers
from batchinference.pipeline.input.readers import Chunk, Reader
from batchinference.pipeline.input.readers import kinds as reader_kinds
from batchinference.pipeline.output import writers
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.output.writers import kinds as writer_kinds
from batchinference.pipeline.preview import Preview
from batchinference.pipeline.runtimes import kinds as runtime_kinds
from batchinference.pipeline.steps.transform import Transform
from batchinference.pipeline.storage.location import Location
from batchinference.plan import plan_for_machine
from batchinference.spec import SpecError
from batchinference.spec.base import ColumnName, SpecModel
from batchinference.spec.column_types import ColumnType
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.models.base import Inputs, RuntimeModel
from batchinference.spec.read import FileOptions, ReadFiles
from batchinference.spec.step_facts import StepFacts
from batchinference.spec.steps import Step
from batchinference.spec.write import WriteRows


class ReadWords(ReadFiles):
    EXTENSIONS = ("words",)
    COLUMNS = ("word",)

    format: Literal["words"]
    options: FileOptions = FileOptions()


class WordsReader(Reader):
    def __init__(self, options: FileOptions) -> None:
        self.options = options

    def read(self, file: Location) -> Iterator[Chunk]:
        yield pa.table({"word": file.read().decode().split()})

    def rows_in(self, file: Location, size: int) -> int:
        return len(file.read().split())

    def columns(self) -> list[str]:
        return list(ReadWords.COLUMNS)


class Repeat(SpecModel):
    column: ColumnName
    times: int

    @property
    def facts(self) -> StepFacts:
        return StepFacts(reads={self.column}, adds={"repeated": "string"})


class RepeatText(Transform):
    LOADS_NOTHING = True

    def __init__(self, step: str, repeat: Repeat) -> None:
        self.repeat = repeat

    def __call__(self, batch: pa.Table) -> pa.Table:
        texts = batch.column(self.repeat.column).to_pylist()
        return batch.append_column(
            "repeated", pa.array([text * self.repeat.times for text in texts])
        )


class LengthModel(RuntimeModel):
    runtime: Literal["length"]
    inputs: Inputs
    output: ColumnName

    @property
    def output_type(self) -> ColumnType:
        return "int64"

    @property
    def uses_texts(self) -> bool:
        return True


class LengthRuntime:
    def __init__(self, model: LengthModel, device: object) -> None:
        pass

    def __call__(self, inputs: dict[str, Any]) -> np.ndarray:
        return np.array([len(text) for text in inputs["text"]])


class OwnStep(Step):
    model: LengthModel | None = None  # type: ignore[assignment]
    repeat: Repeat | None = None


class WriteWords(WriteRows):
    format: Literal["words"]


class WordsWriter(writers.FileWriter):
    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        yield ".words", " ".join(map(str, table.column(0).to_pylist())).encode()

    def rows(self, part: Location) -> Iterator[Row]:
        return ({"word": word} for word in part.read().decode().split())


class OwnSpec(BatchInferenceSpec):
    read: ReadWords  # type: ignore[assignment]
    steps: list[OwnStep]  # type: ignore[assignment]
    write: WriteWords  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the module of each kind, as the tables of the product do."""
    for package, table, name, entry, kind in (
        (readers, reader_kinds.READERS, "words", ("words", "WordsReader"), WordsReader),
        (steps, steps.STEPS, "repeat", ("repeat", "RepeatText"), RepeatText),
        (
            runtimes,
            runtime_kinds.RUNTIMES,
            "length",
            runtime_kinds.Entry("length", "LengthRuntime", "pyarrow", PIPELINE_EXTRA),
            LengthRuntime,
        ),
        (writers, writer_kinds.WRITERS, "words", ("WordsWriter", ()), WordsWriter),
    ):
        monkeypatch.setitem(table, name, entry)  # type: ignore[arg-type]
        module = SimpleNamespace(**{kind.__name__: kind})
        monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", module)  # type: ignore[arg-type]


def own_spec(directory: Path, column: str = "word") -> OwnSpec:
    """Return a job with a step of each kind that is defined here."""
    model = {"runtime": "length", "inputs": {"text": "repeated"}, "output": "length"}
    steps = [
        {"name": "twice", "repeat": {"column": column, "times": 2}},
        {"name": "count", "model": model},
        {"name": "long", "filter": "length > 4"},
    ]
    read = {"format": "words", "paths": [str(directory)]}
    write = {"format": "words", "path": str(directory / "out")}
    return OwnSpec.model_validate({"read": read, "steps": steps, "write": write})


def test_own_kinds_run_in_a_job(tmp_path: Path) -> None:
    (tmp_path / "a.words").write_text("one three")
    (tmp_path / "b.csv").write_text("not read")
    (tmp_path / "c.words").write_text("five")
    spec = own_spec(tmp_path)
    preview = Preview(spec, plan_for_machine(spec, gpus=0), 10)
    assert [outcome.name for outcome in preview.run()] == ["read", "twice", "count", "long"]
    assert preview.written_rows().to_pylist() == [
        {"word": word, "repeated": word * 2, "length": 2 * len(word)}
        for word in ("one", "three", "five")
    ]


def test_columns_of_own_kinds_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"step 'twice' reads column 'wrd', .*did you mean 'word'"):
        plan_for_machine(own_spec(tmp_path, column="wrd"), gpus=0)


def test_output_of_an_own_format_is_read_back(tmp_path: Path) -> None:
    spec = own_spec(tmp_path)
    ((ending, content),) = writer_kinds.writer_for(spec.write).files(pa.table({"word": ["a", "b"]}))  # type: ignore[arg-type]
    location = Location(str(tmp_path / f"part{ending}"))
    location.write(bytes(content))
    rows = writer_kinds.writer_for(spec.write).rows(location)  # type: ignore[arg-type]
    assert list(rows) == [{"word": "a"}, {"word": "b"}]

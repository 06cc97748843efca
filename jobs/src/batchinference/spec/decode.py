"""Decode steps, which turn a column of bytes into images, audio, text or structs."""

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.column_types import ColumnType, ColumnTypes, parse_types
from batchinference.spec.media import Encoding, ImageFields, SoundFields
from batchinference.spec.step_facts import StepFacts, StepSettings

SAMPLE_RATE = "sample_rate"
_FIX_OF_WHEN = "Set output, because the rows that it skips keep their bytes"


class DecodeModel(StepSettings):
    """The fields that all formats share."""

    format: str
    """The format of the bytes."""
    column: ColumnName
    """The column with bytes, or with structs with a field `bytes`. Null values stay null."""
    output: ColumnName | None = None
    """The column for the result. By default, the result replaces `column`."""

    @property
    def types(self) -> dict[str, ColumnType]:
        """Return the types of the columns that the step adds or replaces."""
        raise NotImplementedError

    @property
    def facts(self) -> StepFacts:
        in_place = self.result_column == self.column
        return StepFacts(
            reads={self.column},
            adds=self.types,
            fixed_names=self.types.keys() - {self.result_column},
            replaces_input=True,
            fix_of_when=_FIX_OF_WHEN if in_place else "",
        )

    @property
    def result_column(self) -> str:
        """Return `output`, or `column` by default."""
        return self.output or self.column


class DecodeImage(ImageFields, DecodeModel):
    """Image files: height x width x channels (uint8), or height x width for the modes L and I;16.
    Of a file with several pages or frames, only the first one is decoded."""

    format: Literal["image"]

    @property
    def types(self) -> dict[str, ColumnType]:
        row: ColumnType = ["uint16" if self.mode == "I;16" else "uint8"]
        return {self.result_column: [row] if self.mode in ("L", "I;16") else [[row]]}


class DecodeAudio(SoundFields, DecodeModel):
    """Audio files: channels x samples (float32, from -1 to 1), and a column `sample_rate`."""

    format: Literal["audio"]

    @property
    def types(self) -> dict[str, ColumnType]:
        samples: ColumnType = ["float32"]
        return {self.result_column: samples if self.mono else [samples], SAMPLE_RATE: "int64"}

    def _check(self) -> None:
        if self.result_column == SAMPLE_RATE:
            raise invalid(
                "output: the sampling rate would replace the audio (sample_rate). Set output to "
                "another name"
            )


class DecodeText(DecodeModel):
    """Encoded text."""

    format: Literal["text"]
    encoding: Encoding = "utf-8"
    """The Python name of the encoding."""

    @property
    def types(self) -> dict[str, ColumnType]:
        return {self.result_column: "string"}


class DecodeJson(DecodeModel):
    """JSON objects, as bytes or text."""

    format: Literal["json"]
    fields: ColumnTypes
    """The fields to keep, and the type of each, such as `int64`, `list<string>` or `json`
    (docs/formats.md lists all types). Other fields are dropped, and missing fields are null. If a
    value has another type, the row is a failed row."""

    @property
    def types(self) -> dict[str, ColumnType]:
        return {self.result_column: parse_types(self.fields)}


Decode = Annotated[
    DecodeImage | DecodeAudio | DecodeText | DecodeJson, Field(discriminator="format")
]

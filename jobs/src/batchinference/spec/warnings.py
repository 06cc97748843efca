"""The catalogue of warnings: differences between the input and what a job has made of it.

A row with a warning is in the output, or was left out as documented. Each warning is counted, and
shown with one example and with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field

from batchinference.spec.base import SpecModel, invalid
from batchinference.spec.quantities import Quantity
from batchinference.text import counted

Unit = Literal["row", "file"]


class WarningName(StrEnum):
    """The name of a warning, what has happened, and what to do.

    `unit` is what the warning counts. `amount` is the unit of a sum over the rows with the warning,
    such as tokens; empty if there is no sum."""

    meaning: str
    fix: str
    unit: Unit
    amount: str

    def __new__(
        cls, value: str, meaning: str, fix: str, unit: Unit = "row", amount: str = ""
    ) -> Self:
        name = str.__new__(cls, value)
        name._value_ = value
        name.meaning, name.fix, name.unit, name.amount = meaning, fix, unit, amount
        return name

    @classmethod
    def from_name(cls, name: str) -> WarningName:
        """Return the warning with this name. Raises KeyError if there is none."""
        return _BY_VALUE[name]

    @property
    def about_file(self) -> bool:
        """Return whether the warning is about a part of the file outside of the row. Such a warning
        is also counted if the row fails."""
        return self in (
            WarningName.LINES_SKIPPED,
            WarningName.MEMBERS_IGNORED,
            WarningName.PARTS_IGNORED,
        )

    @property
    def message(self) -> str:
        """Return what has happened and what to do, for people."""
        return f"{self.meaning}. {self.fix}"

    FILES_IGNORED = (
        "FilesIgnored",
        "files below a directory of the input were not read",
        "Name them in read.paths, for example with a glob, or their extensions in "
        "read.options.fileExtensions, or move them elsewhere",
        "file",
    )
    SIMILAR_NAMES = (
        "SimilarNames",
        "files have the same name except for its Unicode form (NFC and NFD)",
        "If they are copies of each other, remove one of them",
        "file",
    )
    MEMBERS_IGNORED = (
        "MembersIgnored",
        "members of an archive were not read: links, or files of no kind that the format has",
        "Pack files without links (tar --dereference), with extensions, and without metadata files",
        "row",
        "members",
    )
    LINES_SKIPPED = (
        "LinesSkipped",
        "lines before the header of a file, or comments, were left out",
        "Do nothing, if read.options.skipLines and read.options.comment are as intended",
        "row",
        "lines",
    )
    PARTS_IGNORED = (
        "PartsIgnored",
        "parts of a document were not read: attachments, comments, "
        "values of forms, texts in SVG, headers, footers",
        "Do nothing, or save the attachments as files of their own",
        "row",
        "parts",
    )
    NO_TEXT = (
        "NoText",
        "pages or documents have no text, as pages that were scanned",
        "Add the images of PDF pages with read.options.render, for a model that reads images",
    )
    NOT_RENDERED = (
        "NotRendered",
        "only pages of PDF files become images, so the image of other documents is null",
        "Do nothing, or save the documents as PDF",
    )
    ROTATED = (
        "Rotated",
        "pictures were rotated or mirrored, as their file says how the camera was held",
        "Do nothing, or set the option orientation: ignore",
    )
    TRUNCATED = (
        "Truncated",
        "media whose end is missing were read up to the damage",
        "Restore the files, or make them failed rows: remove the option truncated: accept",
    )
    PAGES_IGNORED = (
        "PagesIgnored",
        "further pages, frames, tracks or channels of unknown meaning in a file were not read",
        "Do nothing, or read images with pages: all for a row per page. The others cannot be read",
        "row",
        "pages",
    )
    COMPOSITED = (
        "Composited",
        "transparent pixels were drawn over the background colour",
        "Choose the colour with the option background, or keep the transparency with mode: RGBA",
    )
    DEPTH_REDUCED = (
        "DepthReduced",
        "pixel values with more than 8 bits were reduced to 8 bits",
        "Do nothing, or set the option range to the values of black and white, or set mode: I;16",
    )
    RANGE_ASSUMED = (
        "RangeAssumed",
        "no pixel used the highest bits, so white was assumed to be a smaller number",
        "Set the option range to the values of black and white, such as [0, 65535]",
    )
    OUT_OF_RANGE = (
        "OutOfRange",
        "values were outside of their range: those of pixels were clipped, those of audio kept",
        "Widen the option range, or scale the recordings before the job",
    )
    TEXT_CUT = (
        "TextCut",
        "texts were longer than the model allows, and their rest was cut",
        "Set the model's field tooLong to windows or fail, or divide the texts with a step chunk",
        "row",
        "tokens",
    )
    ANSWER_CUT = (
        "AnswerCut",
        "generated texts reached the limit of tokens, and their rest is missing",
        "Increase sampling.max_tokens (transformers: max_new_tokens) or, if it is not set, the "
        "context of the model (vllm: engine.max_model_len), or ask for shorter answers",
    )
    AUDIO_CUT = (
        "AudioCut",
        "recordings were longer than the model takes, and it got only a part of them",
        "Divide the recordings before the job, or use a model for longer ones",
        "row",
        "seconds",
    )
    ANSWER_REPAIRED = (
        "AnswerRepaired",
        "answers did not fit the schema, and the model was asked again",
        "Describe the fields in the prompt or the schema, or use a larger model",
        "row",
        "requests",
    )
    NULL_INPUT = (
        "NullInput",
        "the input of a model was null, so its output is null",
        "Filter these rows, or set the model's field nullInput to fail",
    )
    EMPTY_INPUT = (
        "EmptyInput",
        "the input of a model was empty, so its output is null",
        "Filter these rows, or set the model's field emptyInput to fail or compute",
    )
    SKIPPED = (
        "Skipped",
        "the condition of a step was not true, so the step has skipped rows",
        "Do nothing, if the condition (when) is as intended",
    )
    NON_FINITE = (
        "NonFinite",
        "a model returned NaN or infinity",
        "Use another dtype such as float32, or set the model's field nonFinite to fail",
        "row",
        "values",
    )
    WRITTEN_AS_NULL = (
        "WrittenAsNull",
        "NaN, infinity or the text that names partitions of null was written as null",
        "Write Parquet, or replace the values in a step before the output",
        "row",
        "values",
    )
    ZERO_SIGN_LOST = (
        "ZeroSignLost",
        "-0.0 was written as 0.0, which equals it",
        "Do nothing, or write Parquet",
        "row",
        "values",
    )


_BY_VALUE = {name.value: name for name in WarningName}


class WarningPolicy(SpecModel):
    """What happens if a warning of this name occurs."""

    name: Annotated[WarningName, Field(strict=False)]
    """The name of the warning."""
    action: Literal["count", "fail"] = "count"
    """`count`: the warning is counted and shown. `fail`: each row with the warning is a failed row.
    If the warning counts files, the job is refused before it starts."""
    max_rows: Annotated[int, Field(ge=0, le=10**15)] | None = None
    """Maximum number of input rows per step, or of files, with the warning. More fail the job."""
    max_percent: Annotated[float, Field(ge=0, le=100), *Quantity] | None = None
    """Maximum percentage of input rows per step with the warning. More fail the job."""

    def _check(self) -> None:
        if self.max_percent is not None and self.name.unit == "file":
            problem = f"maxPercent is for warnings that count rows, and {self.name.value}"
            raise invalid(f"{problem} counts files. Use maxRows")


class WarningCount(SpecModel):
    """How often a warning has occurred."""

    name: Annotated[str, Field(max_length=64)]
    """The name of the warning."""
    step: Annotated[str, Field(max_length=64)] | None = None
    """The step that caused it, or `read`. Absent if the warning counts files."""
    count: Annotated[int, Field(ge=0, le=10**15, json_schema_extra={"format": "int64"})]
    """Number of input rows, or of files."""
    amount: Annotated[int, Field(ge=0, le=2**53, json_schema_extra={"format": "int64"})] | None = (
        None
    )
    """The number of tokens, pages or other parts of these rows that the warning is about."""
    example: Annotated[str, Field(max_length=1024)] | None = None
    """One of these rows or files."""
    message: Annotated[str, Field(max_length=1024)]
    """What has happened, and what to do, for people."""

    @classmethod
    def of_rows(cls, name: WarningName, step: str, rows: int, amount: int, example: str) -> Self:
        """Return the count of rows with a warning. `amount` is the sum over these rows."""
        fields = {"name": name.value, "step": step, "example": example, "message": name.message}
        return cls(**fields, count=rows, amount=amount if name.amount else None)

    @property
    def quantity(self) -> str:
        """Return the name and the numbers, such as `TextCut (embed) 3 rows (120 tokens)`."""
        kind = _BY_VALUE.get(self.name)  # None for a warning of a newer version
        unit = kind.unit if kind else "row"
        step = f" ({self.step})" if self.step and self.step != "read" else ""
        amount = f" ({self.amount:,} {kind.amount})" if kind and self.amount else ""
        return f"{self.name}{step} {counted(self.count, unit, ',')}{amount}"

    def __str__(self) -> str:
        """Return the warning for people, with an example and what to do."""
        example = f" Example: {self.example}." if self.example else ""
        return f"{self.quantity}: {self.message}.{example}"


def sum_warnings(warnings: Iterable[WarningCount]) -> list[WarningCount]:
    """Return one count per step and name: the sum, with the first example. A count of files is the
    highest count, because each appending run counts all files again. Counts of files come first,
    and then counts of rows, the highest first."""
    sums: dict[tuple[str | None, str], WarningCount] = {}
    for warning in warnings:
        key = warning.step, warning.name
        sums[key] = _both(sums[key], warning) if key in sums else warning
    return sorted(sums.values(), key=lambda one: (bool(one.step), -one.count, one.step, one.name))


def _both(first: WarningCount, second: WarningCount) -> WarningCount:
    if first.step is None:
        return max(first, second, key=lambda warning: warning.count)
    amount = (first.amount or 0) + (second.amount or 0)
    return first.model_copy(
        update={"count": first.count + second.count, "amount": amount or first.amount}
    )


def summarize(warnings: Iterable[WarningCount]) -> str:
    """Return the numbers of all warnings on one line; empty if there are none."""
    return ", ".join(warning.quantity for warning in warnings)

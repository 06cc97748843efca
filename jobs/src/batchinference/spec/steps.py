"""A step: what is done with the rows, in the order of the list."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from batchinference.spec.base import DNS_LABEL, ColumnName, Columns, SpecModel, rules
from batchinference.spec.decode import Decode
from batchinference.spec.expression import Expression
from batchinference.spec.models import Model
from batchinference.spec.nearest import Nearest
from batchinference.spec.python_step import CLASS, PythonStep
from batchinference.spec.resources import Resources

Count = Annotated[int, Field(ge=1, le=10000)]
MAX_BATCH = 1_000_000
AddedColumns = Annotated[dict[ColumnName, Expression], Field(min_length=1, max_length=256)]
NewNames = Annotated[dict[ColumnName, ColumnName], Field(min_length=1, max_length=256)]


def _number_or_auto(value: object, handler: ValidatorFunctionWrapHandler) -> int | str:
    """One message where each arm of the union would have its own."""
    try:
        size: int | str = handler(value)
    except ValidationError:
        raise PydanticCustomError(
            "batch_size_type", "a whole number from 1 to {most}, or 'auto'", {"most": MAX_BATCH}
        ) from None
    return size


BatchSize = Annotated[
    Annotated[int, Field(ge=1, le=MAX_BATCH)] | Literal["auto"], WrapValidator(_number_or_auto)
]


class LabelFromPath(SpecModel):
    """A column made from the path of the file that a row came from."""

    column: ColumnName
    """The column to add."""
    index: Annotated[int, Field(ge=-100, le=100)]
    """The part of the path, as in Python's `path.split('/')[index]`: -2 is the folder."""


class Explode(SpecModel):
    """A row for each element of a list."""

    column: ColumnName
    """The column of lists; it holds one element then. A row whose list is empty or null goes."""


class Repartition(SpecModel):
    """Blocks of another size, as they stream by."""

    rows_per_block: Annotated[int, Field(ge=1, le=10**9)]
    """Rows of a block: what a task of the next steps takes, and a replica waits for."""


class Replicas(SpecModel):
    """How many copies of the model or class run side by side."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "(has(self.min) ? self.min : 1) <= (has(self.max) ? self.max : 1)",
                "min is above max; either is 1 when absent",
            )
        )
    )

    min: Count = 1
    """Copies that must run before the first batch."""
    max: Count = 1
    """Copies that the job may grow to."""

    @model_validator(mode="after")
    def _check(self) -> Replicas:
        if self.min > self.max:
            raise PydanticCustomError(
                "replicas", "min ({min}) is above max ({max})", {"min": self.min, "max": self.max}
            )
        return self


_CLASSES_ONLY = "replicas, gpu, memory and custom are for a model, or a class (a name in CapWords)"
_TASKS = (
    "!has(self.replicas) && (!has(self.resources) || !(has(self.resources.memory) || "
    "(has(self.resources.gpu) && self.resources.gpu > 0) || "
    "(has(self.resources.custom) && size(self.resources.custom) > 0)))"
)
_GPUS = "(has(self.resources) && has(self.resources.gpu) ? self.resources.gpu : 0)"
_NEEDED = " * ".join(
    f"(has(self.model.parallelism) && has(self.model.parallelism.{name}) ? "
    f"self.model.parallelism.{name} : 1)"
    for name in ("tensor", "pipeline")
)
_RULES = (
    (f"!has(self.nearest) || ({_TASKS})", _CLASSES_ONLY),
    (f"!has(self.python) || self.python.callable.matches('{CLASS}') || ({_TASKS})", _CLASSES_ONLY),
    (
        f"!has(self.model) || self.model.runtime != 'vllm' || {_GPUS} == {_NEEDED}",
        "vllm takes parallelism.tensor x parallelism.pipeline GPUs: set resources.gpu to this",
    ),
    (
        f"!has(self.model) || self.model.runtime != 'http' || {_GPUS} == 0",
        "the endpoint computes elsewhere: leave out resources.gpu",
    ),
)


class Step(SpecModel):
    """One step. It holds exactly one of: model, python, filter, addColumns, decode, labelFromPath,
    selectColumns, dropColumns, renameColumns, explode, repartition, nearest."""

    model_config = ConfigDict(json_schema_extra=rules(*_RULES))

    KINDS: ClassVar[tuple[str, ...]] = (
        "model",
        "python",
        "filter",
        "add_columns",
        "decode",
        "label_from_path",
        "select_columns",
        "drop_columns",
        "rename_columns",
        "explode",
        "repartition",
        "nearest",
    )

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=40)]
    """The step's name in reports, errors and worker groups."""
    model: Model | None = None
    """Run a model over each batch."""
    python: PythonStep | None = None
    """Run your own function or class over each batch."""
    filter: Expression | None = None
    """Keep the rows for which this expression is true: Python's comparisons, arithmetic, `and`,
    `or`, `not`, `in`, `is None`, `a if b else c`, and len, lower, upper, strip, abs, int, float,
    str, startswith, endswith, contains and matches, over columns; col('NAME') for a column whose
    name is no identifier. Rows for which it is null are left out."""
    add_columns: AddedColumns | None = None
    """Add or replace columns: `name: expression`, in the language of `filter`. All expressions
    read the columns before the step."""
    decode: Decode | None = None
    """Decode a column of bytes: images, audio, text or JSON."""
    label_from_path: LabelFromPath | None = None
    """Add a column made from the path of the row's file."""
    select_columns: Columns | None = None
    """Keep these columns, drop the others."""
    drop_columns: Columns | None = None
    """Drop these columns."""
    rename_columns: NewNames | None = None
    """Give columns new names: `old: new`."""
    explode: Explode | None = None
    """Make a row of each element of a list."""
    repartition: Repartition | None = None
    """Cut the rows into other blocks."""
    nearest: Nearest | None = None
    """Find the most similar rows of a finished output."""
    batch_size: BatchSize | None = None
    """Rows a batch, for model, python and nearest. 32 for a model, 8 times its concurrency for one
    of runtime http; else as many as a block holds.
    `auto` searches for the fastest while the first batches run. Whenever memory runs out, the
    replica continues with half as many."""
    replicas: Replicas | None = None
    """Replicas of a model or a python class, each in an actor. Without this field, a step that
    needs only CPUs has a copy in each task if the whole job can run in tasks, else one replica."""
    resources: Resources | None = None
    """Resources of one replica of a model or python step, and the CPUs of a nearest step."""

    @property
    def kind(self) -> str:
        """The one kind this step is, as the field is called in Python."""
        return next(kind for kind in self.KINDS if getattr(self, kind) is not None)

    @model_validator(mode="after")
    def _check(self) -> Step:
        given = [to_alias(kind) for kind in self.KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "step_kind",
                "a step holds exactly one of {kinds}; this one holds {given}",
                {
                    "kinds": ", ".join(map(to_alias, self.KINDS)),
                    "given": " and ".join(given) or "none of them",
                },
            )
        if self.kind not in ("model", "python", "nearest"):
            self._check_no_pool(given[0])
        elif self.nearest:
            self._check_tasks("a nearest step runs wherever a CPU is free")
        elif self.python and not self.python.is_class:
            self._check_tasks(
                f"'{self.python.callable}' is a function, which runs wherever a CPU is free (a "
                "class has a name in CapWords)"
            )
        if self.model is not None:
            self.model.check_pool(self.resources or Resources(), self.batch_size)
        if self.rename_columns is not None:
            _check_names(self.rename_columns)
        return self

    def _check_no_pool(self, kind: str) -> None:
        for name in ("batch_size", "replicas", "resources"):
            if getattr(self, name) is not None:
                raise PydanticCustomError(
                    "step_pool",
                    "'{name}' is for model and python steps, not for {kind}",
                    {"name": to_alias(name), "kind": kind},
                )

    def _check_tasks(self, what: str) -> None:
        resources = self.resources or Resources()
        asked = {"replicas": self.replicas, "gpu": resources.gpu, "memory": resources.memory,
                 "custom": resources.custom}  # fmt: skip
        for field in (field for field, value in asked.items() if value):
            raise PydanticCustomError(
                "step_tasks", "'{field}' is for a class, and {what}", {"field": field, "what": what}
            )


def _check_names(renamed: dict[str, str]) -> None:
    news = list(renamed.values())
    if twice := [name for name in news if news.count(name) > 1]:
        raise PydanticCustomError(
            "rename", "two columns are renamed to '{name}'", {"name": twice[0]}
        )


def to_alias(field: str) -> str:
    alias = Step.model_fields[field].alias
    return alias or field

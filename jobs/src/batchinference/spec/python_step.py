"""Python steps, which run code of the user."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, ModulePath, SpecModel, rules

CLASS = "[:.]_*[A-Z][A-Za-z0-9_]*$"
"""The end of the name of a class (PEP 8)."""
DEVICE = "{device}"
"""The value of a constructor argument that stands for the device of the replica."""


class PredictBatch(SpecModel):
    """The input column and the output column of a method `predict_batch`."""

    input: ColumnName
    """The column whose values the method gets as a list. Images are Pillow images."""
    output: ColumnName
    """The column for the results: a list, array or tensor with one result for each value."""


class PythonStep(SpecModel):
    """Your own code: a function of a batch, or a class with callable objects."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.predictBatch) || !has(self.method) || self.method == 'mapBatches'",
                "'predictBatch' takes batches: leave out 'method'",
            ),
            (
                f"!has(self.predictBatch) || self.callable.matches('{CLASS}')",
                "'predictBatch' is for a class, whose name is in CapWords",
            ),
        )
    )

    callable: ModulePath
    """`module:name`. It takes a dict of column name to NumPy array and returns one with the same
    number of rows. A class (a name in CapWords) is constructed once per replica."""
    method: Literal["mapBatches", "map", "flatMap"] = "mapBatches"
    """The method of Ray Data that calls it. `mapBatches`: with a batch. `map`: with a row, as a
    dict, for one row. `flatMap`: with a row for a list of rows, which may be empty."""
    predict_batch: PredictBatch | None = None
    """For a class with a method `predict_batch`, which takes a list of values."""
    constructor_args: Arguments = {}
    """Keyword arguments of the class. The text `{device}` becomes the torch name of the device of
    the replica, such as cpu or cuda:0. A text that begins with ./ or ../ is a path relative to the
    job file."""
    constructor_refs: Annotated[
        dict[Annotated[str, Field(max_length=128)], ModulePath], Field(max_length=32)
    ] = {}
    """Keyword arguments of the class that are objects of a module: `module:name`."""
    call_args: Arguments = {}
    """Keyword arguments of each call, after the batch."""

    @property
    def is_class(self) -> bool:
        """Whether the callable is a class. Its name decides (PEP 8), because the module may not be
        importable where the plan is made."""
        return re.search(CLASS, self.callable) is not None

    @model_validator(mode="after")
    def _check(self) -> PythonStep:
        if twice := sorted(set(self.constructor_args) & set(self.constructor_refs)):
            raise PydanticCustomError(
                "constructor_args",
                "'{name}' is both in constructorArgs and constructorRefs",
                {"name": twice[0]},
            )
        if self.predict_batch is not None:
            self._check_predict_batch()
        return self

    def _check_predict_batch(self) -> None:
        if self.method != "mapBatches":
            raise PydanticCustomError(
                "predict_batch", "'predictBatch' takes batches, not method {method}",
                {"method": self.method},
            )  # fmt: skip
        if not self.is_class:
            raise PydanticCustomError(
                "predict_batch",
                "'predictBatch' is for a class, and '{name}' is a function (a class has a name in "
                "CapWords)",
                {"name": self.callable},
            )

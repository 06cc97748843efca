"""Python steps, which run code of the user."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.addresses import is_relative_path
from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, ModulePath, SpecModel, invalid
from batchinference.spec.step_facts import NamedSource, StepFacts, StepSettings

CLASS = "[:.]_*[A-Z][A-Za-z0-9_]*$"
"""Matches `module:name` if the last name is in CapWords, like a class (PEP 8)."""
DEVICE = "{device}"
"""The placeholder in constructor arguments that stands for the device of the replica."""


class PredictBatch(SpecModel):
    """The input column and the output column of a method `predict_batch`."""

    input: ColumnName
    """The column that is passed to the method as a list of values. Images are Pillow images."""
    output: ColumnName
    """The column for the results: a list, array or tensor with one result for each value."""


class PythonStep(StepSettings):
    """Your own code: a function, or a class whose instances are callable."""

    callable: ModulePath
    """The function or class, as `module:name`. It gets a dict from column names to NumPy arrays,
    and returns such a dict with the same number of rows. A class (a name in CapWords) is
    constructed once per replica."""
    method: Literal["mapBatches", "map", "flatMap"] = "mapBatches"
    """The method of Ray Data that calls the function. `mapBatches`: it gets and returns a batch.
    `map`: it gets and returns a row, as a dict. `flatMap`: it gets a row and returns a list of
    rows, which may be empty."""
    predict_batch: PredictBatch | None = None
    """For a class with a method `predict_batch`, which takes a list of values."""
    constructor_args: Arguments = {}
    """Keyword arguments of the class. The string `{device}` becomes PyTorch's name of the device of
    the replica, such as cpu or cuda:0. Strings that begin with ./ or ../ are relative to the job
    file."""
    constructor_refs: Annotated[
        dict[Annotated[str, Field(max_length=128)], ModulePath], Field(max_length=32)
    ] = {}
    """Further keyword arguments of the class: objects to import, as `module:name`."""
    call_args: Arguments = {}
    """Keyword arguments of each call, after the batch."""

    @property
    def is_class(self) -> bool:
        """Return whether the callable is a class. The name decides (PEP 8), because the module
        cannot always be imported where the plan is made."""
        return re.search(CLASS, self.callable) is not None

    @property
    def facts(self) -> StepFacts:
        arguments = self.constructor_args.items()
        paths = {f"constructor_args.{key}": arg for key, arg in arguments if is_relative_path(arg)}
        return StepFacts(
            result=self.predict_batch.output if self.predict_batch else None,
            summary=self.callable,
            user_code=True,
            fix_of_when="",
            tunable=True,
            in_actors=self.is_class,
            why_in_tasks=f"'{self.callable}' is a function, which runs wherever a CPU is free (a "
            "class has a name in CapWords)",
            modules=[self.callable, *self.constructor_refs.values()],
            sources={field: NamedSource(path, may_be_of_hub=True) for field, path in paths.items()},
        )

    def _check(self) -> None:
        if duplicates := sorted(set(self.constructor_args) & set(self.constructor_refs)):
            both = "constructorArgs and constructorRefs"
            raise invalid(f"'{duplicates[0]}' is both in {both}. Remove one of them")
        if self.predict_batch is not None:
            self._check_predict_batch()

    def _check_predict_batch(self) -> None:
        if self.method != "mapBatches":
            raise invalid(
                f"'predictBatch' needs method mapBatches, not {self.method}. Remove method"
            )
        if not self.is_class:
            raise invalid(
                f"'predictBatch' is for a class, and '{self.callable}' is a function (a class has "
                "a name in CapWords). Name a class, or remove predictBatch"
            )

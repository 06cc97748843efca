"""What planning, checks and reports need to know about a step.

The class of each kind of step says it, so that no other module lists the kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from batchinference.spec.column_types import ColumnType
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


@dataclass(frozen=True)
class Place:
    """A path or address that a step names. If it `may_be_of_hub`, it may be the name of a model of
    the Hub instead."""

    uri: str
    may_be_of_hub: bool = False


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """The facts about a step. The defaults are those of a step that keeps all columns and loads
    nothing."""

    reads: Collection[str] = ()
    """The columns that it reads; empty for user code, whose columns are unknown."""
    adds: Mapping[str, ColumnType | None] = field(default_factory=dict)
    """The types of the columns that it adds or replaces; None if only its results show the type."""
    fixed_names: Collection[str] = ()
    """Added columns whose names the user does not choose, so that no column may have them."""
    replaces_input: bool = False
    """Whether columns of the input may have the fixed names."""
    renames: Mapping[str, str] = field(default_factory=dict)
    drops: Collection[str] = ()
    selects: Sequence[str] | None = None
    """The columns that it keeps; None for all."""
    result: str | None = None
    """The column of a model or a class whose name the user chooses for the results."""
    expressions: Sequence[str] = ()
    summary: str | None = None
    """The model, the code or the expression that it runs; None for all of its settings."""
    user_code: bool = False
    """Whether it calls code of the user for each row, which may read and return any columns."""
    in_actors: bool = False
    """Whether it runs in actors, which keep what they load. Otherwise, it has no replicas."""
    why_in_tasks: str = ""
    """Why it does not run in actors, for a message."""
    modules: Sequence[str] = ()
    """The code of the user that it imports, as `module:name`."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """The paths and addresses that it names, by field."""
    model_files: Sequence[str] = ()
    """The places of the files of a model, or its names on the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the model files."""
    secrets: Sequence[str | None] = ()
    """The environment variables with secrets that it names."""

    @property
    def columns_added(self) -> list[str]:
        """Return the columns that the step adds or replaces; empty for user code."""
        return [*self.adds, *self.renames.values()]

    def columns_after(self, columns: Sequence[str] | None) -> list[str] | None:
        """Return the columns after the step, or None if they are unknown."""
        if self.selects is not None:
            return list(self.selects)
        if columns is None or self.user_code:
            return None
        kept = [self.renames.get(name, name) for name in columns if name not in self.drops]
        return [*dict.fromkeys([*kept, *self.adds])]

"""The facts about a step that planning, checks and reports need.

The class of each kind of step returns the facts. Other modules do not list the kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from batchinference.spec.base import SpecModel
from batchinference.spec.column_types import ColumnType
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


@dataclass(frozen=True)
class NamedSource:
    """A path or address in a step; with `may_be_of_hub`, perhaps the id of a model of the Hub."""

    uri: str
    may_be_of_hub: bool = False


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """The facts about a step. The default is a step that keeps all columns and loads nothing."""

    reads: Collection[str] = ()
    """The columns that the step reads. Columns that only user code reads are unknown."""
    needs_paths: bool = False
    """Whether the step reads the column `path`, which the input must add."""
    adds: Mapping[str, ColumnType | None] = field(default_factory=dict)
    """The columns that the step adds or replaces, with their types; None for an unknown type."""
    fixed_names: Collection[str] = ()
    """Columns that the step adds with fixed names. No other column may have such a name."""
    replaces_input: bool = False
    """Whether `fixed_names` may be names of input columns, which the step then replaces."""
    renames: Mapping[str, str] = field(default_factory=dict)
    drops: Collection[str] = ()
    selects: Sequence[str] | None = None
    """The columns that the step keeps; None for all."""
    result: str | None = None
    """The column, named by the user, for the results of a model or a class."""
    expressions: Sequence[str] = ()
    summary: str | None = None
    """The model, code or expression of the step, to display; None to display all settings."""
    user_code: bool = False
    """Whether the step passes rows to code of the user, which may read and return any columns."""
    fix_of_when: str = "Remove it: only steps that compute columns row by row may have it"
    """What to write instead of `when` or `cascade`; empty if the step may have them."""
    tunable: bool = False
    """Whether the step may have the fields about batches, replicas and resources."""
    in_actors: bool = False
    """Whether the step runs in actors, which keep what they load. In tasks, it has no replicas."""
    why_in_tasks: str = ""
    """Why the step does not run in actors, for a message."""
    modules: Sequence[str] = ()
    """The user's code that the step imports, as `module:name`."""
    sources: Mapping[str, NamedSource] = field(default_factory=dict)
    """The paths and addresses that the step names, by field."""
    model_files: Sequence[str] = ()
    """Paths or URIs of files of a model, or ids of models of the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the model files."""
    secrets: Sequence[str | None] = ()
    """The environment variables with secrets that the step names."""

    @property
    def columns_added(self) -> list[str]:
        """Return the columns that the step adds or replaces, and new names of renamed columns."""
        return [*self.adds, *self.renames.values()]

    def columns_after(self, columns: Sequence[str] | None) -> list[str] | None:
        """Return the columns after the step, or None if they are unknown."""
        if self.selects is not None:
            return list(self.selects)
        if columns is None or self.user_code:
            return None
        names = [self.renames.get(name, name) for name in columns if name not in self.drops]
        return [*dict.fromkeys([*names, *self.adds])]


class StepSettings(SpecModel):
    """Base class of the settings of a kind of step."""

    @property
    def facts(self) -> StepFacts:
        """Return the facts about a step with these settings."""
        raise NotImplementedError

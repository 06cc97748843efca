"""The class `Job` of the Python API. It uses the same models as the YAML file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from batchinference.api.files import directory_of, read_text, with_absolute_paths
from batchinference.credentials import without_credentials
from batchinference.spec import API_VERSION, KIND, BatchInference, Problem, parse, parse_one
from batchinference.spec.base import SpecModel
from batchinference.spec.job import DEFAULT_NAME
from batchinference.spec.parameters import Values
from batchinference.spec.read import Read
from batchinference.spec.steps import Step
from batchinference.spec.write import Write
from batchinference.text import without_controls

Fields = Mapping[str, Any]
"""Fields of a job, named as in the YAML file."""


@dataclass(frozen=True, init=False)
class Job:
    """A job: its specification, and the directory for its relative paths and its modules."""

    resource: BatchInference
    directory: Path

    def __init__(
        self,
        read: Read | Fields,
        write: Write | Fields,
        steps: Iterable[Step | Fields] = (),
        *,
        name: str = DEFAULT_NAME,
        directory: str | Path | None = None,
        **spec: Any,
    ) -> None:
        """Create a job from models, or from mappings with the fields of the YAML file.

        `spec` has other fields of the spec, such as `errors`. `directory` defaults to the working
        directory. A job without a `name` cannot be restarted after a change of its spec. Raises
        SpecError, which lists every problem.
        """
        fields = {"read": read, "write": write, "steps": list(steps), **spec}
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": _plain(fields),
        }
        self._set(parse(document), Path(directory) if directory else Path.cwd())

    @classmethod
    def from_yaml(cls, path: str | Path, **parameters: str) -> Job:
        """Return the job in a YAML file. `parameters` are values of its `spec.parameters`.

        Raises SpecError, which lists every problem.
        """
        job = cls.__new__(cls)
        values = Values(parameters, os.environ)
        job._set(parse_one(read_text(str(path)), values), directory_of(str(path)))
        return job

    def _set(self, resource: BatchInference, directory: Path) -> None:
        object.__setattr__(self, "resource", resource)
        object.__setattr__(self, "directory", directory.resolve())

    def __repr__(self) -> str:
        spec = self.resource.spec
        steps = ", ".join(step.name for step in spec.steps)
        return f"Job({self.name!r}: {spec.read.format}, [{steps}], {spec.write.format})"

    def _repr_html_(self) -> str:
        """Return the job as YAML, which a notebook shows."""
        shown = without_credentials(without_controls(self.to_yaml()))
        return f"<pre>{escape(shown)}</pre>"

    @property
    def name(self) -> str:
        return self.resource.metadata.name

    @property
    def absolute(self) -> BatchInference:
        """The specification with absolute paths."""
        return with_absolute_paths(self.resource, self.directory)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as a mapping with the fields of the YAML file, without default values."""
        document: dict[str, Any] = self.resource.model_dump(
            mode="json", by_alias=True, exclude_unset=True
        )
        return document

    def to_yaml(self) -> str:
        """Return the job as YAML."""
        import yaml

        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False)
        return text

    def check(self) -> list[Problem]:
        """Return the problems that `batchinference validate` finds."""
        from batchinference.pipeline.commit.lease import identity_of
        from batchinference.pipeline.preflight import preflight
        from batchinference.pipeline.steps.user_modules import add_import_path

        add_import_path(str(self.directory))
        return preflight(self.absolute.spec, identity_of(self.absolute))


def _plain(value: Any) -> Any:
    """Return a value with its models as mappings, with the field names of the YAML file."""
    if isinstance(value, SpecModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value

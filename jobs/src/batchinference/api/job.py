"""The class `Job` of the Python API: a job with the same fields as in a YAML file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchinference.api.job_files import directory_of, read_file_or_stdin, with_absolute_paths
from batchinference.credentials import without_credentials
from batchinference.spec import (
    API_VERSION,
    KIND,
    BatchInference,
    Problem,
    SpecError,
    parse,
    parse_one,
)
from batchinference.spec.base import SpecModel
from batchinference.spec.job import DEFAULT_NAME
from batchinference.spec.parameters import ParameterValues
from batchinference.spec.problems import raise_for_problems, type_name
from batchinference.spec.read import Read
from batchinference.spec.steps import Step
from batchinference.spec.write import Write
from batchinference.text import without_controls

if TYPE_CHECKING:
    from batchinference.api.input_frames import Frame
    from batchinference.api.notebook_code import CodeByValue
    from batchinference.api.preview import PreviewRows

Fields = Mapping[str, Any]
"""Fields of a job, named as in the YAML file."""


@dataclass(frozen=True, init=False)
class Job:
    """A job, and the directory against which its relative paths and modules are resolved."""

    resource: BatchInference
    directory: Path
    frame: Frame | None = field(compare=False, repr=False)
    """The input, if it is a DataFrame or an Arrow table."""
    code: CodeByValue | None = field(compare=False, repr=False)
    """Functions and classes that exist only in this process, if steps use any."""

    def __init__(
        self,
        read: Read | Fields | Any,
        write: Write | Fields,
        steps: Iterable[Step | Fields] = (),
        *,
        name: str = DEFAULT_NAME,
        directory: str | Path | None = None,
        **spec: Any,
    ) -> None:
        """Create a job from models, or from mappings with the fields of the YAML file.

        `read` may also be a DataFrame of pandas or Polars, or an Arrow table. Steps may contain
        functions and classes in place of `module:name`. Later changes of their code do not change
        the job. `spec` has the other fields of the spec, such as `errors`. `directory` defaults to
        the working directory. A job without a `name` cannot be restarted after a change of its
        spec. Raises SpecError."""
        # `parse` reports the problem if `steps` is not a list
        listed = steps if isinstance(steps, Mapping | SpecModel | str | None) else list(steps)
        fields = _plain({"read": read, "write": write, "steps": listed, **spec})
        frame = _read_frame(fields)
        code = _with_paths_of_code(fields, str(directory or Path.cwd()))
        about = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
        resource = parse({**about, "spec": fields})
        self._set(resource, Path(directory) if directory else Path.cwd(), frame, code)

    @classmethod
    def from_yaml(cls, path: str | Path, **parameters: str) -> Job:
        """Return the job in a YAML file with these values of its parameters. Raises SpecError."""
        job = cls.__new__(cls)
        values = ParameterValues(parameters, os.environ)
        job._set(parse_one(read_file_or_stdin(str(path)), values), directory_of(str(path)))
        return job

    def _set(
        self,
        resource: BatchInference,
        directory: Path,
        frame: Frame | None = None,
        code: CodeByValue | None = None,
    ) -> None:
        vars(self).update(resource=resource, directory=directory.resolve(), frame=frame, code=code)

    def with_data(self, data: Any) -> Job:
        """Return the job with a DataFrame or an Arrow table as its input. Raises SpecError."""
        document = self._document()
        fields = {**document["spec"], "read": data}
        frame = _read_frame(fields)
        job = Job.__new__(Job)
        job._set(parse({**document, "spec": fields}), self.directory, frame, self.code)
        return job

    def __repr__(self) -> str:
        spec = self.resource.spec
        steps = ", ".join(step.name for step in spec.steps)
        return f"Job({self.name!r}: {spec.read.format}, [{steps}], {spec.write.format})"

    def _repr_html_(self) -> str:
        shown = without_credentials(without_controls(_yaml(self._document())))
        return f"<pre>{escape(shown)}</pre>"

    @property
    def name(self) -> str:
        """The name in the metadata of the job. A job without a name has DEFAULT_NAME."""
        return self.resource.metadata.name

    @property
    def absolute(self) -> BatchInference:
        """The job with its relative paths resolved against `directory`."""
        return with_absolute_paths(self.resource, self.directory)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as a mapping with the fields of the YAML file that are set. Raises
        SpecError if the input or code exists only in this process."""
        raise_for_problems(self._only_here())
        return self._document()

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = _plain(self.resource)
        return document

    def _only_here(self) -> Iterator[Problem]:
        """Yield a problem for each input, function and class that exists only in this process.
        A job with such a problem cannot be stored as YAML or submitted."""
        if self.frame is not None:
            fix = "Write it to a file, for example with to_parquet, and read that"
            yield Problem("spec.read", f"a DataFrame is only in this process (data). {fix}")
        for name in self.code.names if self.code else ():
            fix = f"Write it to a file, such as own.py, and use own:{name}"
            yield Problem("spec.steps", f"code of this session is in no module ({name}). {fix}")

    def to_yaml(self) -> str:
        """Return the job as YAML. Raises SpecError in the same cases as `to_dict`."""
        return _yaml(self.to_dict())

    def check(self) -> list[Problem]:
        """Return the problems with the input, columns, models, code and output."""
        from batchinference.pipeline.commit.lease import identity_of
        from batchinference.pipeline.preflight import preflight

        with self.prepared():
            return preflight(self.absolute.spec, identity_of(self.absolute))

    def preview(self, rows: int = 5, step: str | None = None) -> PreviewRows:
        """Return the first rows after the step `step`, or the rows to write if `step` is None. The
        steps run in this process over the first `rows` rows of the input. Nothing is written."""
        from batchinference.api.preview import preview_rows

        with self.prepared():
            return preview_rows(self.absolute, rows, step)

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Store the input if it is a frame. Inside the `with` block, steps import the current
        versions of their modules."""
        from batchinference.pipeline.steps.import_path import import_path, reload_modules

        if self.frame is not None:
            self.frame.store(self.absolute.spec.read)
        directories = [self.directory, *([self.code.directory] if self.code else [])]
        with import_path(*map(str, directories)):
            reload_modules(path for step in self.resource.spec.steps for path in step.facts.modules)
            yield


def check_is_job(value: object) -> None:
    """Raise SpecError if a value is not a Job, such as the path of a file."""
    if not isinstance(value, Job):
        problem = f"expected a Job, got {type_name(value)}. Read a file with Job.from_yaml"
        raise SpecError([Problem("job", problem)])


def _yaml(document: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


def _read_frame(fields: dict[str, Any]) -> Frame | None:
    """Return the frame in the field `read`. Replace the field by settings that read the file of the
    frame. If the field has no frame, change nothing and return None. Raises SpecError."""
    if isinstance(fields["read"], Mapping | str | None):
        return None
    from batchinference.api.input_frames import Frame

    frame = Frame.of(fields["read"])
    fields["read"] = frame.read_for(fields["write"])
    return frame


def _with_paths_of_code(fields: dict[str, Any], directory: str) -> CodeByValue | None:
    """Replace functions and classes in the field `steps` by `module:name`. Return modules for the
    functions and classes that other processes could not import; None if there are none. The code
    may import modules in `directory`. Raises SpecError."""
    if not _holds_code(fields["steps"]):
        return None
    from batchinference.api.notebook_code import CodeByValue
    from batchinference.pipeline.steps.import_path import import_path

    code = CodeByValue()
    with import_path(directory):
        fields["steps"] = code.with_paths(fields["steps"], "spec.steps")
    return code if code.names else None


def _holds_code(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_code, value.values()))
    return any(map(_holds_code, value)) if isinstance(value, list) else callable(value)


def _plain(value: Any) -> Any:
    """Return a value with mappings in place of models. The keys are the names in YAML."""
    if isinstance(value, SpecModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value

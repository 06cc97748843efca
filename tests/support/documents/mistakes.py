"""Typical mistakes in a job: docs/mistakes.md lists the message of each.

`python -m support.documents.mistakes` prints the table of the page.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import chdir
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.program import run_program

JOB = """\
apiVersion: batchinference.dev/v1beta1
kind: BatchInference
metadata:
  name: reviews
spec:
  read:
    format: csv
    paths: [./reviews.csv]
  steps:
  - name: long
    filter: len(text) > 20
  - name: embed
    model:
      runtime: transformers
      task: feature-extraction
      source: ./model
      inputs: {text: text}
      output: embedding
    batchSize: 32
  write:
    format: parquet
    path: ./out
"""
STEP = """\
  - name: embed
    model:
      runtime: transformers
      task: feature-extraction
      source: ./model
      inputs: {text: text}
      output: embedding
    batchSize: 32
"""
CSV = {"reviews.csv": "id,text\n1,a good book\n2,a bad film\n"}
MODULE = {**CSV, "steps.py": "def clean(row):\n    return row\n"}


@dataclass(frozen=True)
class Mistake:
    """A change of the job that users make by mistake."""

    about: str
    old: str
    new: str
    files: dict[str, str] = field(default_factory=dict)
    """The files next to the job. If there are none, the mistake is in the job file itself."""

    @property
    def command(self) -> list[str]:
        return ["validate"]

    def message(self) -> str:
        """Return what the command prints about the job."""
        job = JOB if not self.files or self.old in STEP else JOB.replace(STEP, "")
        assert job.count(self.old) == 1, self.about
        with tempfile.TemporaryDirectory() as directory:
            files = {"job.yaml": job.replace(self.old, self.new), **self.files}
            for name, text in files.items():
                file = Path(directory) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            with chdir(directory):
                result = run_program(*self.command, "job.yaml")
            assert result.exit_code, self.about
            lines = result.output.replace(os.path.realpath(directory), "/work").splitlines()
        return " ".join(line.removeprefix("job.yaml: ") for line in lines)


def own_step(text: str) -> str:
    """Return a step that replaces the model step."""
    return f"  - name: own\n    {text}\n"


def calling(target: str) -> str:
    return own_step(f"python: {{callable: '{target}'}}")


IN_THE_FILE = [
    Mistake("wrong indentation", "    paths", "   paths"),
    Mistake("a tab for indentation", "    format: csv", "\tformat: csv"),
    Mistake("a missing colon", "    format: csv", "    format csv"),
    Mistake("a list without brackets", "paths: [./reviews.csv]", "paths: ./a.csv, ./b.csv"),
    Mistake("a field name with a typo", "batchSize: 32", "batchsize: 32"),
    Mistake("a field at the wrong level", "    batchSize: 32", "      batchSize: 32"),
    Mistake("a field twice", "    batchSize: 32", "    batchSize: 32\n    batchSize: 64"),
    Mistake("an unknown top-level field", "spec:\n", "spec:\n  gpus: 1\n"),
    Mistake("another kind", "kind: BatchInference", "kind: RayJob"),
    Mistake("another API version", "batchinference.dev/v1beta1", "batchinference.dev/v1"),
    Mistake("no name", "  name: reviews\n", "  namespace: team\n"),
    Mistake("capital letters in the name", "name: reviews", "name: My_Reviews"),
    Mistake("a name that is too long", "name: reviews", f"name: {'r' * 64}"),
    Mistake("no `read`", "  read:\n    format: csv\n    paths: [./reviews.csv]\n", ""),
    Mistake("no `write`", "  write:\n    format: parquet\n    path: ./out\n", ""),
    Mistake("a format with a typo", "format: csv", "format: cvs"),
    Mistake("a format that cannot be written", "format: parquet", "format: xlsx"),
    Mistake("no paths", "paths: [./reviews.csv]", "paths: []"),
    Mistake(
        "an option of another format",
        "paths: [./reviews.csv]",
        "paths: [./reviews.csv]\n    options: {columns: [text]}",
    ),
    Mistake("an unknown storage", "[./reviews.csv]", "[ftp://host/reviews.csv]"),
    Mistake("an address without a bucket", "path: ./out", "path: 's3://'"),
    Mistake(
        "credentials in an address", "[./reviews.csv]", "['s3://KEY:SECRET@bucket/reviews.csv']"
    ),
    Mistake("a step without an action", STEP, "  - name: own\n"),
    Mistake(
        "a step with two actions",
        STEP,
        own_step("filter: len(text) > 3\n    python: {callable: 'steps:f'}"),
    ),
    Mistake("two steps with one name", "name: long", "name: embed"),
    Mistake("a step without a name", "  - name: long\n    filter:", "  - filter:"),
    Mistake("Python's `==` for a missing value", "len(text) > 20", "text == None"),
    Mistake("an expression with a typo", "len(text) > 20", "lenght(text) > 20"),
    Mistake("an incomplete expression", "len(text) > 20", "len(text) >"),
    Mistake("a method in an expression", "len(text) > 20", "text.startswith('a')"),
    Mistake("an assignment in a filter", "len(text) > 20", "lang = 'en'"),
    Mistake("an expression as a number", "filter: len(text) > 20", "filter: 20"),
    Mistake("an unknown runtime", "runtime: transformers", "runtime: huggingface"),
    Mistake("an unknown task", "task: feature-extraction", "task: embedding"),
    Mistake("no source of the model", "      source: ./model\n", ""),
    Mistake("no input columns", "      inputs: {text: text}\n", ""),
    Mistake("inputs as a list", "inputs: {text: text}", "inputs: [text]"),
    Mistake(
        "an option of another runtime",
        "output: embedding",
        "output: embedding\n      engine: {max_model_len: 4096}",
    ),
    Mistake("a batch size of zero", "batchSize: 32", "batchSize: 0"),
    Mistake("a batch size as text", "batchSize: 32", "batchSize: large"),
    Mistake("a number of replicas", "batchSize: 32", "replicas: 4"),
    Mistake("a negative number of replicas", "batchSize: 32", "replicas: -1"),
    Mistake("`min` above `max`", "batchSize: 32", "replicas: {min: 4, max: 2}"),
    Mistake("memory without a unit", "batchSize: 32", "resources: {memory: 4}"),
    Mistake("memory in GB", "batchSize: 32", "resources: {memory: 4GB}"),
    Mistake("half a CPU as text", "batchSize: 32", "resources: {cpu: half}"),
    Mistake("`gpu: true`", "batchSize: 32", "resources: {gpu: true}"),
    Mistake("a callable without a module", STEP, own_step("python: {callable: clean}")),
    Mistake("a callable as a path", STEP, own_step("python: {callable: ./steps.py:clean}")),
    Mistake("an unknown write mode", "path: ./out", "path: ./out\n    mode: replace"),
    Mistake("a percentage as text", "  write:", "  errors: {maxPercent: 5%}\n  write:"),
    Mistake("a percentage above 100", "  write:", "  errors: {maxPercent: 150}\n  write:"),
    Mistake("a duration without a unit", "  write:", "  deadlines: {total: 3600}\n  write:"),
    Mistake("a duration in words", "  write:", "  deadlines: {total: 2 hours}\n  write:"),
    Mistake("a parameter without quotes", "[./reviews.csv]", "[{{ date }}]"),
    Mistake(
        "a mapping in `env`",
        "  write:",
        "  cluster: {env: {TOKEN: hf_0123456789abcdef0123456789abcdef01}}\n  write:",
    ),
]
IN_FILES = [
    Mistake("an input path with a typo", "./reviews.csv", "./review.csv", CSV),
    Mistake("a Windows path", "[./reviews.csv]", "['C:\\data\\reviews.csv']", CSV),
    Mistake("a glob that matches no file", "./reviews.csv", "'./review-*.csv'", CSV),
    Mistake("a directory without files of the format", "./reviews.csv", "./data",
            {"data/notes.doc": ""}),
    Mistake("the directory of a Delta table", "format: csv\n    paths: [./reviews.csv]",
            "format: parquet\n    paths: [./sales]",
            {"sales/a.parquet": "", "sales/_delta_log/0.json": "{}"}),
    Mistake("a column that does not exist", "len(text)", "len(txt)", CSV),
    Mistake("a model that does not exist", "source: ./model", "source: ./modle", CSV),
    Mistake("a module that does not exist", STEP, calling("stepz:clean"), MODULE),
    Mistake("a function that does not exist", STEP, calling("steps:claen"), MODULE),
    Mistake("a syntax error in a module", STEP, calling("steps:clean"),
            {**CSV, "steps.py": "def clean(row) return row\n"}),
    Mistake("a package that is not installed", STEP, calling("steps:clean"),
            {**CSV, "steps.py": "import no_such_package\n\ndef clean(row): ...\n"}),
    Mistake("a module with the name of one of Python", STEP, calling("json:clean"),
            {**CSV, "json.py": "def clean(row): ...\n"}),
    Mistake("a column to drop that does not exist", STEP, own_step("dropColumns: [body]"), CSV),
    Mistake("an output path that is a file", STEP, calling("steps:clean"), {**MODULE, "out": "x"}),
    Mistake("an output path with other files", STEP, calling("steps:clean"),
            {**MODULE, "out/old.parquet": "x"}),
]  # fmt: skip
MISTAKES = [*IN_THE_FILE, *IN_FILES]


@cache
def messages() -> list[str]:
    """Return the message of each mistake, in the order of MISTAKES."""
    return [one.message() for one in MISTAKES]


def table() -> str:
    """Return the table of the page."""
    rows = [
        f"| {number} | {one.about} | {_cell(message)} |"
        for number, (one, message) in enumerate(zip(MISTAKES, messages(), strict=True), start=1)
    ]
    return "\n".join(["| | mistake | message |", "| --- | --- | --- |", *rows])


def _cell(message: str) -> str:
    quoted = message.replace("|", "\\|")
    return f"`{quoted}`" if "`" not in message else f"`` {quoted} ``"


if __name__ == "__main__":
    print(table())

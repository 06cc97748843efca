"""Mistakes that users make in a job and its files, and what `batchinference validate` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.program import run_program

Files = Mapping[str, str | bytes]
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
SCHEDULE = """\
apiVersion: batchinference.dev/v1beta1
kind: BatchInferenceSchedule
metadata: {name: nightly}
spec:
  schedule: "30 2 * * *"
  template:
    spec:
      read: {format: csv, paths: [./reviews.csv]}
      steps: [{name: long, filter: len(text) > 20}]
      write: {format: parquet, path: ./out}
"""
CSV = "id,text,n,my col\n1,a good book,3,x\n2,a bad film,4,y\n"
FILES: Files = {
    "reviews.csv": CSV,
    "steps.py": "def clean(batch):\n    return batch\n",
    "model/config.json": '{"model_type": "bert", "architectures": ["BertModel"]}',
    "model/tokenizer.json": "{}",
    "model/model.safetensors": "",
}
"""The files of each job."""


@dataclass(frozen=True)
class Mistake:
    """`wrong` in place of `right`, or of another part `old` of the job."""

    wrong: str
    right: str
    """What the message says to write instead of `wrong`."""
    old: str = ""
    files: Files = field(default_factory=dict)
    """Files that the job has in addition."""
    right_files: Files | None = None
    """The files after the correction, if they change."""
    says: str | None = None
    """The part of the message with the correction, if it is not the text of `right`."""
    base: str = JOB

    def job(self, part: str) -> str:
        """Return the job with this text in place of the part with the mistake."""
        old = self.old or self.right
        assert self.base.count(old) == 1, f"{old!r} is {self.base.count(old)} times in the job"
        return self.base.replace(old, part)


def answer(directory: Path, job: str, files: Files) -> tuple[int, str]:
    """Write a job with its files into the current directory. Return the exit code and the output of
    `validate`."""
    for name, content in {**FILES, **files, "job.yaml": job}.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    result = run_program("validate", "job.yaml")
    lines = result.output.replace(str(directory.resolve()), "/work").splitlines()
    return result.exit_code, "\n".join(line.removeprefix("job.yaml: ") for line in lines)

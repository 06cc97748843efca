"""Files that hide a module of Python or Ray are found before anything imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batchinference.cli import exits
from batchinference.shadowing_files import shadowing
from support.program import run_program


def put(directory: Path, *files: str) -> Path:
    for file in files:
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('a file of the user')\n")
    return directory


@pytest.mark.parametrize(
    ("file", "hidden", "renamed"),
    [
        ("random.py", "the module 'random' of Python", "random.py"),
        ("types.py", "the module 'types' of Python", "types.py"),
        ("json/__init__.py", "the module 'json' of Python", "json"),
        ("ray.py", "the package 'ray'", "ray.py"),
        ("numpy/__init__.py", "the package 'numpy'", "numpy"),
        ("yaml.cpython-311-x86_64-linux-gnu.so", "the package 'yaml'", None),
    ],
)
def test_file_that_hides_a_module_is_named_with_the_fix(
    tmp_path: Path, file: str, hidden: str, renamed: str | None
) -> None:
    (problem,) = shadowing([str(put(tmp_path, file))])
    entry = renamed or file
    assert problem == f"'{tmp_path / entry}' hides {hidden}, and Ray cannot start. Rename {entry}"


def test_run_refuses_a_file_next_to_the_job_file(tmp_path: Path) -> None:
    put(tmp_path, "random.py")
    (tmp_path / "job.yaml").write_text("not read\n")
    done = run_program("run", str(tmp_path / "job.yaml"))
    assert done.exit_code == exits.BAD_INPUT
    assert f"job.yaml: '{tmp_path / 'random.py'}' hides the module 'random'" in done.stderr
    assert "Rename random.py" in done.stderr


def test_other_files_are_accepted(tmp_path: Path) -> None:
    put(tmp_path, "steps.py", "test.py", "random.csv", "json/data.json", "sub/random.py")
    assert shadowing([str(tmp_path), str(tmp_path / "nowhere")]) == []


def test_directories_of_libraries_are_accepted(tmp_path: Path) -> None:
    """PYTHONPATH may contain directories of libraries."""
    put(tmp_path, "numpy/__init__.py", "numpy-2.0.0.dist-info/RECORD")
    assert shadowing([str(tmp_path), os.path.dirname(os.__file__), *sys.path]) == []


@pytest.mark.parametrize("file", ["typing.py", "__future__.py", "ray.py", "pathlib.py"])
def test_program_names_a_file_in_pythonpath_that_would_break_it(tmp_path: Path, file: str) -> None:
    """Such a file may be code that a cluster mounts from a ConfigMap."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "batchinference", "--version"],
        env={**os.environ, "PYTHONPATH": str(put(tmp_path, file))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"PYTHONPATH: '{tmp_path / file}' hides the ")
    assert done.stderr.endswith(f"and Ray cannot start. Rename {file}\n")

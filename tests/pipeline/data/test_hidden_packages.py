"""Files of the user with the name of a package of the runtime are refused before Ray starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.hidden_packages import check_hidden_packages


@pytest.mark.parametrize(
    ("runtime", "library", "file"),
    [
        ("transformers", "transformers", "transformers.py"),
        ("transformers", "transformers", "torch.py"),
        ("transformers", "transformers", "tokenizers/__init__.py"),
        ("torchvision", "torchvision", "sympy.py"),
        ("sentenceTransformers", "sentence_transformers", "huggingface_hub.py"),
    ],
)
def test_file_that_hides_a_package_of_the_runtime_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, library: str, file: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('a file of the user')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelLoad) as caught:
        check_hidden_packages(runtime, library)
    entry, module = file.partition("/")[0], file.removesuffix("/__init__.py").removesuffix(".py")
    assert caught.value.message == (
        f"'{tmp_path / entry}' hides the package '{module}', which the runtime '{runtime}' "
        f"imports: rename {entry}"
    )


@pytest.mark.parametrize(
    ("library", "file"),
    [("transformers", "steps.py"), ("transformers", "torch.csv"), ("aiohttp", "transformers.py")],
)
def test_other_files_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, file: str
) -> None:
    (tmp_path / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    check_hidden_packages("any", library)

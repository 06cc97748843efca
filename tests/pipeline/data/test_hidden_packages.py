"""Files of the user with the name of a package of the runtime are refused before Ray starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes import check_hidden


@pytest.mark.parametrize("file", ["transformers.py", "torch/__init__.py"])
def test_file_that_hides_a_package_of_the_runtime_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('a file of the user')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelLoad, match=f"'{tmp_path / file}' hides the package"):
        check_hidden("transformers")
    if file == "transformers.py":
        check_hidden("aiohttp")

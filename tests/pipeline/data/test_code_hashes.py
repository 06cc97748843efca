"""Hashes of the code and of the model files of a job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from batchinference.pipeline.commit.code_and_spec_changes import (
    describe_code_change,
    serialized_code,
)
from batchinference.pipeline.errors import BadOutput, ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import code_hashes
from batchinference.pipeline.steps.code_hashes import SAMPLE_BYTES, SAMPLES, code_of, model_digest
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.minimal import document
from support.models.hub_cache import add_to_hub_cache

FILES = {
    "own_part.py": "import json\nimport own_helper\nfrom own_pack import step\n",
    "own_helper.py": "A = 1\n",
    "own_unused.py": "B = 1\n",
    "own_pack/__init__.py": "",
    "own_pack/step.py": "from . import deep\nfrom .deep import value as v\n",
    "own_pack/deep.py": "import own_pack.missing\nvalue = 1\n",
    "own_pack/unused.py": "",
}
USED = ["own_part.py", "own_helper.py", "own_pack/__init__.py", "own_pack/step.py",
        "own_pack/deep.py"]  # fmt: skip


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def code(**step: Any) -> dict[str, str]:
    return code_of(parse(document(steps=[{"name": "one", **step}])).spec)


def own() -> dict[str, str]:
    return code(python={"callable": "own_part:f"})


def test_module_with_the_modules_that_it_imports(modules: Path) -> None:
    assert sorted(own()) == sorted(f"steps[0].python: module {name}" for name in USED)


@pytest.mark.parametrize("name", FILES)
def test_only_a_change_of_imported_code_counts(modules: Path, name: str) -> None:
    before = own()
    (modules / name).write_text(FILES[name] + "C = 2\n")
    changed = [key.split()[-1] for key, value in own().items() if before[key] != value]
    assert changed == ([name] if name in USED else [])


def test_module_of_a_package(modules: Path) -> None:
    names = [key.split()[-1] for key in code(python={"callable": "own_pack.deep:value"})]
    assert names == ["own_pack/deep.py", "own_pack/__init__.py"]


def test_installed_package_counts_by_its_version() -> None:
    assert code(python={"callable": "numpy.linalg:norm"}).keys() == {
        "steps[0].python: package numpy"
    }
    assert "steps[0].python: module json/decoder.py" in code(python={"callable": "json:loads"})


def test_module_next_to_installed_packages_counts_alone(modules: Path) -> None:
    """In an image, code and packages may be in one directory."""
    (modules / "torch-2.0.dist-info").mkdir()
    assert own().keys() == {"steps[0].python: module own_part.py"}
    assert len(code(python={"callable": "own_pack.step:f"})) == 3


MODEL: dict[str, Any] = {
    **{"runtime": "sentenceTransformers", "inputs": {"text": "text"}, "output": "embedding"}
}


def model(source: Path | str) -> dict[str, str]:
    return code(model={**MODEL, "source": str(source)})


LARGE = 2 * SAMPLES * SAMPLE_BYTES
"""The size of a file of which samples are hashed, with gaps as large as the samples."""


@pytest.mark.parametrize("at", [0, 2 * SAMPLE_BYTES, LARGE // 2 + 1, LARGE - 1], ids=str)
def test_change_of_a_large_model_file_counts(tmp_path: Path, at: int) -> None:
    weights = tmp_path / "weights.gguf"
    content = bytearray(LARGE)
    weights.write_bytes(content)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "lock").touch()
    before = model(tmp_path)
    assert before.keys() == {"steps[0].model: file weights.gguf"}
    weights.touch()
    assert model(tmp_path) == before
    content[at] = 1
    weights.write_bytes(content)
    assert model(tmp_path) != before


def test_a_smaller_file_is_hashed_entirely(tmp_path: Path) -> None:
    weights = tmp_path / "weights.gguf"
    result = set()
    for at in (0, SAMPLE_BYTES + 1, LARGE // 2 - 1):
        content = bytearray(LARGE // 2)
        content[at] = 1
        weights.write_bytes(content)
        result.add(model(weights)["steps[0].model: file weights.gguf"])
    assert len(result) == 3


def digest(source: object, device: str = "cpu", **fields: Any) -> str:
    step = {"name": "embed", "model": {**MODEL, "source": str(source), **fields}}
    model = Step.model_validate(step).model
    assert model is not None
    return model_digest(model, Device(device))


def test_model_of_a_cache_is_identified_by_all_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    content = bytearray(LARGE)
    for at in range(3):
        (tmp_path / "a" / "weights.gguf").write_bytes(content)
        copy = shutil.copytree(tmp_path / "a", tmp_path / f"copy{at}")
        assert digest(copy) == digest(tmp_path / "a")
        content[2 * SAMPLE_BYTES - 1 - at] = 1  # between two samples
    assert len({digest(tmp_path / f"copy{at}") for at in range(3)}) == 3
    (tmp_path / "copy1" / "weights.gguf").rename(tmp_path / "copy1" / "other.gguf")
    assert digest(tmp_path / "copy1") != digest(tmp_path / "copy2")


def test_model_of_a_cache_is_identified_by_what_changes_its_results(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = digest(tmp_path)
    assert digest(tmp_path, inputs={"text": "other"}, output="vector") == before
    others = [
        digest(tmp_path, "cuda"),
        digest(tmp_path, normalize=True),
        digest(tmp_path, nullInput="fail"),
    ]
    with patch.object(code_hashes, "__version__", "9"):
        others.append(digest(tmp_path))
    with patch.object(code_hashes, "_package_version", lambda name: f"9 of {name}"):
        others.append(digest(tmp_path))
    assert len({before, *others}) == len(others) + 1


def test_model_of_the_hub_is_identified_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.json").write_text("{}")
    for revision in ("main", "v2"):
        add_to_hub_cache(tmp_path / "hub", "org/name", revision, tmp_path / "files")
    assert digest("org/name") == digest("org/name", revision="main")
    assert digest("org/name") != digest("org/name", revision="v2")
    with pytest.raises(ModelLoad) as caught:
        digest("org/unknown")
    messages.check(caught.value)


def own_class(**arguments: Any) -> dict[str, str]:
    return code(python={"callable": "own_pack.deep:Value", **arguments})


def test_modules_of_constructor_refs_count(modules: Path) -> None:
    result = own_class(constructorRefs={"f": "own_part:f", "g": "numpy:sqrt"})
    assert result.keys() == {
        "steps[0].python: package numpy",
        *(f"steps[0].python: module {name}" for name in USED),
    }
    (modules / "own_helper.py").write_text("A = 2\n")
    changed = own_class(constructorRefs={"f": "own_part:f", "g": "numpy:sqrt"})
    assert {name for name in result if result[name] != changed[name]} == {
        "steps[0].python: module own_helper.py"
    }


@pytest.mark.parametrize("name", ["steps[0].model: file a.bin", "steps[0].python: module a.py"])
def test_new_files_of_a_model_and_new_modules_count(tmp_path: Path, name: str) -> None:
    location = Location(str(tmp_path / "code.json"))
    location.write(serialized_code({}))
    assert "from none to 1)" in describe_code_change(location, {name: "1"})


def test_model_of_the_hub_counts_by_its_spec() -> None:
    assert model("org/name") == {}


def test_changes_are_named(tmp_path: Path, messages: Messages) -> None:
    location = Location(str(tmp_path / "code.json"))
    assert describe_code_change(location, {"a": "1"}) == ""
    location.write(serialized_code({"a": "1" * 64, "b": "2"}))
    assert describe_code_change(location, {"a": "1" * 64, "b": "2"}) == ""
    messages.check(describe_code_change(location, {"b": "3"}))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"code": {"a": 1}}'])
def test_damaged_hashes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "code.json").write_bytes(content)
    with pytest.raises(BadOutput, match=r"code\.json' is damaged"):
        describe_code_change(Location(str(tmp_path / "code.json")), {})

"""Hashes of the code and of the model files of a job."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pytest

from batchinference.pipeline.commit.code_hashes import changed_code, write_code
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.steps import argument_files, code_identity, file_identity
from batchinference.pipeline.steps.argument_files import ArgumentFiles
from batchinference.pipeline.steps.code_identity import code_of
from batchinference.pipeline.steps.file_identity import MAX_TENSORS, SAMPLE_BYTES, SAMPLES
from batchinference.pipeline.storage.json import dump_checksummed
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from support.documents.minimal import document

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


def test_module_that_cannot_be_parsed_counts(modules: Path) -> None:
    (modules / "own_part.py").write_text("def")
    assert len(own()) == 1


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


def model(source: Path | str) -> dict[str, str]:
    fields = {"runtime": "sentenceTransformers", "source": str(source), "inputs": {"text": "text"}}
    return code(model={**fields, "output": "embedding"})


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
    found = set()
    for at in (0, SAMPLE_BYTES + 1, LARGE // 2 - 1):
        content = bytearray(LARGE // 2)
        content[at] = 1
        weights.write_bytes(content)
        found.add(model(weights)["steps[0].model: file weights.gguf"])
    assert len(found) == 3


def safetensors(sizes: list[int], changed: int | None = None) -> bytes:
    """Return a file with tensors of these sizes in bytes, and zeros in all but one of them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for number, size in enumerate(sizes):
        offsets = [len(content), len(content) + size]
        header |= {f"t{number}": {"dtype": "U8", "shape": [size], "data_offsets": offsets}}
        content += bytes([number == changed]) * size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


SIZES = [2 * SAMPLE_BYTES - 700, 100, LARGE + 2 * SAMPLE_BYTES, 100, LARGE]
"""The small tensors are between samples."""


@pytest.mark.parametrize("changed", range(len(SIZES)))
def test_each_tensor_of_a_large_file_counts(tmp_path: Path, changed: int) -> None:
    """A head that was trained again in a frozen backbone is small."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(safetensors(SIZES))
    before = model(tmp_path)
    weights.write_bytes(safetensors(SIZES, changed))
    assert model(tmp_path) != before


@pytest.mark.parametrize("tensors", [0, 1, MAX_TENSORS, MAX_TENSORS + 1, 3 * MAX_TENSORS])
def test_number_of_sampled_tensors_is_limited(tmp_path: Path, tensors: int) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(safetensors([10] * tensors))
    with pa.OSFile(str(file)) as opened:
        ranges = file_identity._tensors(opened, opened.size())
    assert min(tensors, MAX_TENSORS // 2) < len(ranges) <= MAX_TENSORS + 1
    assert ranges[0] == (0, file.stat().st_size - 10 * tensors)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"no",
        (2).to_bytes(8, "little") + b"{}",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        safetensors([10]).replace(b"[0, 10]", b"[-1, 9]"),
        safetensors([10]).replace(b"[0, 10]", b"[9, -1]"),
        safetensors([10]).replace(b"[0, 10]", b"[0,9e9]"),
        b"PK\x03\x04",
    ],
)
def test_damaged_large_file_is_sampled(tmp_path: Path, start: bytes) -> None:
    """Loading it fails with a better message."""
    (tmp_path / "model.safetensors").write_bytes(start + bytes(LARGE))
    assert len(model(tmp_path)) == 1


def archive(path: Path, value: int) -> None:
    """Write an archive as torch.save does: without compression, one member for each tensor. The
    samples at its end do not hold the beginning of its directory."""
    with ZipFile(path, "w") as file:
        file.writestr("data/0", bytes(2 * SAMPLE_BYTES - 200))
        file.writestr("data/1", bytes([value]) * 10)
        file.writestr("data/2", bytes(LARGE))
        for number in range(3, 2000):
            file.writestr(f"data/{number:0100}", b"0")


def test_each_member_of_a_large_archive_counts(tmp_path: Path) -> None:
    found = set()
    for value in (0, 1):
        archive(tmp_path / "model.pt", value)
        found.add(model(tmp_path)["steps[0].model: file model.pt"])
    assert len(found) == 2


def own_class(**arguments: Any) -> dict[str, str]:
    return code(python={"callable": "own_pack.deep:Value", **arguments})


def test_modules_of_constructor_refs_count(modules: Path) -> None:
    found = own_class(constructorRefs={"f": "own_part:f", "g": "numpy:sqrt"})
    assert found.keys() == {
        "steps[0].python: package numpy",
        *(f"steps[0].python: module {name}" for name in USED),
    }
    (modules / "own_helper.py").write_text("A = 2\n")
    changed = own_class(constructorRefs={"f": "own_part:f", "g": "numpy:sqrt"})
    assert {name for name in found if found[name] != changed[name]} == {
        "steps[0].python: module own_helper.py"
    }


def files_in(found: dict[str, str]) -> list[str]:
    return [name.partition("steps[0].python")[2] for name in found if ": file " in name]


def test_files_of_constructor_args_count(modules: Path) -> None:
    """A file counts, and a directory with weights."""
    for name in ("net/model.safetensors", "net/sub/labels.json", "head.pkl", "cache/x/model.bin"):
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (modules / name).write_text("1")
    arguments: dict[str, Any] = {name: str(modules / name) for name in ("net", "cache", "nothing")}
    arguments |= {"head": str(modules / "head.pkl"), "text": "head.pkl", "root": "/", "rate": 0.5}
    found = own_class(constructorArgs=arguments)
    assert files_in(found) == [
        ".constructorArgs.net: file model.safetensors",
        ".constructorArgs.net: file sub/labels.json",
        ".constructorArgs.head: file head.pkl",
    ]
    (modules / "head.pkl").write_text("2")
    changed = own_class(constructorArgs=arguments)
    assert files_in({name: "" for name in found if found[name] != changed[name]}) == [
        ".constructorArgs.head: file head.pkl"
    ]


def test_mounted_secret_does_not_count(modules: Path) -> None:
    """Kubernetes replaces it while a job runs."""
    (modules / "..2026_01").mkdir()
    (modules / "..2026_01" / "token").write_text("1")
    (modules / "..data").symlink_to("..2026_01")
    (modules / "token").symlink_to("..data/token")
    assert files_in(own_class(constructorArgs={"token": str(modules / "token")})) == []


@pytest.mark.parametrize("linked", [False, True])
def test_file_of_a_directory_for_secrets_does_not_count(
    modules: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """Docker mounts secrets there without links."""
    secrets = modules / "secrets"
    put(secrets, "key.pem", "model.bin")
    if linked:
        (modules / "links").mkdir()
        (modules / "links" / "model.bin").symlink_to(secrets / "model.bin")
    monkeypatch.setattr(argument_files, "SECRETS", (f"{secrets}/",))
    arguments = {
        "key": f"{secrets}/key.pem",
        "net": f"{modules}/links",
        "all": f"{modules}//secrets",
    }
    assert own_class(constructorArgs=arguments).keys() == own_class().keys()


def test_file_that_is_a_mount_point_does_not_count(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a subPath, Kubernetes mounts a single file of a Secret without links."""
    put(modules / "net", "model.bin", "token.txt")
    mounted = str(modules / "net" / "token.txt")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == mounted)
    found = own_class(constructorArgs={"net": str(modules / "net"), "token": mounted})
    assert files_in(found) == [".constructorArgs.net: file model.bin"]


def put(directory: Path, *names: str) -> None:
    """Write files, each with its name as its content."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)


NET = "steps[0].python.constructorArgs.net"


def net_of(modules: Path) -> dict[str, str]:
    """Return the hashes of the directory `net`, which is a constructor argument."""
    found = own_class(constructorArgs={"net": str(modules / "net")})
    return {name.removeprefix(f"{NET}: "): found[name] for name in found if NET in name}


LEFT_OUT = {"other files": "not compared"}


def test_only_files_of_a_model_count_in_a_directory(modules: Path) -> None:
    names = ("model.bin", "config.json", "1/pool.json", "1/2/vocab.txt")
    others = ("train.csv", ".git/a.json", "1/2/3/deep.json", "1/run.log")
    put(modules / "net", *names, *others)
    (modules / "net" / "again").symlink_to(modules / "net")
    (modules / "net" / "gone.json").symlink_to("nothing")
    (modules / "net" / "1" / "linked.bin").symlink_to(modules / "net" / "model.bin")
    assert sorted(net_of(modules)) == sorted(f"file {name}" for name in (*names, "1/linked.bin"))


def test_number_of_hashed_files_is_limited(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_files, "MAX_FILES", 2)
    put(modules / "net", "a.bin", "b.bin")
    before = net_of(modules)
    assert before.keys() == {"file a.bin", "file b.bin"}
    put(modules / "net", "c.bin")
    assert net_of(modules) == before | LEFT_OUT


def test_number_of_listed_files_is_limited(modules: Path) -> None:
    put(modules / "net", "a.bin", *(f"sub/{number}" for number in range(10)))
    for most, entries in ((12, 12), (11, 12), (2, 3), (1, 2)):
        argument = ArgumentFiles(str(modules / "net"), max_entries=most)
        argument.find()
        assert (argument.complete, argument.entries) == (most == 12, entries)


def refuse(path: str) -> Any:
    raise PermissionError(path)


@pytest.mark.parametrize("function", ["scandir", "stat"])
def test_what_cannot_be_read_does_not_count(
    modules: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """For example, only root can read lost+found."""
    put(modules / "net", "a.bin", "lost+found/b.bin")
    refused, allowed = "b.bin" if function == "stat" else "lost+found", getattr(os, function)

    def read(path: Any, *args: Any, **options: Any) -> Any:
        return (refuse if str(path).endswith(refused) else allowed)(path, *args, **options)

    monkeypatch.setattr(os, function, read)
    assert net_of(modules).keys() == {"file a.bin", *LEFT_OUT}


@pytest.mark.parametrize("directory", [True, False])
def test_file_that_cannot_be_hashed_does_not_count(
    modules: Path, monkeypatch: pytest.MonkeyPatch, directory: bool
) -> None:
    put(modules, "net/a.bin" if directory else "net")
    monkeypatch.setattr(file_identity, "_hash", lambda file, _: refuse(file.path))
    assert net_of(modules) == LEFT_OUT


@pytest.mark.parametrize("path", ["/a\0b", "/" + "a" * 300, "/" + "a/" * 3000])
def test_path_that_cannot_exist_does_not_count(path: str) -> None:
    assert set(code_identity._hashes_of_argument(path)) <= set(LEFT_OUT)


def test_name_that_is_no_text_is_escaped(modules: Path) -> None:
    put(modules / "net", "a.bin")
    (modules / "net" / os.fsdecode(b"\xff.bin")).touch()
    assert net_of(modules).keys() == {"file a.bin", r"file \xff.bin"}


def test_only_files_that_were_hashed_at_the_start_are_compared(
    modules: Path, tmp_path: Path
) -> None:
    """The step itself may download them."""
    place = Location(str(tmp_path / "code.json"))
    arguments = {"constructorArgs": {"net": str(modules / "net")}}
    write_code(place, own_class(**arguments))
    put(modules / "net", "a.bin")
    begun = own_class(**arguments)
    assert len(files_in(begun)) == 1
    assert changed_code(place, begun) == ""
    write_code(place, begun)
    put(modules / "net", "b.bin", "sub/c.json")
    assert changed_code(place, own_class(**arguments)) == ""
    (modules / "net" / "a.bin").write_text("2")
    assert f"{NET}: file a.bin changed" in changed_code(place, own_class(**arguments))
    (modules / "net" / "a.bin").unlink()
    assert "to none)" in changed_code(place, own_class(**arguments))


def test_files_that_could_not_be_hashed_are_not_compared(tmp_path: Path) -> None:
    place = Location(str(tmp_path / "code.json"))
    some, left_out = {f"{NET}: file a.bin": "1"}, {f"{NET}: other files": "not compared"}
    for stored, now in product((some, left_out, some | left_out), repeat=2):
        write_code(place, stored)
        assert changed_code(place, now) == ""
        other = {name.replace(".net", ".other"): value for name, value in left_out.items()}
        lost = f"{NET}: file a.bin" in stored
        assert bool(changed_code(place, other)) == lost
    write_code(place, some | left_out)
    assert changed_code(place, {f"{NET}: file a.bin": "2"} | left_out)


@pytest.mark.parametrize("name", ["steps[0].model: file a.bin", "steps[0].python: module a.py"])
def test_new_files_of_a_model_and_new_modules_count(tmp_path: Path, name: str) -> None:
    place = Location(str(tmp_path / "code.json"))
    write_code(place, {})
    assert "from none to 1)" in changed_code(place, {name: "1"})


def test_model_of_the_hub_counts_by_its_spec() -> None:
    assert model("org/name") == {}


def test_changes_are_named(tmp_path: Path) -> None:
    place = Location(str(tmp_path / "code.json"))
    assert changed_code(place, {"a": "1"}) == ""  # written by an earlier version
    write_code(place, {"a": "1" * 64, "b": "2"})
    assert changed_code(place, {"a": "1" * 64, "b": "2"}) == ""
    changed = "a changed since the output was begun (from 11111111 to none), and so did 1 more"
    assert changed_code(place, {"b": "3"}) == changed


def test_only_what_an_earlier_version_has_hashed_is_compared(tmp_path: Path) -> None:
    """It took other samples of files, and left out constructorRefs."""
    place = Location(str(tmp_path / "code.json"))
    of_file = "steps[0].model: file a.bin"
    place.write(dump_checksummed({"code": {"steps[0].python: module a.py": "1", of_file: "1"}}))
    now = {"steps[0].python: module a.py": "1", of_file: "2", "steps[0].python: module b.py": "3"}
    assert changed_code(place, now) == ""
    assert "module a.py changed" in changed_code(place, now | {"steps[0].python: module a.py": "2"})
    assert "module a.py changed" in changed_code(place, {})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"code": {"a": 1}}'])
def test_damaged_hashes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "code.json").write_bytes(content)
    with pytest.raises(BadOutput, match=r"code\.json' is damaged"):
        changed_code(Location(str(tmp_path / "code.json")), {})

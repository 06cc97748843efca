"""Hashes the code and the model files of a job, to detect changes.

The spec contains only the names of modules and models. So each pass also stores hashes of their
files with the output. Models of the Hugging Face Hub are identified by the name and revision in the
spec, and installed packages by their version."""

import ast
import hashlib
import json
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.kinds import RUNTIMES
from batchinference.pipeline.runtimes.model_files import commit_of, is_path
from batchinference.pipeline.steps.import_path import spec_of
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.spec.addresses import expanded, is_local
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.models import Model
from batchinference.spec.step_facts import StepFacts
from batchinference.spec.steps import to_alias
from batchinference.version import __version__

_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
SAMPLES, SAMPLE_BYTES = 64, 64 << 10
"""To be fast, `code_of` hashes only SAMPLES parts of SAMPLE_BYTES and the end of a large file."""
READ_THREADS, READ_BYTES = 16, 8 << 20
_WITHOUT_EFFECT = (
    *("inputs", "output", "details", "storage", "revision"),
    *("api_key_env", "headers_from", "requests_per_second", "timeout", "row_timeout", "retries"),
)
"""Settings of models that do not change results, or that `model_digest` hashes in another way."""


def code_of(spec: BatchInferenceSpec) -> dict[str, str]:
    """Return the hash of each module and model file that the steps use, and the version of each
    installed package. Example of a key: `steps[0].python: module own.py`."""
    hashes: dict[str, str] = {}
    for index, step in enumerate(spec.steps):
        where = f"steps[{index}].{to_alias(step.kind)}"
        hashes |= {f"{where}: {name}": value for name, value in _hashes_of(step.facts)}
    return hashes


def model_digest(model: Model, device: Device) -> str:
    """Return a hash of a model's files and settings, library versions and device. Equal hashes mean
    equal results for equal inputs. Raises ModelLoad if the commit of a Hub model is unknown."""
    facts = model.facts
    settings = model.model_dump(mode="json", exclude_defaults=True, exclude=set(_WITHOUT_EFFECT))
    adapters = [] if getattr(model, "lora_path", None) else getattr(model, "lora_adapters", [])
    sources = [*facts.model_files, *adapters]
    hub = [source for source in sources if is_local(source) and not is_path(source)]
    if not hub:
        settings.pop("source", None)
    files, revision = (*model.HUB_FILES, "adapter_config.json"), getattr(model, "revision", None)
    # not sorted, because a model generates the fields of an answer in the order of the schema
    schema = json.dumps(settings.pop("answer_schema", None))
    packages = ("torch", "transformers", "tokenizers", RUNTIMES[model.runtime].library)
    known = {
        "settings": settings,
        "schema": schema,
        "inputs": sorted(model.inputs),
        "outputs": len(model.extra_outputs),
        "files": sorted(_hashes_of(facts, sampled=False)),
        "commits": [commit_of(source, files, revision) for source in hub],
        "versions": [__version__, *(_package_version(name) for name in packages)],
        "device": device.used_name,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _hashes_of(facts: StepFacts, *, sampled: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of each module and model file that a step uses."""
    for path in facts.modules:
        yield from hashes_of_module(path).items()
    for address in facts.model_files:
        if is_path(address):
            local = str(expanded(address))
            yield from _hashes_of_files(Location(local, facts.storage), sampled)
        elif not is_local(address):  # otherwise, it is a model of the Hub
            yield from _hashes_of_files(Location(address, facts.storage), sampled)


def hashes_of_module(path: str) -> dict[str, str]:
    """Return the hashes, by name, of a module (`module:name`) and of all modules that it imports,
    also indirectly. Modules outside the directory of its top-level module are left out.

    Return only the version of an installed package; if it is unknown, the hashes of its modules."""
    module = path.partition(":")[0]
    top = module.partition(".")[0]
    spec = spec_of(top)
    if spec is None or not (spec.submodule_search_locations or spec.has_location):
        return {}
    packages = list(spec.submodule_search_locations or [])
    root = Path(packages[0] if packages else spec.origin or "").parent
    installed = root == _STANDARD_LIBRARY or any(root.glob("*.dist-info"))
    if installed and (version := _package_version(top)):
        return {f"package {top}": version}
    hashes: dict[str, str] = {}
    unread = [module]
    while unread:
        name = unread.pop()
        file = _file_of(root, name)
        if file is None or (key := f"module {file.relative_to(root)}") in hashes:
            continue
        content = file.read_bytes()
        hashes[key] = hashlib.sha256(content).hexdigest()
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        names = [name.rpartition(".")[0], *_imported_names(content, package)]
        unread += [name for name in names if not installed or name.partition(".")[0] == top]
    return hashes


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # the distribution has another name, or there is none
        return None


def _file_of(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"), *root.glob(f"{module}.*.so"))
    return next((file for file in candidates if module and file.is_file()), None)


@cache
def _imported_names(content: bytes, package: str) -> list[str]:
    """Return the full names of the modules and other objects that code in a package imports."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return []  # the import of this code fails with a better message
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join(filter(None, [*(parents if node.level else []), node.module]))
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def _hashes_of_files(root: Location, sampled: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of a file, or of each file below a directory. Hidden files and
    directories are skipped. Reads several files at once."""
    info = root.info()
    infos = [info] if info.is_file else root.files(recursive=True)
    names = [base_name(info.path)] if info.is_file else [root.relative(one.path) for one in infos]
    files = {
        f"file {name}": root.at(one.path)
        for name, one in zip(names, infos, strict=True)
        if not any(part.startswith(".") for part in name.split("/"))
    }
    hashed = partial(_hash_of_file, sampled=sampled)
    with ThreadPoolExecutor(READ_THREADS) as pool:
        yield from zip(files, pool.map(hashed, files.values()), strict=True)


def _hash_of_file(file: Location, *, sampled: bool) -> str:
    """Return a hash of the size and the content of a file. With `sampled`, only samples of a large
    file are hashed, at equal distances."""
    with file.filesystem.open_input_file(file.path) as opened:
        size = opened.size()
        starts = [size * number // SAMPLES for number in range(SAMPLES)]
        samples = [(SAMPLE_BYTES, start) for start in [*starts, size - SAMPLE_BYTES]]
        everything = [(READ_BYTES, start) for start in range(0, size, READ_BYTES)]
        digest = hashlib.sha256(str(size).encode())
        for part in samples if sampled and size > SAMPLES * SAMPLE_BYTES else everything:
            digest.update(opened.read_at(*part))
    return digest.hexdigest()

"""`run --address` on an existing Ray cluster that requires a token."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from PIL import Image
from ray._private.runtime_env.packaging import create_package

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution import ray_connection
from batchinference.pipeline.execution.ray_connection import environment_with_modules
from plugins.messages import Messages
from support.jobs.command import PROGRAM, Command, wait_until
from support.jobs.on_ray import job_document, write_lines
from support.outputs.rows import rows_of

pytestmark = [pytest.mark.timeout(600)]
TOKEN = secrets.token_hex(32)
STEP = {"name": "up", "python": {"callable": "steps:up"}}
STEPS = """
from letters import up as up_one

def up(batch):
    return {"up": [up_one(text) for text in batch["text"]]}
"""
PLACES = """
import ray

def node(batch, column):
    return {**batch, column: [ray.get_runtime_context().get_node_id()] * len(batch["image"])}

def before(batch):
    return node(batch, "before")

def after(batch):
    return node(batch, "after")

class See:
    def __call__(self, batch):
        return node(batch, "see")
"""
FAULTY = """
import os, ray

class See:
    def __init__(self, file):
        os.environ["BATCHINFERENCE_NODE"] = "gpu-1"
        self.node = ray.get_runtime_context().get_node_id()
        try:
            open(file, "x").write(self.node)
        except FileExistsError:
            pass
        self.is_faulty = open(file).read() == self.node

    def __call__(self, batch):
        if self.is_faulty and "3" in batch["text"]:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return {**batch, "node": [self.node] * len(batch["text"])}
"""

KILLING = """
import os, pathlib, ray, time

class See:
    def __init__(self, directory):
        self.node = ray.get_runtime_context().get_node_id()
        self.directory = pathlib.Path(directory)
        with (self.directory / "loads").open("a") as loads:
            loads.write(self.node + "\\n")
        wait_until(lambda: len({*self.loads()}) == 2)  # one on each node

    def loads(self):
        return (self.directory / "loads").read_text().split()

    def __call__(self, batch):
        (text,), victim, faulty = batch["text"], self.directory / "victim", self.loads()[0]
        if self.node == faulty:
            if not victim.exists():
                victim.write_text(str(text))
            if victim.read_text() == text:
                os._exit(1)
        else:  # the other one must not start here
            wait_until(lambda: self.loads().count(faulty) >= 4)
        return {**batch, "node": [self.node]}

def wait_until(condition):
    while not condition():
        time.sleep(0.05)
"""
"""A step that ends its process at the first row that it gets on the first node, and only there."""


@contextmanager
def started(files: str, *arguments: str, group: str) -> Iterator[None]:
    """Start a node of a Ray cluster with a token, for a worker group. It finds no modules."""
    command = [
        *(str(PROGRAM.with_name("ray")), "start", "--block", "--disable-usage-stats"),
        *(f"--labels=batchinference.dev/group={group}", "--object-store-memory=100000000"),
    ]
    env = {**os.environ, "HOME": f"{files}/home", "RAY_AUTH_TOKEN": TOKEN,
           "RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}  # fmt: skip
    log = Path(files) / group
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *arguments], cwd=files, env=env, stdout=output, stderr=output
        )
    try:
        wait_until(lambda: "Ray runtime started" in log.read_text(), log.name, 300)
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """Yield the address of a Ray cluster with a node for CPU work and a node with a device."""
    with tempfile.TemporaryDirectory(prefix="ray-") as files:
        (Path(files) / "home").mkdir()
        alone = ["--head", "--port=0", "--include-dashboard=false", f"--temp-dir={files}/r"]
        with started(files, *alone, "--num-cpus=3", group="cpu"):
            address = (Path(files) / "r" / "ray_current_cluster").read_text().strip()
            device = [f"--address={address}", "--num-cpus=4", '--resources={"NPU": 1}']
            with started(files, *device, group="see"):
                yield address


def job_in(directory: Path) -> None:
    """Write a job, its input and its modules. One of the modules is a package."""
    source = write_lines(directory / "in", {"a.txt": ["x", "y"]})
    job = job_document("remote", source, directory / "out", steps=[STEP])
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    (directory / "steps.py").write_text(STEPS)
    (directory / "letters").mkdir()
    (directory / "letters" / "__init__.py").write_text("up = str.upper\n")


@pytest.mark.long("remote")
def test_job_with_modules_runs_on_a_ray_that_requires_a_token(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    job_in(tmp_path)
    run = ["run", "--address", head, "job.yaml"]
    refused = Command(run, tmp_path, {"RAY_AUTH_TOKEN": secrets.token_hex(32)}).run(timeout=300)
    assert refused.returncode == 1
    messages.check(refused.stderr.splitlines())
    done = Command(run, tmp_path, {"RAY_AUTH_TOKEN": TOKEN}).run(timeout=300)
    assert done.returncode == 0, done.stderr
    assert [row["up"] for row in rows_of(tmp_path / "out")] == ["X", "Y"]
    assert "INFO" not in done.stderr


@pytest.mark.long("remote")
def test_decoding_does_not_occupy_the_node_of_a_device(head: str, tmp_path: Path) -> None:
    """It has free CPUs, and the other node has more work than CPUs."""
    (tmp_path / "in").mkdir()
    for number in range(30):
        Image.new("RGB", (400, 300)).save(tmp_path / "in" / f"{number}.png")
    see = {"python": {"callable": "places:See"}, "resources": {"custom": {"NPU": 1}}}
    steps = [
        {"name": "before", "python": {"callable": "places:before"}},
        {"name": "see", **see, "batchSize": 4},
        {"name": "after", "python": {"callable": "places:after"}},
        {"name": "slim", "dropColumns": ["image"]},
    ]
    source = str(tmp_path / "in")
    job = job_document("places", source, tmp_path / "out", steps=steps, read={"format": "images"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "places.py").write_text(PLACES)
    run = ["run", "--address", head, "job.yaml"]
    done = Command(run, tmp_path, {"RAY_AUTH_TOKEN": TOKEN}).run(timeout=300)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 30
    (on_cpus,) = {node for row in rows for node in (row["before"], row["after"])}
    (on_device,) = {row["see"] for row in rows}
    assert on_cpus != on_device


@pytest.mark.long("remote")
@pytest.mark.parametrize("spare", [True, False])
def test_node_of_a_faulty_device_is_left_out(head: str, tmp_path: Path, *, spare: bool) -> None:
    """The rows are not to blame, and neither is the job, which other nodes can run."""
    source = write_lines(tmp_path / "in", {f"{n}.txt": [str(n)] for n in range(9)})
    see = {"callable": "faulty:See", "constructorArgs": {"file": str(tmp_path / "node")}}
    resources = {"resources": {"custom": {"NPU": 1}}, "batchSize": 1}
    steps = [{"name": "see", "python": see, **resources}]
    job = job_document("job", source, tmp_path / "out", steps=steps, errors={"maxRows": 9})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "faulty.py").write_text(FAULTY)
    node = [f"--address={head}", "--num-cpus=4", '--resources={"NPU": 1}']
    (tmp_path / "home").mkdir()
    with started(str(tmp_path), *node, group="see") if spare else nullcontext():
        run = ["run", "--address", head, "job.yaml"]
        done = Command(run, tmp_path, {"RAY_AUTH_TOKEN": TOKEN}).run(timeout=300)
    assert done.returncode == (0 if spare else 1), done.stderr
    rows = rows_of(tmp_path / "out")
    report = json.loads((tmp_path / "out" / "_batchinference" / "report.json").read_text())
    assert report["faultyNodes"] == ["gpu-1"]
    assert not (tmp_path / "out" / "_batchinference" / "errors").exists()
    if spare:
        assert sorted(str(row["text"]) for row in rows) == [str(n) for n in range(9)]
        assert {row["node"] for row in rows if row["text"] == "3"} != {
            (tmp_path / "node").read_text()
        }
    else:
        assert "3" not in {row["text"] for row in rows}
        assert report["reason"] == "DeviceFailed"
        assert "uncorrectable ECC error encountered" in done.stderr
        assert "the node gpu-1 failed" in done.stderr


@pytest.mark.long("remote")
def test_node_that_kills_processes_is_left_out_of_the_next_pass(head: str, tmp_path: Path) -> None:
    """Each node has an actor. The row at which processes die on one node is computed on the other
    one."""
    texts = [str(number) for number in range(9)]
    source = write_lines(tmp_path / "in", {f"{text}.txt": [text] for text in texts})
    see = {"callable": "killing:See", "constructorArgs": {"directory": str(tmp_path)}}
    resources = {"resources": {"custom": {"NPU": 1}}, "replicas": {"min": 2, "max": 2}}
    steps = [{"name": "see", "python": see, **resources, "batchSize": 1}]
    read = {"options": {"overrideNumBlocks": len(texts)}}
    job = job_document(
        "job", source, tmp_path / "out", steps=steps, read=read, errors={"maxRows": 9}
    )
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "killing.py").write_text(KILLING)
    (tmp_path / "home").mkdir()
    node = [f"--address={head}", "--num-cpus=4", '--resources={"NPU": 1}']
    with started(str(tmp_path), *node, group="see"):
        run = ["run", "--address", head, "job.yaml"]
        done = Command(run, tmp_path, {"RAY_AUTH_TOKEN": TOKEN}).run(timeout=300)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / "_batchinference" / "errors").exists()
    nodes = {str(row["text"]): row["node"] for row in rows_of(tmp_path / "out")}
    assert sorted(nodes) == texts
    loads = (tmp_path / "loads").read_text().split()
    # each load after the first one follows a death
    faulty, victim = loads[0], (tmp_path / "victim").read_text()
    assert nodes[victim] != faulty
    assert (loads.count(faulty), loads[-1] != faulty) == (4, True)


def test_unreachable_address_is_reported(messages: Messages) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with messages.raises(JobFailure), ray_connection.remote_ray(address, None, quiet=False):
            pass


@pytest.mark.parametrize(
    ("here", "variables", "sent"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"RAY_AUTH_TOKEN": "a"}, True),
        (False, {"RAY_AUTH_TOKEN_PATH": "a"}, True),
    ],
)
def test_token_in_a_file_is_not_sent_to_another_machine(
    here: bool, variables: dict[str, str], sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ray_connection, "_probe_address", lambda _: here)
    monkeypatch.setattr(ray_connection, "maybe_enable_token_auth_if_token_available",
                        lambda **_: asked.append(True))  # fmt: skip
    monkeypatch.setattr(ray_connection.ray, "init", lambda **_: None)
    monkeypatch.setattr(ray_connection.ray, "nodes", list)
    monkeypatch.setattr(ray_connection.ray, "shutdown", lambda: None)
    with ray_connection.remote_ray("head:6379", None, quiet=False) as nodes:
        assert nodes == []
    assert bool(asked) == sent


def test_modules_are_sent_and_nothing_else(tmp_path: Path) -> None:
    job_in(tmp_path)
    for name in (
        "[1].csv",
        "letters/labels.txt",
        "letters/__pycache__/x.pyc",
        "letters/.env",
        "notes/a.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "letters" / ".#up.py").symlink_to("someone@host.1")  # the lock file of an editor
    environment = environment_with_modules(str(tmp_path))
    assert environment is not None
    package = tmp_path.with_suffix(".zip")
    excludes = environment["excludes"]
    create_package(str(tmp_path), package, include_gitignore=True, excludes=excludes)
    assert sorted(ZipFile(package).namelist()) == [
        "letters/__init__.py", "letters/labels.txt", "steps.py"]  # fmt: skip
    assert environment_with_modules(str(tmp_path / "in")) is None

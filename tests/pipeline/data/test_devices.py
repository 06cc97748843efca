"""Devices of replicas, the search for their number on a device, and reports of memory."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import torch

from batchinference.pipeline.errors import BadInput, JobFailure, ModelLoad, OutOfMemory
from batchinference.pipeline.execution import report_notes
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.dataset import BlockCalls, BlockReader
from batchinference.pipeline.execution.replica_search import ReplicaSearch
from batchinference.pipeline.execution.report_notes import peak_bytes
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.execution.task_resources import pool_size
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.runtimes.device import Device, device_of, torch_device
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Plan, Stage, plan_for_cluster, plan_for_machine
from batchinference.spec.steps import Step
from support.documents.minimal import model_step
from support.documents.parsed import spec_of
from support.outputs.batches import end, good, plain

NPU = {"NPU": "npu"}


GRANTED: dict[str, tuple[dict[str, Any], dict[str, str], Device]] = {
    "CPUs": ({}, {}, Device("cpu", 1, 3)),
    "a GPU": ({"gpus": 1}, {}, Device("cuda", 1, 3)),
    "GPUs": ({"gpus": 4}, {}, Device("cuda", 4, 3)),
    "a part of a GPU": ({"gpus": 0.25}, {}, Device("cuda", 1, 3, 0.25)),
    "GPUs of another kind": ({"gpus": 1}, {"GPU": "xpu"}, Device("xpu", 1, 3)),
    "an NPU": ({"custom": {"NPU": 1}}, NPU, Device("npu", 1, 3)),
    "NPUs": ({"custom": {"NPU": 8}}, NPU, Device("npu", 8, 3)),
    "no device": ({"custom": {"licence": 1}}, {}, Device("cpu", 1, 3)),
    "another kind": ({"custom": {"licence": 1}}, NPU, Device("cpu", 1, 3)),
    "GPUs before NPUs": ({"gpus": 1, "custom": {"NPU": 2}}, NPU, Device("cuda", 1, 3)),
    "machine without devices": ({}, {"GPU": "cuda", **NPU}, Device("cpu", 1, 3)),
}


def test_granted_resources_decide_the_device() -> None:
    for case, (granted, kinds, device) in GRANTED.items():
        assert device_of(cpus=3.5, kinds=kinds, **granted) == device, case


def test_threads_are_whole_cpus_and_at_least_one() -> None:
    threads = {0.5: 1, 1: 1, 1.9: 1, 2: 2, 7.5: 7}
    assert {cpus: device_of(cpus=cpus).threads for cpus in threads} == threads


@pytest.mark.usefixtures("counted_gpus")
@pytest.mark.parametrize(("result", "name"), [(True, "cuda:0"), (False, "cpu")])
def test_gpus_are_simulated_if_pytorch_finds_none(
    monkeypatch: pytest.MonkeyPatch, result: bool, name: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: result)
    assert Device("cuda").used_name == str(torch_device(Device("cuda"))) == name


def test_pytorch_gets_the_part_of_the_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fractions: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    for gpus in (1, 2, 0.25):
        torch_device(device_of(cpus=1, gpus=gpus))
    assert fractions == [0.25]


def test_unusable_device_is_rejected() -> None:
    for kind, reason in (
        ("npu", "given the device 'npu', for which PyTorch needs the package torch_npu"),
        ("abacus", "does not know the kind of device 'abacus', which a profile names"),
    ):
        with pytest.raises(ModelLoad, match=reason):
            torch_device(Device(kind))


@pytest.fixture
def searched_modules(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the modules that Python searches for during the test."""
    names: list[str] = []

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            names.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    return names


@pytest.mark.usefixtures("counted_gpus")
@pytest.mark.parametrize("device", [Device(), Device("cuda"), Device("meta")], ids=str)
def test_torch_npu_is_imported_for_npus_only(searched_modules: list[str], device: Device) -> None:
    assert isinstance(torch_device(device), torch.device)
    assert "torch_npu" not in searched_modules
    with pytest.raises(ModelLoad):
        torch_device(Device("npu"))
    assert "torch_npu" in searched_modules


AUTO = {"resources": {"gpu": 1}, "replicasPerDevice": "auto"}


def plan_of(*names: str, limit: int = 4, gpus: int = 2) -> Plan:
    steps = [model_step(name, replicas={"max": limit}, **AUTO) for name in names]
    return plan_for_machine(spec_of(steps=steps), gpus=gpus)


def notes(step: str, *rates: float) -> list[tuple[str, str]]:
    """Return the notes of replicas that compute so many rows per second, of two seconds."""
    return [
        (step, json.dumps({"rows": 2 * rate, "seconds": 1.0, "compute_seconds": 1.5,
                           "wait_seconds": 0.4, "blocked_seconds": 0.1}))
        for rate in rates
    ]  # fmt: skip


def parts(search: ReplicaSearch, plan: Plan) -> list[float]:
    return [stage.gpus for stage in search.with_replicas(plan).stages]


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [([10, 5], 1), ([10, 5.4], 1), ([10, 9, 6], 2), ([10, 9, 8, 6], 3), ([10, 10, 10, 10], 4)],
    ids=str,
)
def test_replicas_are_added_while_the_device_gets_faster(rates: list[float], chosen: int) -> None:
    """A rate is that of each replica."""
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=True)
    for number, rate in enumerate(rates, start=1):
        assert search.step == "embed"
        assert parts(search, plan) == [int(10_000 / number) / 10_000]
        search.record(notes("embed", *[rate] * number))
    assert search.step is None
    assert parts(search, plan) == [int(10_000 / chosen) / 10_000]
    ((_, note),) = search.take_notes()
    assert json.loads(note) == {"replicas_per_device": chosen}


def test_pass_without_results_of_the_step_is_repeated() -> None:
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=True)
    search.record([("read", json.dumps({"rows": 9, "seconds": 1.0}))])
    assert (search.step, parts(search, plan)) == ("embed", [1])


def test_steps_are_measured_one_after_another() -> None:
    plan = plan_of("a", "b", limit=2)
    search = ReplicaSearch.of(plan, repeatable=True)
    search.record(notes("a", 10))
    assert parts(search, plan) == [0.5, 1]
    search.record(notes("a", 10, 10))
    assert (search.step, parts(search, plan)) == ("b", [0.5, 1])


@pytest.mark.parametrize("failure", [ModelLoad("x"), OutOfMemory("x"), JobFailure("x")], ids=repr)
def test_replicas_that_do_not_fit_are_one_less(failure: JobFailure) -> None:
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=True)
    assert not search.retries_with_fewer(failure)
    search.record(notes("embed", 10))
    assert not search.retries_with_fewer(BadInput("x"))
    assert search.retries_with_fewer(failure)
    assert (search.step, parts(search, plan)) == (None, [1])


def test_source_that_cannot_be_read_again_has_one_replica() -> None:
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=False)
    assert (search.step, parts(search, plan)) == (None, [1])


def test_machine_without_devices_measures_nothing() -> None:
    plan = plan_of("embed", gpus=0)
    assert ReplicaSearch.of(plan, repeatable=True).step is None


@pytest.mark.parametrize(("chosen", "size"), [(1, (1, 2)), (2, (2, 4)), (4, (3, 8))])
def test_pool_has_the_chosen_number_on_each_device(chosen: int, size: tuple[int, int]) -> None:
    step = model_step("embed", replicas={"min": 3, "max": 8}, **AUTO)
    plan = plan_for_cluster(spec_of(steps=[step]))
    search = ReplicaSearch.of(plan, repeatable=True)
    for _ in range(chosen - 1):
        search.record(notes("embed", 10))
    made = search.with_replicas(plan)
    assert pool_size(made.stages[0], made) == size
    assert made.group_of(made.stages[0]) == "embed"


Peak = Callable[[int], None]


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    """Return a function that sets the peak memory of the process, in bytes."""
    return lambda size: monkeypatch.setattr(report_notes, "peak_bytes", lambda: size)


def reading() -> Iterator[RowBatch]:
    yield good(0, 0, [1, 2])
    yield end(0, 2)


def reported(notes: tuple[tuple[str, str], ...]) -> list[tuple[str, int]]:
    """Return the step and the peak bytes of each note."""
    pairs = ((step, json.loads(note)) for step, note in notes)
    return [(step, note["peak_bytes"]) for step, note in pairs if "peak_bytes" in note]


def test_peak_is_plausible() -> None:
    assert 20 << 20 < peak_bytes() < 1 << 40


def segment_of(run: str, *stages: Stage) -> Segment:
    return Segment.of(stages, ErrorHandling(False, Location("/none")), run)


def test_stage_reports_once_and_after_growth(peak: Peak) -> None:
    slim = Step.model_validate({"name": "slim", "dropColumns": ["n"]})
    calls = BlockCalls("slim", segment_of("slim", Stage("slim", (slim,))), Event())
    notes = []
    for size in (100, 100, 109, 111, 90, 130):
        peak(size)
        notes.append(reported(merged(map(decode, calls(encode(good(0, 0, [1, 2]))))).notes))
    assert notes == [[("slim", 100)], [], [], [("slim", 111)], [], [("slim", 130)]]


def test_read_task_reports_after_its_rows(peak: Peak) -> None:
    peak(100)
    (block,) = BlockReader(reading, segment_of("one"))()
    read = decode(block)
    assert reported(read.notes) == [("read", 100)]
    assert plain(replace(read, notes=())) == plain(merged(reading()))


def test_read_tasks_report_growth_and_other_runs(peak: Peak) -> None:
    notes = []
    for size, run in ((100, "two"), (105, "two"), (150, "two"), (150, "three")):
        peak(size)
        task = pickle.loads(pickle.dumps(BlockReader(reading, segment_of(run))))
        notes.append(reported(merged(map(decode, task())).notes))
    assert notes == [[("read", 100)], [], [("read", 150)], [("read", 150)]]

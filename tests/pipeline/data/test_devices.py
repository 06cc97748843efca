"""Devices of replicas. The tests need no device."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.device import Device, device_of, torch_device

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
        ("abacus", "has no devices of the kind 'abacus', which a profile names"),
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

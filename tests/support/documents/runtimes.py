"""Models of each runtime, as in a document."""

from __future__ import annotations

from typing import Any

STORAGE = {"endpoint": "http://minio.models:9000", "region": "eu-west-1", "anonymous": True}
FULL_MODELS: dict[str, dict[str, Any]] = {
    "torch": {
        "factory": "own.models:build",
        "source": "s3://models/weights.pt",
        "storage": STORAGE,
        "inputs": {"x": "x"},
        "outputName": "logits",
        "dtype": "float16",
    },
    "torch program": {
        "runtime": "torch",
        "source": "s3://models/network.pt2",
        "trustSource": True,
        "inputs": {"x": "x"},
    },
    "torchvision": {
        "arch": "resnet152",
        "weights": "IMAGENET1K_V2",
        "source": "s3://models/resnet152.pt",
        "storage": STORAGE,
        "inputs": {"image": "image"},
        "topK": 5,
        "labels": ["cat", "dog"],
        "dtype": "bfloat16",
        "options": {"num_classes": 2},
    },
    "torchvision features": {
        "runtime": "torchvision",
        "arch": "resnet18",
        "inputs": {"image": "image"},
        "features": True,
    },
    "transformers texts": {
        "runtime": "transformers",
        "task": "feature-extraction",
        "source": "org/model",
        "revision": "main",
        "inputs": {"text": "text"},
        "tooLong": "windows",
        "windowOverlap": 32,
        "nullInput": "fail",
        "emptyInput": "compute",
        "nonFinite": "keep",
        "maxTokensPerBatch": 16384,
        "dtype": "auto",
        "attention": "sdpa",
        "deviceMap": "balanced",
    },
    "transformers labels": {
        "runtime": "transformers",
        "task": "zero-shot-image-classification",
        "source": "s3://models/clip",
        "storage": STORAGE,
        "inputs": {"image": "image"},
        "candidateLabels": ["cat", "dog"],
        "topK": 2,
    },
    "transformers label": {
        "runtime": "transformers",
        "task": "text-classification",
        "source": "org/model",
        "inputs": {"text": "text"},
        "scoreOutput": "score",
    },
    "transformers chat": {
        "runtime": "transformers",
        "task": "image-text-to-text",
        "source": "org/model",
        "inputs": {"photo": "image", "title": "title"},
        "prompt": "What is '{title}'?",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hello"}],
        "images": ["photo"],
        "sampling": {"max_new_tokens": 20},
    },
    "transformers text": {
        "runtime": "transformers",
        "task": "text-generation",
        "source": "org/model",
        "inputs": {"text": "text"},
        "returnFullText": True,
        "details": "about",
    },
    "onnx": {
        "source": "s3://models/model.onnx",
        "storage": STORAGE,
        "inputs": {"x": "x"},
        "outputName": "logits",
    },
    "sentenceTransformers": {
        "source": "org/model",
        "revision": "main",
        "inputs": {"text": "text"},
        "normalize": True,
        "promptName": "query",
        "truncateDim": 256,
        "dtype": "float32",
    },
    "sentenceTransformers prompt": {
        "runtime": "sentenceTransformers",
        "source": "s3://models/minilm",
        "storage": STORAGE,
        "inputs": {"text": "text"},
        "prompt": "search: ",
    },
}
"""Valid models that together use every field of these runtimes, without `output`."""


def full_model(name: str) -> dict[str, Any]:
    return {"runtime": name, **FULL_MODELS[name], "output": "y"}

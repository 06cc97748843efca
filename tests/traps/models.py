"""Tiny models with random weights that read words `w0` to `w49`, and at most 32 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

POSITIONS = 32
_LIMIT = {"model_max_length": POSITIONS}
WORDS = [f"w{number}" for number in range(50)]
_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "initializer_range": 0.5,
}
_CONTENTS = "{{ m['content'] }} {% endfor %}"
_EACH = "{% for m in messages %}"
CHAT = _EACH + _CONTENTS
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + CHAT
)
ALTERNATING = (
    f"{_EACH}{{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}}"
    f"{{{{ raise_exception('roles must alternate') }}}}{{% endif %}}{_CONTENTS}"
)
BROKEN = f"{_EACH}{{{{ m['content'] }}}}"


def write(steps: Iterable[Mapping[str, Any]], directory: Path) -> None:
    """Write the models that these steps name by `source` below the directory of a case."""
    given = {step["model"].get("source") for step in steps if "model" in step}
    for name, make in _MODELS.items():
        if source(name) in given:
            import torch

            torch.manual_seed(0)
            folder = directory / "models" / name
            folder.mkdir(parents=True)
            make(folder)


def source(name: str) -> str:
    return f"./models/{name}"


def _tokenizer(folder: Path, *, ends: bool = True, **fields: Any) -> Any:
    """Write a tokenizer of words. With `ends`, a text begins with [CLS] and ends with [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = [*_SPECIAL.values(), "<eos>"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    template = fields.pop("chat_template", None)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **fields)
    fast.chat_template = template
    fast.save_pretrained(folder)


def _bert(kind: str, **limit: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import transformers as hf

        config = hf.BertConfig(
            **_SMALL,
            vocab_size=60,
            intermediate_size=16,
            max_position_embeddings=POSITIONS,
            id2label={0: "O", 1: "A", 2: "B"},
        )
        getattr(hf, kind)(config).save_pretrained(folder)
        _tokenizer(folder, **_SPECIAL, **limit)

    return make


def _roberta(folder: Path) -> None:
    """Write a model whose positions begin behind the number of the padding token."""
    import transformers as hf

    config = hf.RobertaConfig(
        **_SMALL,
        vocab_size=60,
        intermediate_size=16,
        max_position_embeddings=POSITIONS + 1,
        pad_token_id=0,
    )
    hf.RobertaModel(config).save_pretrained(folder)
    _tokenizer(folder, **_SPECIAL)


def _nan(folder: Path) -> None:
    """Write a model one weight of which is NaN."""
    import torch
    import transformers as hf

    _bert("BertModel", **_LIMIT)(folder)
    model = hf.BertModel.from_pretrained(folder)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    model.save_pretrained(folder)


def _gpt(kind: str, template: str | None = None) -> Callable[[Path], None]:
    """Return a function that writes a causal model without a padding token."""

    def make(folder: Path) -> None:
        import transformers as hf

        config = hf.GPT2Config(
            vocab_size=60,
            n_positions=POSITIONS,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=5,
            eos_token_id=5,
            initializer_range=0.5,
        )
        getattr(hf, kind)(config).save_pretrained(folder)
        _tokenizer(folder, ends=False, eos_token="<eos>", unk_token="[UNK]", chat_template=template)

    return make


def _tiny(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from support.models import tiny_transformers

        getattr(tiny_transformers, name)(folder)

    return make


_MODELS: dict[str, Callable[[Path], None]] = {
    "classifier": _bert("BertForSequenceClassification", **_LIMIT),
    "embedder": _bert("BertModel", **_LIMIT),
    "unlimited-embedder": _bert("BertModel"),
    "wrong-limit": _bert("BertModel", model_max_length=512),
    "roberta": _roberta,
    "nan": _nan,
    "gpt": _gpt("GPT2LMHeadModel"),
    "gpt-classifier": _gpt("GPT2ForSequenceClassification"),
    "gpt-tagger": _gpt("GPT2ForTokenClassification"),
    "gpt-embedder": _gpt("GPT2Model"),
    "no-system": _gpt("GPT2LMHeadModel", NO_SYSTEM),
    "alternating": _gpt("GPT2LMHeadModel", ALTERNATING),
    "broken": _gpt("GPT2LMHeadModel", BROKEN),
    **{
        name: _tiny(name)
        for name in ("whisper", "speech_recognizer", "audio_classifier", "encoder_decoder")
    },
}

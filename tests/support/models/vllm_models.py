"""Tiny models for the real engine of vLLM, which needs heads of 32 numbers or more."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import save_file

from support.models.tiny_transformers import CHARACTERS, CHAT, LABELS, characters, words

_SEEN = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 128, "initializer_range": 0.3}  # fmt: skip


def _llama(**fields: object) -> hf.LlamaConfig:
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    positions = {"vocab_size": len(CHARACTERS), "max_position_embeddings": 512}
    return hf.LlamaConfig(**_SEEN, **ends, **positions, **fields)


def chat(folder: Path) -> None:
    characters(chat_template=CHAT, pad_token="<pad>").save_pretrained(folder)
    hf.LlamaForCausalLM(_llama()).to(torch.bfloat16).save_pretrained(folder)


def untemplated(folder: Path) -> None:
    """Write a model without a chat template."""
    characters(pad_token="<pad>").save_pretrained(folder)
    hf.LlamaForCausalLM(_llama()).to(torch.bfloat16).save_pretrained(folder)


def classifier(folder: Path) -> None:
    characters(pad_token="<pad>").save_pretrained(folder)
    hf.LlamaForSequenceClassification(_llama(id2label=LABELS)).save_pretrained(folder)


def cross_encoder(folder: Path) -> None:
    """Write a model that reads pairs, with numbers that say which text a token belongs to."""
    tokenizer = words(folder)
    positions = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    config = hf.BertConfig(**_SEEN, **positions, num_labels=1)
    hf.BertForSequenceClassification(config).save_pretrained(folder)


def vision(folder: Path) -> None:
    """Write a chat model for texts and images that vLLM loads with new versions of transformers."""
    marks = [f"<|{name}|>" for name in ("vision_start", "vision_end", "image_pad", "video_pad")]
    template = CHAT.replace("<image>", "".join([marks[0], marks[2], marks[1]]))
    tokenizer = characters(pad_token="<pad>", chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.save_pretrained(folder)
    start, end, image, video = tokenizer.convert_tokens_to_ids(marks)
    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [4, 6, 6]}
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": 512}
    text = {**_SEEN, **size, "num_key_value_heads": 2, "rope_scaling": rope}
    seen = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
    config = hf.Qwen2VLConfig(
        text_config=text, vision_config=seen, image_token_id=image, video_token_id=video,
        vision_start_token_id=start, vision_end_token_id=end, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    made = hf.Qwen2VLForConditionalGeneration(config).to(torch.bfloat16)
    made.save_pretrained(folder)
    hf.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=56 * 56).save_pretrained(folder)


def adapter(folder: Path, seed: int) -> None:
    """Write a LoRA adapter of the chat model that changes its texts."""
    torch.manual_seed(seed)
    made = torch.Generator().manual_seed(seed)
    name = "base_model.model.model.layers.{}.self_attn.{}.lora_{}.weight"
    save_file(
        {
            name.format(layer, part, side): torch.randn(shape, generator=made)
            for layer in range(2)
            for part in ("q_proj", "v_proj")
            for side, shape in (("A", (4, 64)), ("B", (64, 4)))
        },
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8,
              "target_modules": ["q_proj", "v_proj"], "bias": "none"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


def write(name: str, folder: Path) -> str:
    """Write the model of this name with seeded weights, and return its folder."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    globals()[name](folder)
    return str(folder)

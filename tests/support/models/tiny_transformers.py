"""Tiny transformers models with seeded random weights, one for each kind of task.

Each function writes a model with its tokenizer or processor into a folder.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

LABELS = {0: "left", 1: "middle", 2: "right"}
SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<image>")
CHARACTERS = [*SPECIAL, *(letter for letter in string.printable if letter != " "), " "]
CHAT = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_SEEN = {**_SMALL, "intermediate_size": 64, "initializer_range": 0.5}
_IMAGE = {"image_size": 32, "patch_size": 8}
_SIZE = {"height": 32, "width": 32}


def characters(**fields: Any) -> hf.PreTrainedTokenizerFast:
    """Return a tokenizer of characters that begins each text with <bos>."""
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <eos> $B", special_tokens=[("<bos>", 2), ("<eos>", 3)]
    )
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{**named, **fields})


def words(folder: Path, **fields: Any) -> hf.BertTokenizer:
    letters = [*string.ascii_lowercase, *("##" + letter for letter in string.ascii_lowercase)]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "vocab.txt").write_text("\n".join(names))
    tokenizer = hf.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=64, **fields)
    tokenizer.save_pretrained(folder)
    return tokenizer


def set_template(folder: str | Path, template: str | None) -> None:
    """Give the tokenizer in a folder a chat template."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


def _bert_config(**fields: Any) -> hf.BertConfig:
    return hf.BertConfig(**_SEEN, vocab_size=57, max_position_embeddings=64, **fields)


def masked_model(folder: Path) -> None:
    words(folder)
    hf.BertForMaskedLM(_bert_config()).save_pretrained(folder)


def token_classifier(folder: Path) -> None:
    words(folder)
    config = _bert_config(id2label={0: "O", 1: "B-NAME", 2: "I-NAME"})
    hf.BertForTokenClassification(config).save_pretrained(folder)


def entailment_model(folder: Path) -> None:
    words(folder)
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    config = _bert_config(id2label=labels, label2id={name: key for key, name in labels.items()})
    hf.BertForSequenceClassification(config).save_pretrained(folder)


def sentiment_model(folder: Path) -> None:
    """Write a classifier that calls one of the texts "one", "two" and "three" POSITIVE."""
    texts = words(folder)(["one", "two", "three"], padding=True, return_tensors="pt")
    model = hf.BertForSequenceClassification(_bert_config(id2label={0: "NEGATIVE", 1: "POSITIVE"}))
    with torch.no_grad():
        *_, second, first = (model.eval()(**texts).logits @ torch.tensor([-1.0, 1.0])).sort()[0]
        model.classifier.bias[1] -= (first + second) / 2
    model.save_pretrained(folder)


def regressor(folder: Path) -> None:
    """Write a model that returns a score for a pair of texts."""
    words(folder)
    hf.BertForSequenceClassification(_bert_config(num_labels=1)).save_pretrained(folder)


def _llama_config() -> hf.LlamaConfig:
    return hf.LlamaConfig(
        **_SEEN,
        vocab_size=len(CHARACTERS),
        max_position_embeddings=512,
        bos_token_id=2,
        eos_token_id=3,
    )


def text_model(folder: Path) -> None:
    """Write a causal model without chat template and pad token."""
    characters().save_pretrained(folder)
    hf.LlamaForCausalLM(_llama_config()).save_pretrained(folder)


def chat_model(folder: Path) -> None:
    characters(chat_template=CHAT).save_pretrained(folder)
    hf.LlamaForCausalLM(_llama_config()).save_pretrained(folder)


def encoder_decoder(folder: Path) -> None:
    characters(pad_token="<pad>").save_pretrained(folder)
    config = hf.T5Config(
        vocab_size=len(CHARACTERS), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
        pad_token_id=0, eos_token_id=3, decoder_start_token_id=0, initializer_factor=5.0,
    )  # fmt: skip
    hf.T5ForConditionalGeneration(config).save_pretrained(folder)


def vision_chat(folder: Path) -> None:
    """Write a chat model for texts and images."""
    text = _llama_config()
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**_SEEN, **_IMAGE), text_config=text,
        image_token_index=SPECIAL.index("<image>"), vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )  # fmt: skip
    hf.LlavaForConditionalGeneration(config).save_pretrained(folder)
    hf.LlavaProcessor(
        image_processor=hf.CLIPImageProcessor(size=_SIZE, crop_size=_SIZE),
        tokenizer=characters(pad_token="<pad>", additional_special_tokens=["<image>"]),
        patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=CHAT,
    ).save_pretrained(folder)  # fmt: skip


def captioner(folder: Path) -> None:
    """Write a model that describes images and has no chat template."""
    ends = {"bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    text = {**_SEEN, "vocab_size": len(CHARACTERS), "max_position_embeddings": 64, **ends}
    config = hf.BlipConfig(text_config=text, vision_config={**_SEEN, **_IMAGE})
    hf.BlipForConditionalGeneration(config).save_pretrained(folder)
    tokenizer = characters(pad_token="<pad>", model_input_names=["input_ids", "attention_mask"])
    hf.BlipProcessor(hf.BlipImageProcessor(size=_SIZE), tokenizer).save_pretrained(folder)


def clip(folder: Path) -> None:
    config = hf.CLIPConfig(
        text_config={**_SEEN, "vocab_size": len(CHARACTERS), "bos_token_id": 2, "eos_token_id": 3},
        vision_config={**_SEEN, **_IMAGE},
        projection_dim=24,
    )
    hf.CLIPModel(config).save_pretrained(folder)
    hf.CLIPImageProcessor(size=_SIZE, crop_size=_SIZE).save_pretrained(folder)
    tokenizer = characters(pad_token="<pad>", model_max_length=77)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 3)]
    )
    tokenizer.save_pretrained(folder)


def siglip(folder: Path) -> None:
    config = hf.SiglipConfig(
        text_config={**_SEEN, "vocab_size": len(CHARACTERS), "projection_size": 32},
        vision_config={**_SEEN, **_IMAGE},
    )
    hf.SiglipModel(config).save_pretrained(folder)
    hf.SiglipImageProcessor(size=_SIZE).save_pretrained(folder)
    characters(pad_token="<pad>", model_max_length=64).save_pretrained(folder)


def object_detector(folder: Path) -> None:
    config = hf.YolosConfig(
        **_SEEN, image_size=[32, 32], patch_size=8, num_detection_tokens=5, id2label=LABELS
    )
    hf.YolosForObjectDetection(config).save_pretrained(folder)
    hf.YolosImageProcessor(size=_SIZE).save_pretrained(folder)


def zero_shot_detector(folder: Path) -> None:
    """Write a detector of objects with given labels."""
    config = hf.OwlViTConfig(
        text_config={**_SEEN, "vocab_size": len(CHARACTERS), "max_position_embeddings": 32},
        vision_config={**_SEEN, **_IMAGE},
        projection_dim=32,
    )
    hf.OwlViTForObjectDetection(config).save_pretrained(folder)
    hf.OwlViTImageProcessor(size=_SIZE, do_center_crop=False).save_pretrained(folder)
    characters(pad_token="<pad>", model_max_length=32).save_pretrained(folder)


def segmenter(folder: Path) -> None:
    config = hf.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
        patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
        decoder_hidden_size=16, id2label=LABELS, initializer_range=0.5,
    )  # fmt: skip
    hf.SegformerForSemanticSegmentation(config).save_pretrained(folder)
    hf.SegformerImageProcessor(size=_SIZE).save_pretrained(folder)


def depth_estimator(folder: Path) -> None:
    config = hf.GLPNConfig(
        num_encoder_blocks=4, depths=[1, 1, 1, 1], sr_ratios=[1, 1, 1, 1],
        hidden_sizes=[8, 8, 16, 16], patch_sizes=[3, 3, 3, 3], strides=[2, 2, 2, 2],
        num_attention_heads=[1, 1, 2, 2], mlp_ratios=[2, 2, 2, 2], decoder_hidden_size=16,
    )  # fmt: skip
    hf.GLPNForDepthEstimation(config).save_pretrained(folder)
    hf.GLPNImageProcessor(size_divisor=32).save_pretrained(folder)


def _wave_config(**fields: Any) -> hf.Wav2Vec2Config:
    return hf.Wav2Vec2Config(
        **_SEEN, vocab_size=len(CHARACTERS), conv_dim=[16, 16], conv_stride=[8, 8],
        conv_kernel=[16, 16], num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer", pad_token_id=0, **fields,
    )  # fmt: skip


def audio_classifier(folder: Path) -> None:
    config = _wave_config(id2label=LABELS, classifier_proj_size=16)
    hf.Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)
    hf.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)


def speech_recognizer(folder: Path) -> None:
    hf.Wav2Vec2ForCTC(_wave_config()).save_pretrained(folder)
    hf.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    hf.Wav2Vec2CTCTokenizer(
        str(folder / "vocab.json"), bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        pad_token="<pad>", word_delimiter_token="|",
    ).save_pretrained(folder)  # fmt: skip


_SPOKEN = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]
"""The special tokens of Whisper."""


def whisper(folder: Path) -> None:
    """Write a model such as Whisper that hears windows of one second instead of 30."""
    vocabulary = {
        token: number for number, token in enumerate([*string.ascii_lowercase, "\u0120", *_SPOKEN])
    }
    tokenizer = hf.WhisperTokenizer(vocab=vocabulary, merges=[], language="en", task="transcribe")
    tokenizer.add_special_tokens({"additional_special_tokens": _SPOKEN[1:]})
    tokenizer.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(51)])
    tokenizer.save_pretrained(folder)
    hf.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    ids = {token.strip("<|>"): tokenizer.convert_tokens_to_ids(token) for token in _SPOKEN}
    end = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), ids["endoftext"])
    layers = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))
    }
    config = hf.WhisperConfig(
        **layers,
        **end,
        d_model=16,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=40,
        vocab_size=len(tokenizer),
        decoder_start_token_id=ids["startoftranscript"],
        init_std=0.5,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = hf.WhisperForConditionalGeneration(config)
    model.generation_config = _whisper_generation(ids, **end)
    model.save_pretrained(folder)


def _whisper_generation(ids: dict[str, int], **end: int) -> Any:
    config = hf.GenerationConfig(
        **end, decoder_start_token_id=ids["startoftranscript"], max_length=30
    )
    fields = {
        "is_multilingual": True,
        "language": "en",
        "task": "transcribe",
        "lang_to_id": {"<|en|>": ids["en"]},
        "task_to_id": {task: ids[task] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["notimestamps"],
        "prev_sot_token_id": ids["startofprev"],
        "alignment_heads": [[0, 0]],
        "max_initial_timestamp_index": 50,
        "return_timestamps": False,
    }
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def audio_text_model(folder: Path) -> None:
    """Write a model that embeds audio and text in the same space."""
    config = hf.ClapConfig(
        text_config={**_SEEN, "vocab_size": len(CHARACTERS), "max_position_embeddings": 130},
        audio_config={"spec_size": 32, "num_mel_bins": 8, "patch_size": 4, "patch_stride": [4, 4],
                      "patch_embeds_hidden_size": 8, "depths": [1, 1],
                      "num_attention_heads": [2, 2], "window_size": 4, "hidden_size": 16,
                      "num_hidden_layers": 2},
        projection_dim=16,
    )  # fmt: skip
    hf.ClapModel(config).save_pretrained(folder)
    hf.ClapFeatureExtractor(
        feature_size=8, sampling_rate=1000, max_length_s=2, fft_window_size=64, hop_length=16,
        frequency_max=500, truncation="rand_trunc",
    ).save_pretrained(folder)  # fmt: skip
    characters(pad_token="<pad>").save_pretrained(folder)


def video_classifier(folder: Path) -> None:
    config = hf.VideoMAEConfig(
        **_SEEN, **_IMAGE, num_frames=4, tubelet_size=2, id2label=LABELS, use_mean_pooling=True
    )
    hf.VideoMAEForVideoClassification(config).save_pretrained(folder)
    size = {"shortest_edge": 32}
    hf.VideoMAEImageProcessor(size=size, crop_size=_SIZE).save_pretrained(folder)


def write(name: str, folder: Path) -> str:
    """Write the model of this name, and return its folder."""
    torch.manual_seed(0)
    globals()[name](folder)
    return str(folder)

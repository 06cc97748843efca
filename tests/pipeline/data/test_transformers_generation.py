"""Text generation by transformers models: prompts, chats, images and sampling."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes.structured_answers import InvalidAnswer
from batchinference.pipeline.runtimes.transformers.generation import Sampling
from batchinference.pipeline.runtimes.transformers.prompt_inputs import TextPrompts
from plugins.messages import Messages
from support.models.run_transformers import column, loaded, photographs, run
from support.models.tiny_transformers import CHARACTERS, CHAT, characters, set_template
from support.outputs.row_warnings import plain, run_with_warnings, tokens_in

Tiny = Callable[[str], str]
TEXTS = ["a cat", "dogs run a lot", "x", "the quick brown fox jumps over the lazy dog"]
GREEDY = {"max_new_tokens": 6}
DRAWN = {"max_new_tokens": 6, "do_sample": True, "temperature": 1.5, "seed": 7}
IMAGES = photographs((50, 40), (32, 32), (64, 64))


def continued(source: str, prompt: str, special: bool = True, **sampling: Any) -> str:
    """Return what the library's `generate` adds to one prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=special)
    output = model.generate(**tokens, **sampling)[0, tokens["input_ids"].shape[1] :]
    return str(tokenizer.decode(output, skip_special_tokens=True))


def generated(source: str, texts: list[str], **fields: Any) -> list[Any]:
    runtime = loaded("text-generation", source, ["text"], **{"sampling": GREEDY, **fields})
    return run(runtime, {"text": texts})


def test_text_is_continued(tiny: Tiny) -> None:
    for name in ("text_model", "chat_model"):
        expected = [continued(tiny(name), text, **GREEDY) for text in TEXTS]
        assert generated(tiny(name), TEXTS) == expected
        assert len(set(expected)) > 1


@pytest.fixture
def short_model(tiny: Tiny, tmp_path: Path) -> str:
    """Return a model folder: 512 learned positions, a token for each letter, an initial <bos>."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("text_model"))
    tokenizer.save_pretrained(tmp_path)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=8, n_layer=1, n_head=1, **ends
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    return str(tmp_path)


def test_prompt_and_answer_must_fit_into_the_model(
    short_model: str, tiny: Tiny, messages: Messages
) -> None:
    assert generated(short_model, ["x" * 505])
    with messages.raises(ValueError):
        generated(short_model, ["a", "x" * 511])
    # a model that computes its positions instead of learning them has no limit
    assert generated(tiny("text_model"), ["x" * 511])


def prompts(source: str, columns: dict[str, list[Any]], **fields: Any) -> tuple[list[str], Any]:
    """Return the prompts that reach the model, and the warnings about those that are cut."""
    runtime = loaded("text-generation", source, list(columns), **{"sampling": GREEDY, **fields})
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    asked = [key for batch in runtime._prompts(rows) for key in batch.keys]
    return asked, [one for one in run_with_warnings(runtime, columns)[1] if one[1] == "TextCut"]


NUMBERS = "".join(str(number % 10) for number in range(600))


@pytest.mark.parametrize("prompt", [None, "Say {text}!"])
def test_row_is_cut_to_fit_into_the_model(short_model: str, prompt: str | None) -> None:
    template = prompt or "{text}"
    room = 512 - 6 - 1 - (len(template) - len("{text}"))
    fields = {"prompt": prompt} if prompt else {}
    for policy, kept in (("truncate", NUMBERS[:room]), ("truncateLeft", NUMBERS[-room:])):
        asked, warnings = prompts(short_model, {"text": ["a", NUMBERS]}, tooLong=policy, **fields)
        assert asked == [template.format(text=text) for text in ("a", kept)], policy
        assert warnings == [(1, "TextCut", 600 - room)]


def test_longest_message_of_a_chat_is_cut(short_model: str) -> None:
    set_template(short_model, CHAT)
    turns = [{"role": "user", "content": NUMBERS}, {"role": "assistant", "content": "ok"}]
    rest = len("[user][assistant]ok")
    for given in (turns, json.dumps(turns)):
        (asked,), warnings = prompts(short_model, {"turns": [given]}, tooLong="truncateLeft")
        assert asked == f"<bos>[user]{NUMBERS[-505 + rest :]}[assistant]ok"
        assert warnings == [(0, "TextCut", 600 - 505 + rest)]


def test_prompt_without_room_is_refused(short_model: str, messages: Messages) -> None:
    long = "x" * 600 + "{text}"
    with messages.raises(ValueError):
        prompts(short_model, {"text": ["a"]}, prompt=long, tooLong="truncate")
    sampling = {"max_new_tokens": 512}
    with messages.raises(ModelLoad):
        prompts(short_model, {"text": ["a"]}, tooLong="truncate", sampling=sampling)


def test_chat_model_gets_messages(tiny: Tiny) -> None:
    source = tiny("chat_model")
    turns = [{"role": "user", "content": "a dog"}, {"role": "assistant", "content": "good"}]
    chat = {"system": "be kind", "messages": turns, "prompt": "say {text}"}
    asked = [f"<bos>[system]be kind[user]a dog[assistant]good[user]say {text}[assistant]"
             for text in TEXTS]  # fmt: skip
    expected = [continued(source, prompt, special=False, **GREEDY) for prompt in asked]
    assert generated(source, TEXTS, **chat) == expected
    about = json.dumps(turns)  # in the system message, it is a text
    prompt = f"<bos>[system]{about}[user]a dog[assistant]good[user]{TEXTS[0]}[assistant]"
    for more in ({}, {"tooLong": "truncate"}):
        fields = {"system": "{about}", "messages": turns, "sampling": GREEDY, **more}
        runtime = loaded("text-generation", source, ["text", "about"], **fields)
        (text,) = run(runtime, {"text": TEXTS[:1], "about": [about]})
        assert text == continued(source, prompt, special=False, **GREEDY)


def test_message_column_is_a_chat(tiny: Tiny) -> None:
    source = tiny("chat_model")
    turns = [
        [{"role": "user", "content": "a cat"}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "dogs"}],
    ]
    runtime = loaded("text-generation", source, ["turns"], sampling=GREEDY)
    asked = ["<bos>[user]a cat[assistant]", "<bos>[system]be brief[user]dogs[assistant]"]
    expected = [continued(source, prompt, special=False, **GREEDY) for prompt in asked]
    assert run(runtime, {"turns": turns}) == expected


def test_answer_at_the_end_of_a_chat_is_continued(tiny: Tiny, messages: Messages) -> None:
    source = tiny("chat_model")
    turns = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "The"}]
    runtime = loaded("text-generation", source, ["turns"], sampling=GREEDY)
    expected = continued(source, "<bos>[user]a cat[assistant]The", special=False, **GREEDY)
    assert run(runtime, {"turns": [turns]}) == [expected]
    assert expected != continued(
        source, "<bos>[user]a cat[assistant]The[assistant]", special=False, **GREEDY
    )
    with messages.raises(ValueError):
        run(runtime, {"turns": [[*turns, {"role": "assistant", "tool_calls": ["a call"]}]]})


TRIMMING = (
    "{% for m in messages %}[{{ m.role }}]\n"
    "{{ (m.content if m.content is string else m.content[0].text) | trim }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
"""A chat template that trims texts. The library then also trims a prompt that ends in a text."""


@pytest.mark.parametrize("content_of", [str, lambda text: [{"type": "text", "text": text}]])
def test_empty_answer_at_the_end_of_a_chat_is_begun(
    short_model: str, content_of: Callable[[str], Any]
) -> None:
    set_template(short_model, TRIMMING)
    user = {"role": "user", "content": content_of("hi")}
    answer = {"role": "assistant", "content": content_of("")}
    chats = [[user, answer], [user], [user, answer, user]]
    empty, new, answered = prompts(short_model, {"turns": chats})[0]
    assert empty == new == "[user]\nhi<eos>[assistant]\n"
    assert answered == "[user]\nhi<eos>[assistant]\n<eos>[user]\nhi<eos>[assistant]\n"


def test_answer_at_the_end_of_a_chat_with_images_is_continued(tiny: Tiny) -> None:
    inputs = ["turns", "image"]
    runtime = loaded("image-text-to-text", tiny("vision_chat"), inputs, images=["image"])
    turns = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "The"}]
    (asked,) = runtime._prompts([{"turns": turns, "image": IMAGES[0]}])
    text = runtime._prompts.tokenizer.decode(asked.tensors["input_ids"][0])
    assert text.replace("<image>", "") == "<bos>[user]a cat[assistant]The"


def test_chats_and_texts_of_one_batch_do_not_affect_each_other(short_model: str) -> None:
    """The tokenizer adds <bos> to a text. The chat template adds it to a chat."""
    set_template(short_model, "<bos>{% for m in messages %}{{ m['content'] }}{% endfor %}")
    values = ["a cat", json.dumps([{"role": "user", "content": "a cat"}]), "dogs run"]
    alone = [generated(short_model, [value])[0] for value in values]
    assert generated(short_model, values) == alone
    assert alone[0] == alone[1]


def test_messages_need_a_chat_template(tiny: Tiny, messages: Messages) -> None:
    for field in ({"system": "be kind"}, {"messages": [{"role": "user", "content": "hello"}]}):
        with pytest.raises(ModelLoad, match=f"{next(iter(field))}: model .* no chat template"):
            loaded("text-generation", tiny("text_model"), ["text"], prompt="{text}", **field)
    runtime = loaded("text-generation", tiny("text_model"), ["turns"])
    with messages.raises(JobFailure):
        run(runtime, {"turns": [[{"role": "user", "content": "a cat"}]]})


def test_encoder_decoder_generates(tiny: Tiny) -> None:
    source = tiny("encoder_decoder")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(source).eval()
    expected = []
    for text in TEXTS:
        output = model.generate(**tokenizer(f"to: {text}", return_tensors="pt"), **GREEDY)
        expected += tokenizer.batch_decode(output, skip_special_tokens=True)
    assert generated(source, TEXTS, prompt="to: {text}") == expected
    assert any(expected)


def test_vision_model_gets_images(tiny: Tiny) -> None:
    source = tiny("vision_chat")
    processor = transformers.AutoProcessor.from_pretrained(source)
    model = transformers.AutoModelForImageTextToText.from_pretrained(source).eval()
    template = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    expected = []
    for image, text in zip(IMAGES, TEXTS[:3], strict=True):
        shown = {"type": "image", "image": Image.fromarray(image)}
        chat = [
            {"role": "system", "content": [{"type": "text", "text": "be kind"}]},
            {"role": "user", "content": [shown, {"type": "text", "text": f"what is {text}?"}]},
        ]
        tokens = processor.apply_chat_template(chat, return_tensors="pt", **template)
        output = model.generate(**tokens, **GREEDY)[:, tokens["input_ids"].shape[1] :]
        expected += processor.batch_decode(output, skip_special_tokens=True)
    assert len(set(expected)) == 3
    fields = {"prompt": "what is {text}?", "system": "be kind", "images": ["image"]}
    runtime = loaded("image-text-to-text", source, ["image", "text"], sampling=GREEDY, **fields)
    assert run(runtime, {"image": IMAGES, "text": TEXTS[:3]}) == expected


def test_vision_model_gets_images_where_the_prompt_has_them(tiny: Tiny) -> None:
    source = tiny("vision_chat")
    fields = {"prompt": "{text}: {image} or {other}?", "images": ["other", "image"]}
    runtime = loaded("image-text-to-text", source, ["image", "other", "text"], **fields)
    rows = [{"image": IMAGES[0], "other": IMAGES[1], "text": "which"}]
    (asked,) = runtime._prompts(rows)
    processor = transformers.AutoProcessor.from_pretrained(source)
    expected = processor(
        text="<bos>[user]which: <image> or <image>?[assistant]",
        images=[Image.fromarray(image) for image in IMAGES[:2]],
        add_special_tokens=False,
        return_tensors="pt",
    )
    assert torch.equal(asked.tensors["input_ids"], expected["input_ids"])
    assert torch.equal(asked.tensors["pixel_values"], expected["pixel_values"])


def test_images_are_described_without_a_prompt(tiny: Tiny) -> None:
    """Models that take images alone have no chat template. Others get a message of the image."""
    source = tiny("captioner")
    processor = transformers.AutoProcessor.from_pretrained(source)
    model = transformers.AutoModelForImageTextToText.from_pretrained(source).eval()
    expected = []
    for image in IMAGES:
        output = model.generate(**processor(images=image, return_tensors="pt"), **GREEDY)
        expected += processor.batch_decode(output, skip_special_tokens=True)
    runtime = loaded("image-text-to-text", source, ["image"], images=["image"], sampling=GREEDY)
    assert run(runtime, {"image": IMAGES}) == expected
    assert len(set(expected)) > 1
    runtime = loaded("image-text-to-text", tiny("vision_chat"), ["image"], images=["image"])
    (asked,) = runtime._prompts([{"image": IMAGES[0]}])
    text = runtime._prompts.tokenizer.decode(asked.tensors["input_ids"][0])
    assert text.replace("<image>", "") == "<bos>[user][assistant]"


def test_image_in_the_prompt_needs_a_chat_template(tiny: Tiny, messages: Messages) -> None:
    fields = {"prompt": "a {image}", "images": ["image"]}
    with messages.raises(ModelLoad):
        loaded("image-text-to-text", tiny("captioner"), ["image"], **fields)


def test_full_text_begins_with_the_prompt(tiny: Tiny) -> None:
    new = generated(tiny("text_model"), TEXTS, prompt="say {text}")
    full = generated(tiny("text_model"), TEXTS, prompt="say {text}", returnFullText=True)
    assert full == [f"say {text}{added}" for text, added in zip(TEXTS, new, strict=True)]
    with pytest.raises(ModelLoad, match=r"returnFullText: model .* has an encoder"):
        generated(tiny("encoder_decoder"), TEXTS, returnFullText=True)


def test_seed_key_includes_images(tiny: Tiny) -> None:
    runtime = loaded(
        "image-text-to-text", tiny("vision_chat"), ["image"], prompt="what?", images=["image"]
    )
    rows = [{"image": IMAGES[at]} for at in (0, 1, 0)]
    (asked,) = runtime._prompts(rows)
    first, second, third = asked.keys
    assert first == third != second


@pytest.mark.parametrize("name", ["text_model", "encoder_decoder"])
def test_details_of_texts(tiny: Tiny, name: str) -> None:
    texts, limit = ["a", "b c"], 6
    end = CHARACTERS.index("<eos>")
    fields = {"details": "about", "sampling": {"max_new_tokens": limit, "suppress_tokens": [end]}}
    runtime = loaded("text-generation", tiny(name), ["text"], **fields)
    with collect_warnings() as warnings:
        result = runtime({"text": column(texts)})
    assert tokens_in(warnings) == {
        "inputTokens": {0: 2, 1: 4},
        "outputTokens": {0: limit, 1: limit},
    }
    assert plain(warnings) == [(0, "AnswerCut", 0), (1, "AnswerCut", 0)]
    assert [about["prompt_tokens"] for _, about in result] == [2, 4]  # with <bos>
    assert [about["completion_tokens"] for _, about in result] == [limit] * 2
    assert [about["finish_reason"] for _, about in result] == ["length"] * 2
    sampling = runtime._sampling
    pad = sampling.config.pad_token_id = 0
    ended = [sampling.end_of(tokens, "") for tokens in ([9, 9, end, pad], [9, 9, pad])]
    assert ended == [(3, "stop"), (2, "length")]


@pytest.mark.parametrize("name", ["text_model", "chat_model"])
def test_invalid_answer_is_sent_back_in_the_prompt(
    tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    encode = TextPrompts._text

    def noted(*args: Any, **options: Any) -> str:
        given.append(encode(*args, **options))
        return given[-1]

    monkeypatch.setattr(TextPrompts, "_text", noted)
    fields = {"schema": {"jsonSchema": {"type": "integer"}}, "repair": 1, "prompt": "say {text}"}
    runtime = loaded("text-generation", tiny(name), ["text"], sampling=GREEDY, **fields)
    (error,) = runtime({"text": column(["a"])})
    assert isinstance(error, InvalidAnswer)
    (answer,) = generated(tiny(name), ["a"], prompt="say {text}")
    first, second = given[:2]
    assert first == ("<bos>[user]say a[assistant]" if name == "chat_model" else "say a")
    sent_back = f"{first}{answer}[user]" if name == "chat_model" else f"{first}\n\n{answer}\n\n"
    assert second.startswith(sent_back)


def test_several_sequences_per_row(tiny: Tiny) -> None:
    sampling = {**GREEDY, "num_beams": 3, "num_return_sequences": 2}
    texts = generated(tiny("text_model"), TEXTS, sampling=sampling)
    assert [len(texts) for texts in texts] == [2] * len(TEXTS)
    assert all(first != second for first, second in texts)
    alone = [generated(tiny("text_model"), [text], sampling=sampling)[0] for text in TEXTS]
    assert texts == alone


@pytest.mark.parametrize("name", ["text_model", "chat_model"])
def test_seeded_text_depends_on_the_prompt_only(tiny: Tiny, name: str) -> None:
    texts = generated(tiny(name), TEXTS, sampling=DRAWN, prompt="say {text}")
    again = generated(tiny(name), TEXTS[::-1], sampling=DRAWN, prompt="say {text}")[::-1]
    alone = [generated(tiny(name), [text], sampling=DRAWN, prompt="say {text}")[0]
             for text in TEXTS]  # fmt: skip
    assert texts == again == alone
    other = generated(tiny(name), TEXTS, sampling={**DRAWN, "seed": 8}, prompt="say {text}")
    assert all(map(str.__ne__, texts, other))


def test_length_of_the_model_does_not_count_padding(short_model: str) -> None:
    """Some models set `max_length`. The text must not depend on the longest prompt of the batch."""
    config = transformers.GenerationConfig.from_pretrained(short_model)
    transformers.GenerationConfig(**{**config.to_diff_dict(), "max_length": 20}).save_pretrained(
        short_model
    )
    texts = ["a", "x" * 15]
    sampling = {"suppress_tokens": [config.eos_token_id]}
    alone = [generated(short_model, [text], sampling=sampling)[0] for text in texts]
    assert generated(short_model, texts, sampling=sampling) == alone


def test_max_length_is_for_models_with_an_encoder(tiny: Tiny) -> None:
    """In these models, `max_length` counts the new tokens."""
    source = tiny("encoder_decoder")
    alone = [generated(source, [text], sampling={"max_length": 7})[0] for text in TEXTS]
    assert generated(source, TEXTS, sampling={"max_length": 7}) == alone


def test_seeded_sequences_of_a_row_differ(tiny: Tiny) -> None:
    sampling = {**DRAWN, "num_return_sequences": 3}
    texts = generated(tiny("text_model"), TEXTS, sampling=sampling)
    assert all(len(set(texts)) == 3 for texts in texts)
    assert texts == [generated(tiny("text_model"), [text], sampling=sampling)[0] for text in TEXTS]
    assert [texts[0] for texts in texts] == generated(tiny("text_model"), TEXTS, sampling=DRAWN)


def test_seed_changes_sampled_text_only(tiny: Tiny) -> None:
    sampling = {name: value for name, value in DRAWN.items() if name != "seed"}
    first, second = (generated(tiny("text_model"), TEXTS, sampling=sampling) for _ in range(2))
    assert first != second
    with_seed = generated(tiny("text_model"), TEXTS, sampling={**GREEDY, "seed": 3})
    assert with_seed == generated(tiny("text_model"), TEXTS)


def test_sampling_follows_the_distribution() -> None:
    """4,000 draws match the softmax after temperature and top_k."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
    config = transformers.GenerationConfig(do_sample=True, temperature=0.7, top_k=4, top_p=1.0)
    draws = Sampling(config, 1, seed=3).noise([str(key) for key in range(4000)], 0)
    drawn = draws(torch.zeros(4000, 1, dtype=torch.long), logits.repeat(4000, 1)).argmax(dim=1)
    counts = Counter(drawn.tolist())
    expected = (logits[:4] / 0.7).softmax(dim=0)
    assert counts[4] == 0
    for token, share in enumerate(expected.tolist()):
        assert abs(counts[token] / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5


def test_default_of_new_tokens_depends_on_the_positions(tiny: Tiny, short_model: str) -> None:
    for source, limit in ((tiny("text_model"), 512), (short_model, 256)):
        runtime = loaded("text-generation", source, ["text"])
        assert runtime._sampling.config.max_new_tokens == limit
    cut = {"tooLong": "truncate", "sampling": {"max_new_tokens": None}}
    (asked,), warnings = prompts(tiny("text_model"), {"text": [NUMBERS]}, **cut)
    room = 512 - 512 // 4 - 1  # without <bos>
    assert (len(asked), warnings) == (room, [(0, "TextCut", len(NUMBERS) - room)])


def test_invalid_sampling_is_rejected(tiny: Tiny) -> None:
    per_batch = {"do_sample": True, "seed": 1, "typical_p": 0.5}
    for sampling, reason in (
        ({"max_tokens": 5}, "no parameter 'max_tokens'; did you mean 'max_new_tokens'"),
        ({"temprature": 5}, "no parameter 'temprature'; did you mean 'temperature'"),
        ({"max_new_tokens": -1}, "sampling: .*max_new_tokens"),
        (per_batch, "'seed' does not work with 'typical_p'. Set it to 1.0"),
        ({"max_length": 20}, "'max_length' counts the padding.*'max_new_tokens'"),
        ({"min_length": 20}, "'min_length' counts the padding.*'min_new_tokens'"),
    ):
        with pytest.raises(ModelLoad, match=reason):
            loaded("text-generation", tiny("text_model"), ["text"], sampling=sampling)


def test_stop_strings_end_the_text(tiny: Tiny) -> None:
    (text,) = generated(tiny("text_model"), ["a cat"], sampling={"max_new_tokens": 40})
    fields = {"details": "about", "sampling": {"max_new_tokens": 40, "stop_strings": [text[5]]}}
    runtime = loaded("text-generation", tiny("text_model"), ["text"], **fields)
    alone, *_ = runtime({"text": column(["a cat"])})
    assert alone[0] == text[: text.index(text[5]) + 1]
    assert runtime({"text": column(["a cat", *"bcdefghijk"])})[0] == alone


def test_prompt_must_fit_into_the_encoder(tmp_path: Path, tiny: Tiny, messages: Messages) -> None:
    tokenizer = characters(pad_token="<pad>")
    tokenizer.save_pretrained(tmp_path)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    config = transformers.BartConfig(
        vocab_size=len(CHARACTERS), max_position_embeddings=32, **sizes, **heads, **ends
    )
    transformers.BartForConditionalGeneration(config).save_pretrained(tmp_path)
    with messages.raises(ValueError):
        generated(str(tmp_path), ["a", "x" * 50])
    (asked,), warnings = prompts(str(tmp_path), {"text": ["x" * 50]}, tooLong="truncate")
    assert (asked, warnings) == ("x" * 31, [(0, "TextCut", 19)])
    # a model without a table of positions has no limit
    assert generated(tiny("encoder_decoder"), ["x" * 600])

"""Tokenizers rebuilt from GGUF metadata: the same ids as the tokenizer they came from.

Held to vectors of real vocabularies in tests/oracle/test_gguf_vocabularies.py; here to small ones that can be followed.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from trtbuild.checkpoint.gguf_tokenizer import rebuild_tokenizer
from trtbuild.checkpoint.pretokenizers import PRE_TOKENIZERS
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.errors import InputRefused

TEXT = "The quick brown fox doesn't jump 12345 times; 你好，世界！ naïve café\n\n  indented\ttext... It's 'we'll' I'VE"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _trained() -> tokenizers.Tokenizer:
    """A byte-level BPE of the SmolLM2 kind, trained on a few sentences."""
    trained = tokenizers.Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([TEXT, TEXT.lower(), "the quick times of the fox"] * 20, trainer)
    return trained


def _metadata(tokenizer: tokenizers.Tokenizer, **changes: Any) -> dict[str, Any]:
    definition = json.loads(tokenizer.to_str())
    vocab = sorted(definition["model"]["vocab"].items(), key=lambda item: item[1])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in definition["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [token for token, _ in vocab],
        "tokenizer.ggml.token_type": np.array([3 if token in SPECIALS else 1 for token, _ in vocab], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
        **changes,
    }


@pytest.fixture(scope="module")
def trained() -> tokenizers.Tokenizer:
    return _trained()


def _model_of(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    rebuilt = rebuild_tokenizer(metadata, "m.gguf")
    return tokenizers.Tokenizer.from_str(rebuilt.assets["tokenizer.json"].decode("utf-8"))


@settings(deadline=None, max_examples=100)
@given(text=st.text(max_size=40) | st.sampled_from([TEXT, "a<|im_end|>b", " 7 77 777\n\n"]))
def test_byte_level_ids_and_text_survive(trained: tokenizers.Tokenizer, text: str) -> None:
    rebuilt = _model_of(_metadata(trained))
    ids = trained.encode(text).ids
    assert rebuilt.encode(text).ids == ids
    assert rebuilt.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_template_and_stop_ids_travel(trained: tokenizers.Tokenizer) -> None:
    rebuilt = rebuild_tokenizer(_metadata(trained), "m.gguf")
    loaded = load_tokenizer(rebuilt.assets)
    assert loaded.bos_token_id == 1
    assert loaded.stop_token_ids == (2,) == rebuilt.eos_token_ids
    assert loaded.special_tokens["unk_token"] == "<|endoftext|>"
    assert loaded.chat_template == _metadata(trained)["tokenizer.chat_template"]
    assert json.loads(rebuilt.assets["generation_config.json"]) == {
        "bos_token_id": 1,
        "eos_token_id": [2],
        "pad_token_id": 2,
    }
    assert loaded.decode([2, *loaded.encode("fox")]) == "fox"


def test_the_end_of_a_turn_stops_even_where_the_file_names_another_end(trained: tokenizers.Tokenizer) -> None:
    metadata = _metadata(trained, **{"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1})
    assert rebuild_tokenizer(metadata, "m.gguf").eos_token_ids == (0, 1, 2)


def test_bos_and_eos_are_added_where_the_file_says_so(trained: tokenizers.Tokenizer) -> None:
    plain = trained.encode("fox").ids
    both = _metadata(trained, **{"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    assert _model_of(both).encode("fox").ids == [1, *plain, 2]
    assert _model_of(both).encode("fox", add_special_tokens=False).ids == plain
    assert _model_of(_metadata(trained)).encode("fox").ids == plain
    assert _model_of(_metadata(trained, **{"tokenizer.ggml.pre": "llama-bpe"})).encode("").ids == [1]


def test_padding_entries_are_no_words_and_user_tokens_are_matched_as_text(trained: tokenizers.Tokenizer) -> None:
    metadata = _metadata(trained)
    size = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<tool>", "[PAD1]"]
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], [4, 5])
    rebuilt = _model_of(metadata)
    assert rebuilt.token_to_id("[PAD1]") is None
    assert rebuilt.encode("<tool>").ids == [size]
    assert rebuilt.decode([size], skip_special_tokens=True) == "<tool>"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["It", "'s", "Ġ1234", "Ġdon", "'", "T", "ĠĠ", "Ġx"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġdon", "'", "T", "ĠĠ", "Ġx"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "4", "Ġdon", "'T", "ĠĠ", "Ġx"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġdon", "'T", "ĠĠ", "Ġx"]),
    ],
)
def test_words_are_cut_as_each_family_does(name: str, words: list[str]) -> None:
    steps = list(PRE_TOKENIZERS[name].steps)
    template = tokenizers.Tokenizer(models.BPE())
    definition = json.loads(template.to_str())
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    cutter = tokenizers.Tokenizer.from_str(json.dumps(definition)).pre_tokenizer
    assert [word for word, _ in cutter.pre_tokenize_str("It's 1234 don'T   x")] == words


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_loads_and_loses_nothing(trained: tokenizers.Tokenizer, name: str) -> None:
    model = _model_of(_metadata(trained, **{"tokenizer.ggml.pre": name}))
    assert model.decode(model.encode(TEXT, add_special_tokens=False).ids) == TEXT


def test_an_unknown_pre_tokenizer_or_kind_is_a_note_not_an_error(trained: tokenizers.Tokenizer) -> None:
    for changes in ({"tokenizer.ggml.pre": "next-year"}, {"tokenizer.ggml.model": "bert"}):
        rebuilt = rebuild_tokenizer(_metadata(trained, **changes), "m.gguf")
        assert "tokenizer.json" not in rebuilt.assets
        assert next(iter(changes.values())) in rebuilt.notes[0]
        assert "--tokenizer" in rebuilt.notes[0]
    assert rebuild_tokenizer({}, "m.gguf").notes == ("the file holds no tokenizer",)
    metadata = _metadata(trained)
    del metadata["tokenizer.ggml.pre"]
    assert "default" in rebuild_tokenizer(metadata, "m.gguf").notes[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.tokens": np.arange(3)}, "tokens must be a list of strings"),
        ({"tokenizer.ggml.token_type": np.arange(3)}, "token_type must give a number for each"),
        ({"tokenizer.ggml.merges": None}, "merges must be a list of strings"),
        ({"tokenizer.ggml.bos_token_id": "x"}, "bos_token_id is 'x'"),
        ({"tokenizer.ggml.model": "llama"}, "scores must give a number for each"),
        ({"tokenizer.ggml.add_bos_token": 3}, "add_bos_token is 3"),
    ],
)
def test_malformed_tokenizers_are_refused(trained: tokenizers.Tokenizer, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputRefused, match=words):
        rebuild_tokenizer(_metadata(trained, **changes), "m.gguf")


# SentencePiece

_PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
_WORDS = ["▁", *"abcde", "▁a", "ab", "cd", "▁ab", "abc", "de", "bc", "▁abc", "cde", "abcd"]


def _sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    tokens = [*_PIECES, *_WORDS]
    types = [2, 3, 3, *[6] * 256, *[1] * len(_WORDS)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array([0.0] * 259 + [-float(i) for i in range(len(_WORDS))], np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }


def _sentencepiece(text: str) -> list[int]:
    """The definition: join the adjacent pair whose result has the best score, leftmost first, until none is left."""
    ids = {token: i for i, token in enumerate([*_PIECES, *_WORDS])}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joined = [(ids[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in ids]
        if not joined:
            break
        _, i = min(joined)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return [i for s in symbols for i in ([ids[s]] if s in ids else [3 + b for b in s.encode("utf-8")])]


@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet="abcde é你", max_size=14))
def test_sentencepiece_ids_follow_the_scores(text: str) -> None:
    model = _model_of(_sentencepiece_metadata())
    ids = model.encode(text, add_special_tokens=False).ids
    assert ids == _sentencepiece(text)
    assert model.encode(text).ids == [1, *ids]
    assert model.decode(ids) == text


def test_sentencepiece_without_the_leading_space() -> None:
    model = _model_of(_sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": False}))
    ids = model.encode("ab ab", add_special_tokens=False).ids
    assert [model.id_to_token(i) for i in ids] == ["ab", "▁ab"]
    assert model.decode(ids) == "ab ab"


def test_the_imports_of_the_reference_are_used() -> None:
    """The layout written by hand is one the package itself writes."""
    document = json.loads(rebuild_tokenizer(_sentencepiece_metadata(), "m.gguf").assets["tokenizer.json"])
    theirs = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    theirs.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    theirs.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    theirs.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)]
    )
    written = json.loads(theirs.to_str())
    for part in ("normalizer", "decoder", "post_processor"):
        assert document[part] == written[part]
    assert {k: v for k, v in document["model"].items() if k not in ("vocab", "merges")} == {
        k: v for k, v in written["model"].items() if k not in ("vocab", "merges")
    }

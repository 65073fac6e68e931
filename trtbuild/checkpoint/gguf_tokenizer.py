"""The tokenizer of a GGUF file, rebuilt as the `tokenizer.json` it was made from.

Two kinds: byte-level BPE (`gpt2`: tokens and merges are in the file) and SentencePiece BPE (`llama`: the merges follow
from the tokens' scores). Keys and token types: ggml's docs/gguf.md; layout of the JSON: the tokenizers package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.checkpoint.fields import Fields
from trtbuild.checkpoint.pretokenizers import PRE_TOKENIZERS

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>")
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SPACE = "▁"
_NO_PRE_NOTE = (
    "the file does not say how its tokenizer cuts words, so llama.cpp's default is used: give the tokenizer of the "
    "original model with --tokenizer if texts come out wrong"
)


@dataclass(frozen=True)
class RebuiltTokenizer:
    """File name → content as a Hugging Face folder has them, the ids that end a text, and what to tell the user."""

    assets: Mapping[str, bytes]
    eos_token_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Vocabulary:
    fields: Fields
    tokens: list[str]
    types: list[int]

    def text_of(self, name: str) -> str | None:
        ids = self.fields.token_ids(f"tokenizer.ggml.{name}")
        return self.tokens[ids[0]] if ids and ids[0] < len(self.tokens) else None


def rebuild_tokenizer(metadata: Mapping[str, Any], where: str) -> RebuiltTokenizer:
    """Rebuild the tokenizer files from GGUF metadata.

    A file without a tokenizer, or with one of an unknown kind, gives no tokenizer.json and a note: its weights can
    still be used with the tokenizer of the original model. Raises InputRefused for a malformed one.
    """
    fields = Fields(metadata, where)
    kind, tokens = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.tokens")
    if kind is None or tokens is None:
        return RebuiltTokenizer({}, _stop_ids(fields, None), ("the file holds no tokenizer",))
    vocabulary = _read_vocabulary(fields, tokens)
    stop_ids = _stop_ids(fields, vocabulary)
    assets = {
        "tokenizer_config.json": _json(_settings(vocabulary)),
        "generation_config.json": _json(_generation(fields, stop_ids)),
    }
    builder = _KINDS.get(kind) if isinstance(kind, str) else None
    document = None if builder is None else builder(vocabulary)
    pre = fields.get("tokenizer.ggml.pre")
    if document is None:
        name = f"{kind!r}" + (f" with pre-tokenizer {pre!r}" if pre else "")
        note = f"a tokenizer of kind {name} cannot be rebuilt: give the one of the original model with --tokenizer"
        return RebuiltTokenizer(assets, stop_ids, (note,))
    notes = (_NO_PRE_NOTE,) if kind == "gpt2" and pre is None else ()
    return RebuiltTokenizer({"tokenizer.json": _json(document), **assets}, stop_ids, notes)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", errors="replace")


def _read_vocabulary(fields: Fields, tokens: Any) -> _Vocabulary:
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise fields.refuse("tokenizer.ggml.tokens", "must be a list of strings")
    types = fields.get("tokenizer.ggml.token_type")
    if types is None:
        return _Vocabulary(fields, tokens, [1] * len(tokens))
    if not isinstance(types, np.ndarray) or len(types) != len(tokens):
        raise fields.refuse("tokenizer.ggml.token_type", f"must give a number for each of {len(tokens)} tokens")
    return _Vocabulary(fields, tokens, [int(t) for t in types])


def _stop_ids(fields: Fields, vocabulary: _Vocabulary | None) -> tuple[int, ...]:
    """The ids the file names, and the end of a chat turn by its name, which many files do not mark."""
    found = [i for key in _STOP_KEYS for i in fields.token_ids(f"tokenizer.ggml.{key}")]
    if vocabulary is not None:
        by_name = {t: i for i, t in enumerate(vocabulary.tokens) if vocabulary.types[i] == _CONTROL}
        found += [by_name[name] for name in _END_OF_TURN if name in by_name]
    return tuple(dict.fromkeys(found))


def _settings(vocabulary: _Vocabulary) -> dict[str, Any]:
    fields = vocabulary.fields
    named = {
        "bos_token": vocabulary.text_of("bos_token_id"),
        "eos_token": vocabulary.text_of("eos_token_id"),
        "unk_token": vocabulary.text_of("unknown_token_id"),
        "pad_token": vocabulary.text_of("padding_token_id"),
        "chat_template": fields.get("tokenizer.chat_template"),
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: text for name, text in named.items() if isinstance(text, str)},
    }


def _generation(fields: Fields, stop_ids: tuple[int, ...]) -> dict[str, Any]:
    bos, pad = fields.token_ids("tokenizer.ggml.bos_token_id"), fields.token_ids("tokenizer.ggml.padding_token_id")
    return {
        **({"bos_token_id": bos[0]} if bos else {}),
        **({"eos_token_id": list(stop_ids)} if stop_ids else {}),
        **({"pad_token_id": pad[0]} if pad else {}),
    }


def _document(vocabulary: _Vocabulary, *, adds_bos: bool, **parts: Any) -> dict[str, Any]:
    """A tokenizer.json with its added tokens: control tokens are special, user-defined ones are matched as text."""
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": vocabulary.types[i] != _USER_DEFINED,
        }
        for i, token in enumerate(vocabulary.tokens)
        if vocabulary.types[i] in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": _post_processor(vocabulary, adds_bos),
        "decoder": parts["decoder"],
        "model": parts["model"],
    }


def _post_processor(vocabulary: _Vocabulary, adds_bos: bool) -> dict[str, Any] | None:
    fields = vocabulary.fields
    wanted = (
        (fields.flag("tokenizer.ggml.add_bos_token", adds_bos), "bos_token_id"),
        (fields.flag("tokenizer.ggml.add_eos_token", False), "eos_token_id"),
    )
    bos, eos = (vocabulary.text_of(key) if add else None for add, key in wanted)
    if bos is None and eos is None:
        return None
    template: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if bos is not None:
        template.insert(0, {"SpecialToken": {"id": bos, "type_id": 0}})
    if eos is not None:
        template.append({"SpecialToken": {"id": eos, "type_id": 0}})
    specials = {
        text: {"id": text, "ids": [vocabulary.tokens.index(text)], "tokens": [text]} for text in (bos, eos) if text
    }
    pair = [*template, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": template, "pair": pair, "special_tokens": specials}


def _model(vocab: dict[str, int], merges: list[list[str]], **settings: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **settings,
        "vocab": vocab,
        "merges": merges,
    }


def _vocab(vocabulary: _Vocabulary) -> dict[str, int]:
    """Token → id; the first id wins where a text occurs twice, and padding entries (unused) have no text."""
    vocab: dict[str, int] = {}
    for i, token in enumerate(vocabulary.tokens):
        if vocabulary.types[i] != _UNUSED:
            vocab.setdefault(token, i)
    return vocab


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any] | None:
    fields = vocabulary.fields
    row = PRE_TOKENIZERS.get(fields.text("tokenizer.ggml.pre", "default"))
    if row is None:
        return None
    listed = fields.get("tokenizer.ggml.merges")
    if not isinstance(listed, list) or not all(isinstance(merge, str) for merge in listed):
        raise fields.refuse("tokenizer.ggml.merges", "must be a list of strings")
    vocab = _vocab(vocabulary)
    merges = []
    for merge in listed:
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut > 0 and left in vocab and right in vocab and left + right in vocab:
            merges.append([left, right])
    steps = row.steps
    return _document(
        vocabulary,
        adds_bos=row.adds_bos,
        normalizer=row.normalizer,
        pre_tokenizer=steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": list(steps)},
        decoder={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        model=_model(vocab, merges, ignore_merges=row.ignore_merges),
    )


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    fields = vocabulary.fields
    scores = fields.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(vocabulary.tokens):
        raise fields.refuse("tokenizer.ggml.scores", f"must give a number for each of {len(vocabulary.tokens)} tokens")
    vocab = _vocab(vocabulary)
    prefix = fields.flag("tokenizer.ggml.add_space_prefix", True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normalizers = [{"type": "Prepend", "prepend": _SPACE}, replace] if prefix else [replace]
    return _document(
        vocabulary,
        adds_bos=True,
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model=_model(
            vocab,
            _merges_from_scores(vocabulary, vocab, scores.tolist()),
            unk_token=vocabulary.text_of("unknown_token_id") or "<unk>",
            fuse_unk=True,
            byte_fallback=True,
        ),
    )


def _merges_from_scores(vocabulary: _Vocabulary, vocab: Mapping[str, int], scores: list[float]) -> list[list[str]]:
    """Every way to put a token together from two others, best score of the result first, as SentencePiece merges."""
    ranked = []
    for token, index in vocab.items():
        if vocabulary.types[index] == 1:
            for cut in range(1, len(token)):
                left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
                if left is not None and right is not None:
                    ranked.append((-scores[index], left, right, token, cut))
    ranked.sort(key=lambda merge: merge[:3])
    return [[token[:cut], token[cut:]] for *_, token, cut in ranked]


_KINDS: Mapping[str, Callable[[_Vocabulary], dict[str, Any] | None]] = {"gpt2": _byte_level, "llama": _sentencepiece}
"""`tokenizer.ggml.model` → how it is rebuilt; None where its pre-tokenizer is unknown."""

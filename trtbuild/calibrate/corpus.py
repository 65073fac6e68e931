"""Text as token ids: the built-in calibration and evaluation sets, chat prompts, and samples of one length."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtbuild.calibrate.texts import Document, Texts, read_texts, texts_of
from trtbuild.checkpoint.tokenizer import Tokenizer
from trtbuild.data import CALIBRATION
from trtbuild.errors import InputRefused
from trtbuild.store.fingerprint import fingerprint_json

Ids = npt.NDArray[np.int32]

FIXED_DATE = datetime.datetime(2026, 1, 1, 12, 0)
"""What templates that print the date see, so that a run of tomorrow gives the same ids."""


def builtin_calibration() -> Texts:
    """English and Chinese dialogue and FAQ; provenance in `calibration/README.md`."""
    return _builtin("calibrate")


def builtin_evaluation() -> Texts:
    """Held-out documents of the same kinds; none shares a document or a long sentence with the calibration set."""
    return _builtin("evaluate")


def _builtin(half: str) -> Texts:
    parts = [read_texts(path) for path in sorted((CALIBRATION / half).glob("*.jsonl"))]
    documents = tuple(document for part in parts for document in part.documents)
    return Texts(documents, f"built-in text ({half})", {"messages": len(documents)})


@dataclass(frozen=True)
class Prompt:
    """One question for greedy answers; `language` is "en" or "zh"."""

    text: str
    language: str


def chat_prompts() -> tuple[Prompt, ...]:
    """The built-in questions, in a fixed order."""
    lines = (CALIBRATION / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Prompt(**json.loads(line)) for line in lines)


@dataclass(frozen=True)
class Samples:
    """Token ids to calibrate or score with: every array is int32 [seq_len]."""

    ids: tuple[Ids, ...]
    seq_len: int
    data_fingerprint: str
    """Of the documents, after normalisation."""
    tokenizer_fingerprint: str
    seed: int

    @property
    def num_tokens(self) -> int:
        return len(self.ids) * self.seq_len

    def fingerprint(self) -> str:
        """SHA-256 over everything that decided the ids."""
        return fingerprint_json(
            {
                "data": self.data_fingerprint,
                "tokenizer": self.tokenizer_fingerprint,
                "seq_len": self.seq_len,
                "samples": len(self.ids),
                "seed": self.seed,
            }
        )


def tokenized_samples(tokenizer: Tokenizer, texts: Texts, samples: int, seq_len: int, *, seed: int = 0) -> Samples:
    """Cut `texts` into at most `samples` samples of exactly `seq_len` token ids; the same call gives the same ids.

    Documents are taken in an order that `seed` decides. A sample begins where a document begins (or goes on, when it is
    longer than a sample), because what a model does with its first token is part of what is calibrated; short documents
    follow each other until it is full, and the rest of the last one is left out. Only as many documents are tokenized
    as are needed. Raises InputRefused when there are not tokens enough for one sample.
    """
    if samples < 1 or seq_len < 2:
        raise ValueError(f"samples {samples} and seq_len {seq_len} must be at least 1 and 2")
    cut: list[Ids] = []
    current: list[int] = []
    found = 0
    for ids in _pieces(tokenizer, texts, seq_len, seed):
        found += len(ids)
        current.extend(ids)
        if len(current) >= seq_len:
            cut.append(np.array(current[:seq_len], dtype=np.int32))
            current = []
            if len(cut) == samples:
                break
    if not cut:
        raise InputRefused(
            f"too short to calibrate with: {found} tokens found, {seq_len} needed",
            where=texts.location,
            hint="give more text, or a smaller --seq-len",
        )
    return Samples(tuple(cut), seq_len, texts.fingerprint(), tokenizer.fingerprint(), seed)


def _pieces(tokenizer: Tokenizer, texts: Texts, seq_len: int, seed: int) -> Iterator[list[int]]:
    """Token ids of the documents, shuffled, in pieces of at most `seq_len`."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{index}".encode()).digest()

    for index in sorted(range(len(texts.documents)), key=rank):
        try:
            ids = encode_document(tokenizer, texts.documents[index])
        except InputRefused as error:
            raise InputRefused(f"document {index + 1}: {error.what}", where=texts.location, hint=error.hint) from error
        yield from (ids[start : start + seq_len] for start in range(0, len(ids), seq_len))


def encode_document(tokenizer: Tokenizer, document: Document) -> list[int]:
    """Token ids of one document; conversations go through the model's chat template."""
    if isinstance(document, str):
        return tokenizer.encode(document)
    return tokenizer.encode_chat(document, add_generation_prompt=False, now=FIXED_DATE)


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a question as a chat model expects it, up to where its answer begins."""
    return tokenizer.encode_chat([{"role": "user", "content": text}], add_generation_prompt=True, now=FIXED_DATE)


def prompts_of_length(tokenizer: Tokenizer, lengths: Sequence[int], count: int, *, seed: int = 0) -> list[list[int]]:
    """`count` chat prompts of held-out text whose lengths in tokens are exactly `lengths`, over and over.

    Each begins as a chat prompt begins, goes on with another part of the text (a prefix cache must not help), and ends
    where the answer begins. Lengths below the template's own are raised to it plus one token.
    """
    around = [prompt_ids(tokenizer, text) for text in ("a", "b")]
    shared_tail = _shared_prefix(around[0][::-1], around[1][::-1])
    shortest = len(around[0])
    tail = around[0][shortest - shared_tail :]
    text = " ".join(part for document in builtin_evaluation().documents for part in texts_of(document))
    prompts = []
    for index in range(count):
        length = max(lengths[index % len(lengths)], shortest)
        body = _ids_from(tokenizer, text, round((seed + index) * _GOLDEN * len(text)) % len(text), length + 1)
        prompts.append([*body[: length - len(tail)], *tail])
    return prompts


_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo one, are spread evenly however many there are."""


def _shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _ids_from(tokenizer: Tokenizer, text: str, start: int, length: int) -> list[int]:
    """Ids, at least `length`, of a prompt that holds `text` from the character `start` on, round and round."""
    characters = 4 * length
    while True:
        times = -(-(start + characters) // len(text))
        ids = prompt_ids(tokenizer, (text * times)[start : start + characters])
        if len(ids) > length:
            return ids
        characters *= 2

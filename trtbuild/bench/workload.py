"""What engines are asked: built-in chat text of chosen lengths, a user's JSONL, synthetic ids, or a trace's lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.bench.loadgen import Prompt
from trtbuild.bench.trace import Trace
from trtbuild.calibrate.corpus import FIXED_DATE, prompt_ids, prompts_of_length
from trtbuild.calibrate.texts import Document, read_texts
from trtbuild.checkpoint.tokenizer import Tokenizer, load_tokenizer, read_tokenizer_files
from trtbuild.errors import InputRefused
from trtbuild.targets.base import Limits


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a run, the same for every engine, and the sentence that says what they are."""

    prompts: tuple[Prompt, ...]
    story: str


def engine_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer that lies in an engine folder, or in a `tokenizer` folder within it, or None."""
    for folder in (path, path / "tokenizer"):
        assets = read_tokenizer_files(folder)
        if "tokenizer.json" in assets:
            return load_tokenizer(assets, where=str(folder))
    return None


def chat_prompts(
    tokenizer: Tokenizer, lengths: Sequence[int], output_tokens: int, ignore_eos: bool, count: int, seed: int
) -> PromptSet:
    """Built-in held-out text through the chat template, exactly as long as asked."""
    found = prompts_of_length(tokenizer, lengths, count, seed=seed)
    prompts = tuple(Prompt(tuple(ids), output_tokens, ignore_eos) for ids in found)
    return PromptSet(prompts, f"{count} built-in chat prompts of {_span(prompts)} tokens")


def synthetic_prompts(
    vocab_size: int, lengths: Sequence[int], output_tokens: int, ignore_eos: bool, count: int, seed: int
) -> PromptSet:
    """Uniformly random token ids; no prefix is shared, and nothing is readable."""
    rng = random.Random(seed)
    prompts = tuple(
        Prompt(tuple(rng.randrange(vocab_size) for _ in range(lengths[i % len(lengths)])), output_tokens, ignore_eos)
        for i in range(count)
    )
    return PromptSet(prompts, f"{count} synthetic prompts of {_span(prompts)} random ids")


def trace_prompts(trace: Trace, vocab_size: int, tokenizer: Tokenizer | None, seed: int) -> PromptSet:
    """One prompt per request of a trace, with its lengths: chat text where there is a tokenizer, else random ids."""
    lengths, count = trace.prompt_tokens, len(trace.prompt_tokens)
    if tokenizer is None:
        prompts = synthetic_prompts(vocab_size, lengths, 1, True, count, seed).prompts
    else:
        prompts = chat_prompts(tokenizer, lengths, 1, True, count, seed).prompts
    sized = tuple(Prompt(p.token_ids, n, True) for p, n in zip(prompts, trace.output_tokens, strict=True))
    return PromptSet(sized, f"prompts of {_span(sized)} tokens with the trace's answer lengths")


def file_prompts(
    path: Path, tokenizer: Tokenizer, output_tokens: int, ignore_eos: bool, limits: Limits | None
) -> PromptSet:
    """A user's texts or conversations as prompts; those an engine's limits cannot take leave every side, counted."""
    ids = [tuple(_question_ids(tokenizer, document)) for document in read_texts(path).documents]
    fits = [
        prompt
        for prompt in ids
        if limits is None or (len(prompt) <= limits.max_input_len and len(prompt) + output_tokens <= limits.max_seq_len)
    ]
    if not fits:
        raise InputRefused("no prompt fits the engine's limits", where=path, hint="build with a larger --max-input-len")
    prompts = tuple(Prompt(prompt, output_tokens, ignore_eos) for prompt in fits)
    left = f", {len(ids) - len(fits)} longer than the limits left out" if len(fits) < len(ids) else ""
    return PromptSet(prompts, f"{len(fits)} prompts of {path.name}, {_span(prompts)} tokens{left}")


def _question_ids(tokenizer: Tokenizer, document: Document) -> list[int]:
    """A conversation up to its last answer, which is what the model is to write; a text as one question."""
    if isinstance(document, str):
        return prompt_ids(tokenizer, document)
    turns = list(document)
    while len(turns) > 1 and turns[-1]["role"] == "assistant":
        turns.pop()
    return tokenizer.encode_chat(turns, add_generation_prompt=True, now=FIXED_DATE)


def _span(prompts: Sequence[Prompt]) -> str:
    lengths = sorted({len(prompt.token_ids) for prompt in prompts})
    return str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"

"""The tokenizer that travels with a model: text and conversations to token ids and back, and where answers stop.

Read from the files Hugging Face writes: `tokenizer.json` (the model), `tokenizer_config.json` and
`special_tokens_map.json` (names of the special tokens, chat template), `chat_template.jinja`, and
`generation_config.json` (end-of-answer tokens).
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.chat_template import PLAIN_TEMPLATE, Message, compile_template, render_chat
from trtbuild.checkpoint.spec import DecoderSpec
from trtbuild.errors import InputRefused
from trtbuild.store.fingerprint import fingerprint_json

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files that make up a tokenizer; only the first is required."""


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back. Encoding follows `transformers` with the same files."""

    model: Any
    """The `tokenizers.Tokenizer`."""
    chat_template: str | None
    """The model's own template; without one, conversations are written plainly (`PLAIN_TEMPLATE`)."""
    special_tokens: Mapping[str, str]
    """Name (`bos_token`, `eos_token` …) → text; the variables chat templates use."""
    bos_token_id: int | None
    stop_token_ids: tuple[int, ...]
    """Ids that end an answer, sorted: the model's, the tokenizer's and the generation config's."""
    vocab_size: int
    """Largest id + 1."""
    where: str
    """Where the files came from, for error messages."""
    fingerprint: Callable[[], str]
    """SHA-256 of everything that decides ids (model, template, special tokens), computed when first asked for; equal
    for equal files, however they are formatted."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; with `add_special_tokens`, what the model puts around a text (often a BOS)."""
        return list(self.model.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        return str(self.model.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens))

    @functools.cached_property
    def _render(self) -> Callable[..., str]:
        return compile_template(PLAIN_TEMPLATE if self.chat_template is None else self.chat_template, self.where)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        now: datetime.datetime | None = None,
    ) -> str:
        """Text of a conversation as the model was trained to see it.

        `now` fixes the date that some templates print. Raises InputRefused when the template refuses the conversation.
        """
        return render_chat(
            self._render, messages, self.special_tokens, add_generation_prompt=add_generation_prompt, now=now
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        now: datetime.datetime | None = None,
    ) -> list[int]:
        """Token ids of a conversation; a template writes its own special tokens, so none are added."""
        text = self.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, now=now)
        return self.encode(text, add_special_tokens=self.chat_template is None)


def read_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The files of TOKENIZER_FILES that a folder holds, as they travel in `Decoder.assets`."""
    return {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}


def load_tokenizer(
    assets: Mapping[str, bytes], *, spec: DecoderSpec | None = None, where: str = "tokenizer"
) -> Tokenizer:
    """Read a tokenizer from the files that travel with a model (`Decoder.assets`).

    `spec` adds the model's own end-of-answer ids and checks that every id has a row in the embedding. Raises
    InputRefused when `tokenizer.json` is absent, when a file is malformed, or when the tokenizer is larger than the
    embedding.
    """
    from tokenizers import Tokenizer as Model

    if "tokenizer.json" not in assets:
        raise InputRefused(
            "no tokenizer.json" + (f" (found {', '.join(sorted(assets))})" if assets else ""),
            where=where,
            hint=f"give the folder that holds it with --tokenizer; files read: {', '.join(TOKENIZER_FILES)}",
        )
    config = _json_object(assets, "tokenizer_config.json", where)
    names = {**_json_object(assets, "special_tokens_map.json", where), **config}
    generation = _json_object(assets, "generation_config.json", where)
    try:
        model = Model.from_str(_text(assets, "tokenizer.json", where))
    except Exception as error:  # the package raises a bare Exception
        _json_object(assets, "tokenizer.json", where)
        raise InputRefused(f"not a tokenizer ({error})", where=f"{where}/tokenizer.json") from error
    # Some files carry the limits of a training run; a tokenizer that silently cuts or pads would falsify everything.
    model.no_truncation()
    model.no_padding()

    special_tokens = {
        name: text
        for name, value in names.items()
        if name.endswith("_token") and (text := _token_text(value)) is not None
    }
    vocab_size = max(model.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    stop = set(_ids(generation.get("eos_token_id"), f"{where}/generation_config.json"))
    stop.update(() if spec is None else spec.eos_token_ids)
    own_end = model.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    stop.update(() if own_end is None else (own_end,))
    bos = model.token_to_id(special_tokens["bos_token"]) if "bos_token" in special_tokens else None
    template = _chat_template(assets, config, where)

    @functools.cache
    def fingerprint() -> str:
        definition = _json_object(assets, "tokenizer.json", where)
        return fingerprint_json({"tokenizer": definition, "template": template, "special_tokens": special_tokens})

    tokenizer = Tokenizer(model, template, special_tokens, bos, tuple(sorted(stop)), vocab_size, where, fingerprint)
    if spec is not None:
        check_fits(tokenizer, spec.vocab_size)
    return tokenizer


def check_fits(tokenizer: Tokenizer, embedding_rows: int) -> None:
    """Raise InputRefused when the tokenizer has ids beyond the embedding. (A larger embedding is padding.)"""
    if tokenizer.vocab_size > embedding_rows:
        raise InputRefused(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the embedding only {embedding_rows} rows",
            where=tokenizer.where,
            hint="this tokenizer belongs to another model; give the right one with --tokenizer",
        )
    beyond = [i for i in tokenizer.stop_token_ids if not 0 <= i < embedding_rows]
    if beyond:
        raise InputRefused(
            f"stop token {beyond[0]} is outside the embedding of {embedding_rows} rows", where=tokenizer.where
        )


def _text(assets: Mapping[str, bytes], name: str, where: str) -> str:
    try:
        return assets[name].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputRefused(f"not UTF-8 text (byte {error.start})", where=f"{where}/{name}") from error


def _json_object(assets: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    """Content of a JSON file, empty when the file is absent."""
    if name not in assets:
        return {}
    try:
        value = json.loads(_text(assets, name, where))
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"malformed JSON ({error})", where=f"{where}/{name}") from error
    if not isinstance(value, dict):
        raise InputRefused("not a JSON object", where=f"{where}/{name}")
    return value


def _token_text(value: Any) -> str | None:
    """A special token is written as its text or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: Any, where: str) -> list[int]:
    """`eos_token_id` is absent, null, one id or a list of ids."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in values):
        raise InputRefused(f"eos_token_id is {json.dumps(value)}, not an id or a list of ids", where=where)
    return values


def _chat_template(assets: Mapping[str, bytes], config: Mapping[str, Any], where: str) -> str | None:
    """The template file wins over the configuration; of a list of named templates, `default` is the one for chat."""
    if "chat_template.jinja" in assets:
        return _text(assets, "chat_template.jinja", where)
    template = config.get("chat_template")
    if template is None or isinstance(template, str):
        return template
    place = f"{where}/tokenizer_config.json"
    try:
        named = {str(entry["name"]): entry["template"] for entry in template}
    except (TypeError, KeyError) as error:
        raise InputRefused("chat_template is neither text nor a list of named templates", where=place) from error
    chosen = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    if not isinstance(chosen, str):
        raise InputRefused(
            f"none of the chat templates ({', '.join(named) or 'empty list'}) is named default", where=place
        )
    return chosen

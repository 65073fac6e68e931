"""A tokenizer for tests that knows every byte, and chat templates as met in the wild.

The templates are written for these tests in the styles that model families use: ChatML with a default system prompt,
`[INST]` with strict alternation, header tokens with a date, `{% generation %}` marks, tools through `tojson`.
"""

from __future__ import annotations

import json
from typing import Any

SPECIALS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "inst": (
        "{{ bos_token }}\n"
        "{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}\n"
        "{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}\n"
        "{%- for m in rest %}\n"
        "    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
        "        {{- raise_exception('roles must alternate user/assistant') }}\n"
        "    {%- endif %}\n"
        "    {%- if m.role == 'user' %}{{ '[INST] ' + (system + '\n\n' if loop.first and system else '') }}"
        "{{ m.content | trim }} [/INST]\n"
        "    {%- else %} {{ m.content }}{{ eos_token }}{% endif %}\n"
        "{%- endfor %}"
    ),
    "headers": (
        "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}\n"
        "{{- bos_token }}<|im_start|>system\n\nToday: {{ date_string }}<|im_end|>\n"
        "{%- for m in messages %}\n"
        "{%- if m.role == 'ignored' %}{% continue %}{% endif %}\n"
        "<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
    ),
    "generation": (
        "{% for m in messages %}\n"
        "    {% if m.role == 'assistant' %}\n"
        "{% generation %}{% set seen = 1 %}{{ m.content }}{{ eos_token }}{% endgeneration %}{{ seen is defined }}\n"
        "    {% else %}\n"
        "{{ m.role | upper }}: {{ m.content }}\n"
        "    {% endif %}\n"
        "{% endfor %}"
    ),
    "tojson": (
        "{%- set ns = namespace(count=0) %}\n"
        "{%- for m in messages %}{% set ns.count = ns.count + 1 %}{{ m | tojson(indent=2) }}\n"
        "{%- if ns.count == 2 %}{% break %}{% endif %}{% endfor %}\n"
        "{{ tools is none }} {{ messages | length }} {{ unk_token }} {{ pad_token }}"
    ),
}
"""Name → template."""

CONVERSATIONS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": 'Hi <there> & "you"?'}],
    [
        {"role": "system", "content": "Sprich höflich. 请简短。"},
        {"role": "user", "content": "  你好\n\n  two lines  "},
        {"role": "assistant", "content": "Fine 🙂</s>"},
        {"role": "user", "content": "{{ 1 + 1 }}"},
    ],
)


def byte_level_tokenizer(**changes: Any) -> dict[str, Any]:
    """Content of a `tokenizer.json`: the special tokens, the 256 bytes and no merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    vocab = {token: i for i, token in enumerate((*SPECIALS, *alphabet))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": None, "vocab": vocab, "merges": []},
        **changes,
    }


def tokenizer_assets(
    tokenizer: dict[str, Any] | None = None, *, generation: dict[str, Any] | None = None, **config: Any
) -> dict[str, bytes]:
    """The files of a tokenizer; `config` adds to `tokenizer_config.json`."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        **config,
    }
    files = {
        "tokenizer.json": tokenizer or byte_level_tokenizer(),
        "tokenizer_config.json": settings,
        **({} if generation is None else {"generation_config.json": generation}),
    }
    return {name: json.dumps(content, ensure_ascii=False).encode() for name, content in files.items()}

"""Chat templates and ids against `transformers` with the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizer_files import CONVERSATIONS, TEMPLATES, byte_level_tokenizer, tokenizer_assets
from transformers import AutoTokenizer

from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.errors import InputRefused


def write(folder: Path, assets: dict[str, bytes]) -> None:
    for name, content in assets.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize("conversation", range(len(CONVERSATIONS)))
@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_render_alike(tmp_path: Path, template: str, conversation: int, add_generation_prompt: bool) -> None:
    assets = tokenizer_assets(chat_template=TEMPLATES[template])
    write(tmp_path, assets)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = CONVERSATIONS[conversation]
    expected: Any = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    ours = load_tokenizer(assets)
    assert ours.apply_chat_template(messages, add_generation_prompt=add_generation_prompt) == expected
    ids = theirs.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=add_generation_prompt, return_dict=False
    )
    assert ours.encode_chat(messages, add_generation_prompt=add_generation_prompt) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_named_templates_and_the_template_file(tmp_path: Path) -> None:
    named = [{"name": name, "template": TEMPLATES[name]} for name in ("inst", "chatml")]
    named[1]["name"] = "default"
    for assets in (
        tokenizer_assets(chat_template=named),
        {**tokenizer_assets(), "chat_template.jinja": TEMPLATES["inst"].encode()},
    ):
        write(tmp_path, assets)
        expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(CONVERSATIONS[0], tokenize=False)
        text = load_tokenizer(assets).apply_chat_template(CONVERSATIONS[0], add_generation_prompt=False)
        assert text == expected


def test_both_refuse_what_the_template_refuses(tmp_path: Path) -> None:
    assets = tokenizer_assets(chat_template=TEMPLATES["inst"])
    write(tmp_path, assets)
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(Exception, match="must alternate"):
        AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(twice, tokenize=False)
    with pytest.raises(InputRefused, match="must alternate"):
        load_tokenizer(assets).apply_chat_template(twice)


@pytest.mark.parametrize("text", ["", "a b\n\n c  ", "数据 🙂 <s>x</s>", "\u2028\x00tab\t"])
def test_ids_and_text_are_alike(tmp_path: Path, text: str) -> None:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    bos = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    assets = tokenizer_assets(byte_level_tokenizer(truncation=cut, post_processor=bos))
    write(tmp_path, assets)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(assets)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)

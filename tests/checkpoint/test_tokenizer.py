"""The tokenizer that travels with a model: ids, templates, stop tokens, and every way its files can be wrong."""

from __future__ import annotations

import contextlib
import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_files import CONVERSATIONS, SPECIALS, TEMPLATES, byte_level_tokenizer, tokenizer_assets

from trtbuild.checkpoint.spec import DecoderSpec, RopeSpec
from trtbuild.checkpoint.tokenizer import Tokenizer, load_tokenizer
from trtbuild.errors import InputRefused

VOCAB = len(SPECIALS) + 256
BOS_PROCESSOR = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
BYTES = load_tokenizer(tokenizer_assets())


def spec(vocab_size: int = VOCAB, eos: tuple[int, ...] = ()) -> DecoderSpec:
    return DecoderSpec(
        family="llama",
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=8,
        intermediate_size=8,
        vocab_size=vocab_size,
        max_position_embeddings=64,
        norm_epsilon=1e-6,
        rope=RopeSpec(1e4),
        eos_token_ids=eos,
    )


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_comes_back_from_its_ids(text: str) -> None:
    plain = text.replace("<s>", "")
    assert BYTES.decode(BYTES.encode(plain), skip_special_tokens=False) == plain


def test_bos_is_added_where_the_model_wants_it_and_only_when_asked() -> None:
    tokenizer = load_tokenizer(tokenizer_assets(byte_level_tokenizer(post_processor=BOS_PROCESSOR)))
    body = BYTES.encode("ab")
    assert tokenizer.encode("ab") == [1, *body]
    assert tokenizer.encode("ab", add_special_tokens=False) == body
    assert tokenizer.decode([1, *body]) == "ab"
    assert tokenizer.decode([1, *body], skip_special_tokens=False) == "<s>ab"


def test_truncation_and_padding_of_a_training_run_are_not_applied() -> None:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    tokenizer = load_tokenizer(tokenizer_assets(byte_level_tokenizer(truncation=cut, padding=pad)))
    assert tokenizer.encode("abcdef") == BYTES.encode("abcdef")
    assert tokenizer.encode("a") == BYTES.encode("a")


def test_a_template_writes_its_own_special_tokens() -> None:
    files = tokenizer_assets(byte_level_tokenizer(post_processor=BOS_PROCESSOR), chat_template="{{ bos_token }}x")
    assert load_tokenizer(files).encode_chat(CONVERSATIONS[0]) == [1, *BYTES.encode("x")]


def test_without_a_template_conversations_are_written_plainly() -> None:
    assert BYTES.chat_template is None
    text = BYTES.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "user: hi\nassistant:"
    assert BYTES.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=False) == "user: hi\n"


def test_the_date_a_template_sees_can_be_fixed() -> None:
    tokenizer = load_tokenizer(tokenizer_assets(chat_template=TEMPLATES["headers"]))
    text = tokenizer.apply_chat_template(CONVERSATIONS[0], now=datetime.datetime(2024, 7, 26))
    assert "Today: 26 Jul 2024" in text
    assert f"Today: {datetime.datetime.now():%d %b %Y}" in tokenizer.apply_chat_template(CONVERSATIONS[0])


@pytest.mark.parametrize(
    ("place", "config", "files"),
    [
        ("text", {"chat_template": "A"}, {}),
        ("one named", {"chat_template": [{"name": "only", "template": "A"}]}, {}),
        (
            "default of several",
            {"chat_template": [{"name": "tools", "template": "B"}, {"name": "default", "template": "A"}]},
            {},
        ),
        ("file", {}, {"chat_template.jinja": b"A"}),
        ("file before text", {"chat_template": "B"}, {"chat_template.jinja": b"\xef\xbb\xbfA"}),
    ],
)
def test_where_a_template_is_found(place: str, config: dict[str, Any], files: dict[str, bytes]) -> None:
    del place
    tokenizer = load_tokenizer({**tokenizer_assets(**config), **files})
    assert tokenizer.apply_chat_template(CONVERSATIONS[0]) == "A"


def test_special_tokens_are_text_or_objects_and_may_be_in_the_older_file() -> None:
    files = tokenizer_assets(
        bos_token={"content": "<s>", "lstrip": False}, eos_token=None, chat_template="{{eos_token}}"
    )
    files["special_tokens_map.json"] = json.dumps(
        {"eos_token": {"content": "<|im_end|>"}, "bos_token": "</s>"}
    ).encode()
    tokenizer = load_tokenizer(files)
    assert tokenizer.bos_token_id == 1
    assert tokenizer.special_tokens == {"bos_token": "<s>", "unk_token": "<unk>"}
    del files["tokenizer_config.json"]
    assert load_tokenizer(files).stop_token_ids == (SPECIALS.index("<|im_end|>"),)


@pytest.mark.parametrize(
    ("generation", "own", "expected"),
    [
        (None, (), (2,)),
        ({"eos_token_id": 4}, (), (2, 4)),
        ({"eos_token_id": [4, 3]}, (2,), (2, 3, 4)),
        ({"eos_token_id": None}, (7,), (2, 7)),
        ({}, (), (2,)),
    ],
)
def test_answers_stop_where_model_tokenizer_or_generation_config_say(
    generation: dict[str, Any] | None, own: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert load_tokenizer(tokenizer_assets(generation=generation), spec=spec(eos=own)).stop_token_ids == expected


def test_the_fingerprint_is_of_meaning_not_of_spelling() -> None:
    files = tokenizer_assets(chat_template="A")
    spaced = {name: json.dumps(json.loads(content), indent=4).encode() for name, content in files.items()}
    assert load_tokenizer(spaced).fingerprint() == load_tokenizer(files).fingerprint()
    others: list[Tokenizer] = [
        BYTES,
        load_tokenizer(tokenizer_assets(chat_template="B")),
        load_tokenizer(tokenizer_assets(byte_level_tokenizer(post_processor=BOS_PROCESSOR), chat_template="A")),
        load_tokenizer(tokenizer_assets(chat_template="A", bos_token="</s>")),
    ]
    assert load_tokenizer(files).fingerprint() not in {other.fingerprint() for other in others}


# --- refusals: one line that names the file


def refusal(assets: dict[str, bytes], **arguments: Any) -> InputRefused:
    with pytest.raises(InputRefused) as caught:
        load_tokenizer(assets, where="DIR", **arguments)
    assert "\n" not in str(caught.value)
    return caught.value


def test_no_tokenizer_lists_what_is_accepted() -> None:
    error = refusal({"tokenizer.model": b"\0"})
    assert str(error) == "DIR: no tokenizer.json (found tokenizer.model)"
    assert error.hint is not None
    assert "tokenizer.json" in error.hint and "chat_template.jinja" in error.hint


def test_a_tokenizer_larger_than_the_embedding_is_refused_with_both_numbers() -> None:
    error = refusal(tokenizer_assets(), spec=spec(vocab_size=VOCAB - 1))
    assert f"{VOCAB} tokens" in str(error)
    assert f"{VOCAB - 1} rows" in str(error)
    load_tokenizer(tokenizer_assets(), spec=spec(vocab_size=VOCAB + 7))


def test_a_stop_token_outside_the_embedding_is_refused() -> None:
    assert "stop token 999" in str(refusal(tokenizer_assets(generation={"eos_token_id": [2, 999]}), spec=spec()))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", b'{"version": "1.0",', "DIR/tokenizer.json: malformed JSON"),
        ("tokenizer.json", b"[]", "DIR/tokenizer.json: not a JSON object"),
        ("tokenizer.json", b'{"model": {"type": "None such"}}', "DIR/tokenizer.json: not a tokenizer"),
        ("tokenizer.json", b'{"a": "\xff"}', "DIR/tokenizer.json: not UTF-8 text (byte 7)"),
        ("tokenizer_config.json", b"[" * 100_000, "DIR/tokenizer_config.json: malformed JSON"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "neither text nor a list of named templates"),
        ("tokenizer_config.json", b'{"chat_template": []}', "none of the chat templates (empty list)"),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": "a", "template": "A"}, {"name": "b", "template": "B"}]}',
            "none of the chat templates (a, b) is named default",
        ),
        ("generation_config.json", b'{"eos_token_id": "2"}', 'DIR/generation_config.json: eos_token_id is "2"'),
        ("generation_config.json", b'{"eos_token_id": [true]}', "eos_token_id is [true]"),
    ],
)
def test_malformed_files_are_named(name: str, content: bytes, said: str) -> None:
    assert said in str(refusal({**tokenizer_assets(), name: content}))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "chat template does not parse: line 1"),
        ("{{ raise_exception('system role not supported') }}", "refused the conversation: system role not supported"),
        ("{{ messages[7].content }}", "chat template refused the conversation"),
        ("{{ ''.__class__.__mro__ }}", "chat template refused the conversation"),
        ("{{ messages.append(1) }}", "chat template refused the conversation"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "chat template refused the conversation"),
    ],
)
def test_a_template_cannot_do_harm(template: str, said: str) -> None:
    tokenizer = load_tokenizer(tokenizer_assets(chat_template=template))
    with pytest.raises(InputRefused) as caught:
        tokenizer.apply_chat_template(CONVERSATIONS[0])
    assert said in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from(["bos_token", "eos_token", "chat_template", "x_token"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "template", "content"]), inner)
            ),
            max_leaves=6,
        ),
    ),
    st.binary(max_size=40),
)
def test_whatever_the_files_hold_it_loads_or_is_refused(config: dict[str, Any], generation: bytes) -> None:
    files = {**tokenizer_assets(), "tokenizer_config.json": json.dumps(config).encode()}
    with contextlib.suppress(InputRefused):
        load_tokenizer({**files, "generation_config.json": generation})

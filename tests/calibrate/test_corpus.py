"""The built-in text and its provenance, and samples of token ids: disjoint, deterministic, of one length."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_files import TEMPLATES, tokenizer_assets

from trtbuild.calibrate.corpus import (
    builtin_calibration,
    builtin_evaluation,
    chat_prompts,
    encode_document,
    prompt_ids,
    prompts_of_length,
    tokenized_samples,
)
from trtbuild.calibrate.texts import Document, Texts, texts_of
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.data import CALIBRATION
from trtbuild.errors import InputRefused

CHATML = load_tokenizer(tokenizer_assets(chat_template=TEMPLATES["chatml"]))
ROOT = Path(__file__).parents[2]


def normalised(texts: Texts) -> set[str]:
    """What is said, without case and white space; short remarks are said by everybody."""
    said = (" ".join(text.lower().split()) for document in texts.documents for text in texts_of(document))
    return {text for text in said if len(text) >= 40}


def records(half: str) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for path in sorted((CALIBRATION / half).glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


# --- the built-in text


def test_it_is_small_and_in_both_languages() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "calibration").rglob("*.jsonl")) <= 1_000_000
    for texts in (builtin_calibration(), builtin_evaluation()):
        chinese = [d for d in texts.documents if re.search("[\u4e00-\u9fff]", "".join(texts_of(d)))]
        assert 0.2 < len(chinese) / len(texts.documents) < 0.5


def test_calibration_and_evaluation_share_no_document_and_no_sentence() -> None:
    documents = [{record["document"] for record in records(half)} for half in ("calibrate", "evaluate")]
    assert all(documents)
    assert not documents[0] & documents[1]
    calibration, evaluation = normalised(builtin_calibration()), normalised(builtin_evaluation())
    assert min(len(calibration), len(evaluation)) > 100
    assert not calibration & evaluation


def test_prompts_are_asked_nowhere_else() -> None:
    prompts = chat_prompts()
    assert len({prompt.text for prompt in prompts}) == len(prompts) >= 40
    assert {prompt.language for prompt in prompts} == {"en", "zh"}
    said = {text for t in (builtin_calibration(), builtin_evaluation()) for d in t.documents for text in texts_of(d)}
    assert not said & {prompt.text for prompt in prompts}


def test_no_document_comes_twice() -> None:
    for half in ("calibrate", "evaluate"):
        messages = [json.dumps(record["messages"]) for record in records(half)]
        assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_every_conversation_passes_strict_templates(template: str) -> None:
    tokenizer = load_tokenizer(tokenizer_assets(chat_template=TEMPLATES[template]))
    for texts in (builtin_calibration(), builtin_evaluation()):
        for document in texts.documents:
            assert encode_document(tokenizer, document)


def test_every_source_is_named_with_its_licence() -> None:
    sources = json.loads((CALIBRATION / "sources.json").read_text(encoding="utf-8"))
    readme = (CALIBRATION / "README.md").read_text(encoding="utf-8")
    names = {source["source"] for source in sources}
    for half in ("calibrate", "evaluate"):
        found = records(half)
        assert {record["source"] for record in found} == names
        for source in sources:
            path = CALIBRATION / half / f"{source['source']}.jsonl"
            assert source[half]["bytes"] == path.stat().st_size
            assert source[half]["records"] == sum(record["source"] == source["source"] for record in found)
    for source in sources:
        assert f"`{source['source']}`" in readme
        assert f"`{source['package']}` {source['version']}" in readme
        assert re.fullmatch("[0-9a-f]{64}", source["sha256"])
        assert source["licence"]
    assert len(list((CALIBRATION / "sources").glob("*.txt"))) == 3


def test_nothing_personal_and_no_address_is_in_the_conversations_of_people() -> None:
    text = (CALIBRATION / "calibrate" / "chitchat.jsonl").read_text(encoding="utf-8")
    said = " ".join(m["content"] for line in text.splitlines() for m in json.loads(line)["messages"])
    assert not re.search(r"https?:|www\.|@|\d{5,}|\d{3}[-. ]\d{4}", said)


# --- samples


def test_samples_are_exact_and_repeatable() -> None:
    first = tokenized_samples(CHATML, builtin_calibration(), 6, 200)
    again = tokenized_samples(CHATML, builtin_calibration(), 6, 200)
    assert len(first.ids) == 6
    assert first.num_tokens == 1200
    for a, b in zip(first.ids, again.ids, strict=True):
        assert a.dtype == np.int32
        assert a.shape == (200,)
        assert np.array_equal(a, b)
    assert first.fingerprint() == again.fingerprint()


def test_more_samples_begin_with_the_same_ones() -> None:
    few = tokenized_samples(CHATML, builtin_calibration(), 3, 128)
    many = tokenized_samples(CHATML, builtin_calibration(), 9, 128)
    assert all(np.array_equal(a, b) for a, b in zip(few.ids, many.ids[:3], strict=True))


def test_everything_that_decides_the_ids_is_in_the_fingerprint() -> None:
    texts = builtin_evaluation()
    base = tokenized_samples(CHATML, texts, 4, 64)
    plain = load_tokenizer(tokenizer_assets())
    others = [
        tokenized_samples(CHATML, texts, 5, 64),
        tokenized_samples(CHATML, texts, 4, 65),
        tokenized_samples(CHATML, texts, 4, 64, seed=1),
        tokenized_samples(plain, texts, 4, 64),
        tokenized_samples(CHATML, builtin_calibration(), 4, 64),
    ]
    assert len({base.fingerprint(), *(other.fingerprint() for other in others)}) == 6
    assert not np.array_equal(base.ids[0], others[2].ids[0])


def test_a_sample_begins_where_a_document_begins() -> None:
    samples = tokenized_samples(CHATML, builtin_calibration(), 8, 4096)
    assert all(CHATML.decode(ids[:1], skip_special_tokens=False) == "<|im_start|>" for ids in samples.ids)


def texts(*documents: Document) -> Texts:
    return Texts(documents, "here.txt", {"text": len(documents)})


def test_short_documents_are_packed_and_long_ones_continue() -> None:
    ids = lambda text: CHATML.encode(text)  # noqa: E731
    packed = tokenized_samples(CHATML, texts("aa", "bb", "cc"), 9, 4).ids
    assert len(packed) == 1
    assert {tuple(packed[0][:2]), tuple(packed[0][2:])} < {tuple(ids(text)) for text in ("aa", "bb", "cc")}
    continued = tokenized_samples(CHATML, texts("abcdefghij"), 9, 4).ids
    assert [list(sample) for sample in continued] == [ids("abcd"), ids("efgh")]


def test_conversations_go_through_the_chat_template() -> None:
    turns = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"})
    (sample,) = tokenized_samples(CHATML, texts(turns), 1, 20).ids
    expected = CHATML.encode_chat(turns, add_generation_prompt=False)
    assert list(sample) == expected[:20]


def test_too_little_text_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputRefused) as caught:
        tokenized_samples(CHATML, texts("abc", "de"), 4, 512)
    assert str(caught.value) == "here.txt: too short to calibrate with: 5 tokens found, 512 needed"
    assert caught.value.hint is not None and "--seq-len" in caught.value.hint


def test_a_conversation_the_template_refuses_is_named() -> None:
    tokenizer = load_tokenizer(tokenizer_assets(chat_template=TEMPLATES["inst"]))
    turn = {"role": "user", "content": "x" * 50}
    with pytest.raises(InputRefused, match=r"here\.txt: document 1: .*roles must alternate"):
        tokenized_samples(tokenizer, texts((turn, turn)), 1, 8)


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet="ab \n你", min_size=1, max_size=30), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(2, 16),
    st.integers(0, 3),
)
def test_any_documents_give_full_samples_or_a_refusal(
    documents: list[str], count: int, seq_len: int, seed: int
) -> None:
    total = sum(len(CHATML.encode(document)) for document in documents)
    try:
        samples = tokenized_samples(CHATML, texts(*documents), count, seq_len, seed=seed)
    except InputRefused:
        assert total < seq_len
    else:
        assert 1 <= len(samples.ids) <= count
        assert all(ids.shape == (seq_len,) for ids in samples.ids)
        assert samples.num_tokens <= total


# --- prompts of given lengths


def test_prompts_have_exactly_the_lengths_asked_for() -> None:
    prompts = prompts_of_length(CHATML, [64, 200, 1500], 7)
    assert [len(prompt) for prompt in prompts] == [64, 200, 1500, 64, 200, 1500, 64]
    head = CHATML.encode("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    tail = CHATML.encode("<|im_end|>\n<|im_start|>assistant\n")
    for prompt in prompts:
        assert prompt[: len(head)] == head
        assert prompt[-len(tail) :] == tail
    assert prompts == prompts_of_length(CHATML, [64, 200, 1500], 7)
    assert prompts != prompts_of_length(CHATML, [64, 200, 1500], 7, seed=1)


def test_no_two_prompts_begin_with_the_same_text() -> None:
    own = len(prompt_ids(CHATML, ""))
    prompts = prompts_of_length(CHATML, [own + 60], 500)
    assert len({tuple(prompt[: own + 20]) for prompt in prompts}) == 500


def test_a_prompt_is_never_shorter_than_its_template() -> None:
    own = len(prompt_ids(CHATML, "a"))
    assert {len(prompt) for prompt in prompts_of_length(CHATML, [1, 2], 4)} == {own}

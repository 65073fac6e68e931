"""The CPU engine against transformers: logits of every family, and the text of the demo model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from builders import LLAMA3_ROPE, write_huggingface
from cpu_engines import CPU, LIMITS, built, generate

from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.demo import fetch_demo_model
from trtbuild.targets.base import Limits
from trtbuild.targets.serving import Request

CASES = {
    "llama": ("llama", {}),
    "llama3 rope, tied, biased": (
        "llama",
        {"rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "yarn": ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}),
    "mistral beyond its window": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {}),
}

PROMPTS = (
    "What is the capital of France?",
    "Explain in one sentence why the sky is blue.",
    "Write a short poem about autumn.",
    "How do I boil an egg?",
    "Give me three tips for a job interview.",
    "What is 12 times 12?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "Summarize the water cycle for a child.",
    "My package has not arrived. What should I do?",
)
NEW_TOKENS = 48


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    folder = write_huggingface(tmp_path / "hf", family, **changes)
    scorer = CPU.open_scorer(built(open_model(str(folder)), tmp_path, LIMITS))
    ids = np.random.default_rng(1).integers(0, 96, 100)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    assert np.abs(scorer.logits(ids.tolist()) - expected).max() <= 1e-3


@pytest.fixture(scope="module")
def demo_model() -> Path:
    return fetch_demo_model(Path(__file__).parents[2] / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_greedy_text_of_the_demo_model_equals_transformers(demo_model: Path, tmp_path: Path) -> None:
    decoder = open_model(str(demo_model))
    engine = built(decoder, tmp_path, Limits(max_batch_size=10, max_input_len=256, max_seq_len=384, max_num_tokens=128))
    tokenizer = load_tokenizer(decoder.assets, spec=decoder.spec)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in PROMPTS]
    answers = generate(engine, [Request(i, ids, NEW_TOKENS) for i, ids in enumerate(prompts)])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        demo_model.parent, gguf_file=demo_model.name, dtype=torch.float32
    ).eval()
    same = 0
    for number, ids in enumerate(prompts):
        with torch.no_grad():
            output = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                eos_token_id=list(tokenizer.stop_token_ids),
                pad_token_id=0,
            )
        same += tokenizer.decode(answers[number][0]) == tokenizer.decode(output[0, len(ids) :].tolist())
    assert same >= len(PROMPTS) - 1

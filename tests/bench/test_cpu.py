"""The benchmark on real CPU engines of a tiny model, against the numpy forward."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from builders import write_huggingface
from cpu_engines import built

from trtbuild.bench.benchmark import run_bench
from trtbuild.bench.report.text import plain_table
from trtbuild.bench.settings import Overrides
from trtbuild.calibrate.corpus import builtin_evaluation, tokenized_samples
from trtbuild.calibrate.forward import logits
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.tokenizer import load_tokenizer
from trtbuild.profile import EngineLimits, Evaluation, Profile, Quality, Workload
from trtbuild.quantize.cast import quantize
from trtbuild.quantize.precisions import PRECISIONS

PROFILE = Profile(
    name="tiny",
    description="As little as can be measured.",
    quality=Quality(max_perplexity_change_pct=5.0),
    limits=EngineLimits(max_batch_size=4, max_input_len=100, max_seq_len=128, max_num_tokens=64),
    workload=Workload(
        prompt_tokens=(8,),
        output_tokens=4,
        concurrency=(2,),
        repeats=2,
        min_requests=6,
        min_seconds=0,
        warmup_requests=4,
    ),
    evaluation=Evaluation(windows=4, window_tokens=64, answers=3, answer_tokens=5),
)


def test_quality_is_that_of_the_forward_and_a_copy_is_not_distinguishable(tmp_path: Path) -> None:
    model = open_model(str(write_huggingface(tmp_path / "model", vocab_size=96)))
    engines = [built(quantize(model, PRECISIONS[name]), tmp_path / name) for name in ("fp32", "int8-wo")]
    result = run_bench(engines, PROFILE, overrides=Overrides(), cache=tmp_path / "cache")
    fp32, int8 = result.document["results"]
    assert (fp32["precision"], int8["precision"]) == ("fp32", "int8-wo")
    assert fp32["errors"] == int8["errors"] == 0

    tokenizer = load_tokenizer(model.assets)
    windows = tokenized_samples(tokenizer, builtin_evaluation(), 4, 64).ids
    nll = []
    for ids in windows:
        rows = logits(model, ids)[:-1].astype(np.float64)
        logp = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        nll += list(-logp[np.arange(63), ids[1:]])
    assert fp32["quality"]["perplexity"] == pytest.approx(math.exp(np.mean(nll)), rel=2e-4)
    assert result.document["quality"]["tokens_scored"] == 4 * 63
    assert 0 < int8["quality"]["kl"] < 0.01 and int8["quality"]["top1_pct"] > 80
    assert abs(int8["quality"]["perplexity_change_pct"]) < 2
    assert [row.split()[0] for row in plain_table(result.document).splitlines()] == ["precision", "fp32", "int8-wo"]

    alone = run_bench(engines[1:], PROFILE, baseline=engines[0], overrides=Overrides(), cache=tmp_path / "cache")
    assert [r["name"] for r in alone.document["results"]] == ["int8-wo"]
    assert alone.document["results"][0]["quality"]["kl"] == int8["quality"]["kl"]  # from the cache
    assert alone.document["quality"]["baseline"] == "fp32 (baseline)"

"""Perplexity, KL and agreement against their definitions in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import write_huggingface

from trtbuild.calibrate import forward
from trtbuild.calibrate.forward import hidden_states
from trtbuild.checkpoint.opening import open_model
from trtbuild.checkpoint.spec import HEAD
from trtbuild.quantize.score import baseline_of, score


def test_score_is_its_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_HEAD_BLOCK", 40)  # several blocks of a vocabulary of 96
    decoder = open_model(str(write_huggingface(tmp_path / "m")))
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, 96, length) for length in (2, 150, 31)]
    baseline = [2 * state for state in hidden_states(decoder, samples)]
    candidate = [state + 0.3 * rng.standard_normal(state.shape).astype(np.float32) for state in baseline]
    head = decoder.tensors[HEAD].read().astype(np.float64)

    def log_p(state: np.ndarray) -> np.ndarray:
        logits = state.astype(np.float64) @ head.T
        return (
            logits
            - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            - logits.max(1, keepdims=True)
        )

    pairs = [(log_p(a), log_p(b)) for a, b in zip(baseline, candidate, strict=True)]
    kl = np.concatenate([(np.exp(a) * (a - b)).sum(1) for a, b in pairs]).mean()
    top1 = np.concatenate([a.argmax(1) == b.argmax(1) for a, b in pairs]).mean()
    perplexities = []
    for which in (0, 1):
        own = [pair[which][np.arange(len(ids) - 1), ids[1:]] for pair, ids in zip(pairs, samples, strict=True)]
        perplexities.append(np.exp(-np.concatenate(own).mean()))
    found = score(decoder, baseline_of(decoder, samples, baseline, threads=2), candidate, threads=2)
    assert found.kl == pytest.approx(kl, rel=1e-4)
    assert found.top1_pct == pytest.approx(100 * top1)
    assert found.baseline_perplexity == pytest.approx(perplexities[0], rel=1e-5)
    assert found.perplexity == pytest.approx(perplexities[1], rel=1e-5)
    assert 0 < found.top1_pct < 100


def test_a_model_is_itself(tmp_path: Path) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "m")))
    samples = [np.arange(20)]
    states = hidden_states(decoder, samples)
    found = score(decoder, baseline_of(decoder, samples, states), states)
    assert (found.kl, found.perplexity_change_pct, found.top1_pct) == (0.0, 0.0, 100.0)

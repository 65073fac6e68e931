"""The forward without an oracle: what it promises about order, quantized linears and KV caches."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from builders import write_huggingface

from trtbuild.calibrate.forward import (
    KV_ROUNDING,
    apply_linear,
    attention,
    dequantized,
    hidden_states,
    logits,
    token_scales,
)
from trtbuild.checkpoint.linear import Linear
from trtbuild.checkpoint.opening import open_model
from trtbuild.errors import InputRefused


def _integers(x: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    return np.clip(np.rint(x / np.float32(scale)), -128, 127).astype(np.int64)


def _linear(**changes: object) -> tuple[np.ndarray, Linear]:
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (6, 32)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, 6).astype(np.float32)
    x = rng.standard_normal((5, 32)).astype(np.float32)
    x[2] = 0
    return x, Linear(weight, weight_scale=scale, **changes)  # type: ignore[arg-type]


def test_int8_is_integer_arithmetic() -> None:
    prequant = np.linspace(0.5, 2, 32).astype(np.float16)
    x, linear = _linear(activation_scale=0.01, prequant_scale=prequant, bias=np.ones(6, np.float16))
    integers = _integers(x * prequant.astype(np.float32), 0.01) @ linear.weight.astype(np.int64).T
    assert np.abs(integers).max() > 0
    exact = integers * 0.01 * linear.weight_scale.astype(np.float64) + 1
    np.testing.assert_allclose(apply_linear(x, dequantized(linear)), exact, rtol=1e-5, atol=1e-5)


def test_per_token_scales_each_row_by_itself() -> None:
    x, linear = _linear(per_token=True)
    scales = token_scales(x)
    assert scales[2, 0] == 1.0
    exact = (_integers(x, scales) @ linear.weight.astype(np.int64).T) * scales * linear.weight_scale
    np.testing.assert_allclose(apply_linear(x, dequantized(linear)), exact, rtol=1e-5, atol=1e-5)


def test_attention_is_the_definition() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((150, heads, 8), np.float32) for heads in (4, 2, 2))
    for window in (None, 7, 100):
        received = np.zeros(150, np.float32)
        found = attention(q, k, v, window, received)
        total = np.zeros(150)
        for head in range(4):
            scores = q[:, head] @ k[:, head // 2].T / np.sqrt(8)
            distance = np.arange(150)[:, None] - np.arange(150)
            seen = (distance >= 0) & (distance < (window or 150))
            weights = np.where(seen, np.exp(scores - scores.max()), 0)
            weights /= weights.sum(axis=1, keepdims=True)
            total += weights.sum(axis=0)
            np.testing.assert_allclose(found[:, head * 8 : head * 8 + 8], weights @ v[:, head // 2], atol=2e-5)
        np.testing.assert_allclose(received, total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
def test_batch_order_and_threads_change_no_bit(tmp_path: Path, family: str) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "m", family)))
    rng = np.random.default_rng(2)
    samples = [rng.integers(0, 96, length) for length in (1, 70, 33, 130, 33)]
    together = hidden_states(decoder, samples, threads=1)
    threaded = hidden_states(decoder, samples[::-1], threads=4)[::-1]
    alone = [hidden_states(decoder, [ids])[0] for ids in samples]
    for a, b, c in zip(together, threaded, alone, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_kv_caches_keep_what_their_type_keeps() -> None:
    x = np.array([0.0, 0.1, -1.0, 12.6, 300.0], np.float32)
    assert KV_ROUNDING["INT8"](x, 0.1).tolist() == pytest.approx([0.0, 0.1, -1.0, 12.6, 12.7], rel=1e-6)
    stored = (x / np.float32(0.5)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * 0.5
    stored[-1] = 224.0  # saturates at 448 instead of becoming NaN
    assert KV_ROUNDING["FP8"](x, 0.5).tolist() == stored.tolist()


@pytest.mark.parametrize("ids", [[], [[1, 2]], [-1], [96]])
def test_wrong_ids_are_refused(tmp_path: Path, ids: list[int]) -> None:
    decoder = open_model(str(write_huggingface(tmp_path / "m")))
    with pytest.raises(InputRefused, match="token id"):
        logits(decoder, ids)

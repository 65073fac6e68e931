"""Plans against figures others published, cards, and the largest setting that fits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from builders import family_config, write_huggingface

from trtbuild.cards import CARDS, find_card
from trtbuild.checkpoint.opening import open_spec
from trtbuild.checkpoint.spec import DecoderSpec, Quantization, RopeSpec
from trtbuild.checkpoint.trtllm_config import Ranks
from trtbuild.errors import DoesNotFit, MachineLacks, UsageError
from trtbuild.machine import Gpu, Machine
from trtbuild.plan import Plan, Row, make_plan, parameters, plan_document, require_fit
from trtbuild.quantize.precisions import PRECISIONS
from trtbuild.targets.base import BuildOptions, Limits
from trtbuild.targets.trtllm.footprint import (
    RUNTIME_BYTES,
    activation_bytes,
    buffer_bytes,
    footprint,
    kv_bytes_per_token,
    weights_bytes,
)

LLAMA_2_7B = DecoderSpec("llama", 4096, 32, 32, 32, 128, 11008, 32000, 4096, 1e-5, RopeSpec(1e4))
LLAMA_31_8B = DecoderSpec("llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072, 1e-5, RopeSpec(5e5))
LLAMA_31_70B = dataclasses.replace(LLAMA_31_8B, hidden_size=8192, num_layers=80, num_heads=64, intermediate_size=28672)
MACHINE = Machine("Linux", "3.11", "a CPU", 8, ("avx2",), 64 << 30, 48 << 30, ())
DISK = 10**13


def plan(
    spec: DecoderSpec,
    precisions: list[str],
    card: str | None = None,
    *,
    target: str = "trtllm",
    limits: Limits | None = None,
    ranks: Ranks | None = None,
    machine: Machine = MACHINE,
    disk: int = DISK,
) -> Plan:
    return make_plan(
        "model",
        spec,
        precisions,
        [target],
        limits or Limits(),
        machine,
        free_disk_bytes=disk,
        card=find_card(card) if card else None,
        ranks=ranks or Ranks(),
    )


def test_kv_bytes_of_published_models() -> None:
    assert kv_bytes_per_token(LLAMA_31_8B, Quantization()) == 131072
    assert kv_bytes_per_token(LLAMA_31_8B, Quantization(None, "INT8")) == 65536
    assert kv_bytes_per_token(LLAMA_2_7B, Quantization()) == 524288
    assert kv_bytes_per_token(LLAMA_2_7B, Quantization("FP8", "FP8")) == 262144
    assert kv_bytes_per_token(LLAMA_31_8B, Quantization(), Ranks(2, 2)) == 131072 // 4
    assert kv_bytes_per_token(LLAMA_31_8B, Quantization(), Ranks(16)) == 131072 // 8  # KV heads are duplicated


def test_parameters_of_published_models() -> None:
    assert parameters(LLAMA_31_8B) == 8_030_261_248
    assert parameters(LLAMA_31_70B) == 70_553_706_496
    tied = dataclasses.replace(LLAMA_31_8B, tie_word_embeddings=True)
    assert parameters(tied) == 8_030_261_248 - 128256 * 4096


@pytest.mark.parametrize(
    ("algo", "gigabytes"),
    [(None, 16.06), ("W8A16", 9.08), ("W8A8_SQ_PER_CHANNEL", 9.09), ("FP8", 9.08), ("W4A16_AWQ", 5.70)],
)
def test_weights_of_an_8b_per_precision(algo: str | None, gigabytes: float) -> None:
    """Linears are 6.98 B of the 8.03 B parameters; embedding and head (2.1 GB) stay in FP16."""
    got = weights_bytes(LLAMA_31_8B, Quantization(algo, group_size=128), Ranks())
    assert got / 1e9 == pytest.approx(gigabytes, abs=0.01)


def test_a_checkpoint_is_as_large_as_it_is_planned(tmp_path: Path) -> None:
    from trtllm_checkpoints import ALGOS, write_trtllm

    from trtbuild.checkpoint.trtllm import read_checkpoint

    for precision in ("fp16", "int8-wo", "int8", "fp8", "int4-awq"):
        checkpoint = write_trtllm(tmp_path / precision, precision, vocab_size=256)
        decoder = read_checkpoint(checkpoint)
        held = sum(t.dtype.itemsize * _count(t.shape) for t in decoder.tensors.values())
        planned = weights_bytes(decoder.spec, decoder.quantization, Ranks(), checkpoint=True)
        assert planned == pytest.approx(held, rel=0.02), ALGOS[precision]


def _count(shape: tuple[int, ...]) -> int:
    return 1 if not shape else shape[0] * _count(shape[1:])


def test_the_published_memory_log_within_ten_percent() -> None:
    """A 6695 MiB engine, 1134 MiB activations at 8192 tokens, 223.6 MB buffers, 70.48 of 79.10 GiB left."""
    limits = Limits(max_batch_size=256, max_input_len=1024, max_seq_len=2048, max_num_tokens=8192)
    quantization = Quantization("FP8", "FP8")
    need = footprint(LLAMA_2_7B, quantization, limits, BuildOptions())
    mib = 2**20
    assert need.weights_bytes / mib == pytest.approx(6695, rel=0.01)
    assert activation_bytes(LLAMA_2_7B, limits) / mib == pytest.approx(1134, rel=0.01)
    assert RUNTIME_BYTES + buffer_bytes(LLAMA_2_7B, limits) == pytest.approx(775 * mib + 223.6e6, rel=0.1)
    left = 79.10 * 2**30 - need.weights_bytes - need.activation_bytes - need.runtime_bytes
    assert left / 2**30 == pytest.approx(70.48, rel=0.01)
    card = find_card("80GB SM90")
    card = dataclasses.replace(card, memory_mib=int(79.10 * 1024))
    made = make_plan("m", LLAMA_2_7B, ["fp8"], ["trtllm"], limits, MACHINE, free_disk_bytes=DISK, card=card)
    assert made.rows[0].pool_tokens == pytest.approx(259840 // 2, rel=0.01)  # an FP8 plan leaves the cache in FP16


def test_a_70b_config_alone_is_enough(tmp_path: Path) -> None:
    config = family_config(
        "llama",
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=28672,
        vocab_size=128256,
        max_position_embeddings=131072,
        torch_dtype="bfloat16",
    )
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = open_spec(str(tmp_path))
    assert (parameters(spec), spec.dtype) == (70_553_706_496, "bfloat16")
    with pytest.raises(DoesNotFit) as caught:
        require_fit(plan(spec, ["fp16"], "A10 24GB"))
    assert caught.value.exit_code == 5
    assert "A10 24GB has 22.5 GiB" in str(caught.value)
    assert "--tp 8" in (caught.value.hint or "")
    require_fit(plan(spec, ["fp16"], "A10 24GB", ranks=Ranks(8)))
    require_fit(plan(spec, ["fp16", "int8"], "H100"))


def test_the_largest_setting_that_fits_is_named_and_true() -> None:
    limits = Limits(max_batch_size=16, max_input_len=8192, max_seq_len=131072, max_num_tokens=8192)
    (row,) = plan(LLAMA_31_8B, ["fp16"], "A10 24GB", limits=limits).rows
    assert row.fits is False
    assert row.largest is not None
    words = row.largest.replace(",", "").split()
    given = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    fitting = dataclasses.replace(limits, **given)
    assert plan(LLAMA_31_8B, ["fp16"], "A10 24GB", limits=fitting).rows[0].fits is True
    last = next(reversed(given))
    beyond = dataclasses.replace(fitting, **{last: given[last] + 1})
    assert plan(LLAMA_31_8B, ["fp16"], "A10 24GB", limits=beyond).rows[0].fits is False


def test_a_preallocated_pool_names_the_largest_batch() -> None:
    limits = Limits(max_batch_size=64, max_input_len=2048, max_seq_len=8192, max_num_tokens=2048)
    made = plan(LLAMA_31_8B, ["fp16"], target="cpu", limits=limits)
    (row,) = made.rows
    assert row.device.memory_bytes == MACHINE.available_bytes
    assert row.fits is False
    assert row.largest is not None
    assert row.largest.startswith("max_batch_size ")
    batch = int(row.largest.split()[1])
    assert (
        plan(LLAMA_31_8B, ["fp16"], target="cpu", limits=dataclasses.replace(limits, max_batch_size=batch)).rows[0].fits
    )
    with pytest.raises(DoesNotFit, match=r"this machine's memory has 48\.0 GiB") as caught:
        require_fit(made)
    assert row.largest in (caught.value.hint or "")


def test_pool_and_concurrency_on_a_card() -> None:
    limits = Limits(max_batch_size=16, max_input_len=2048, max_seq_len=4096, max_num_tokens=4096)
    fp16, int8 = plan(LLAMA_31_8B, ["fp16", "int8"], "A10 24GB", limits=limits).rows
    for row in (fp16, int8):
        assert row.pool_tokens % 32 == 0
        assert row.concurrent == min(16, row.pool_tokens // 4096)
        assert row.peak_bytes <= row.device.memory_bytes
    assert int8.pool_tokens > 2 * fp16.pool_tokens
    assert fp16.decode_tok_s == pytest.approx(600e9 / (16.06e9 - 1.05e9), rel=0.01)


def test_a_precision_the_gpu_refuses_is_told_by_the_rule() -> None:
    made = plan(LLAMA_31_8B, ["int8"], "B200")
    assert [finding.rule for finding in made.rows[0].refused] == ["blackwell-int8"]
    with pytest.raises(MachineLacks, match="blackwell-int8"):
        require_fit(made)
    require_fit(plan(LLAMA_31_8B, ["int8", "fp8"], "B200"))


def test_of_several_that_do_not_fit_the_smallest_is_told() -> None:
    with pytest.raises(DoesNotFit, match="int8-wo on trtllm needs") as caught:
        require_fit(plan(LLAMA_31_70B, ["fp32", "fp16", "int8-wo"], "A10"))
    assert caught.value.hint == "fits: tensor parallelism over 4 of these GPUs (--tp 4)"


def test_the_local_gpu_is_planned_for_when_no_card_is_named() -> None:
    gpu = Gpu(0, "NVIDIA L4", 23034 << 20, 22500 << 20, 89, "580")
    (row,) = plan(LLAMA_31_8B, ["fp16"], machine=dataclasses.replace(MACHINE, gpus=(gpu,))).rows
    assert (row.device.name, row.device.memory_bytes, row.fits) == ("NVIDIA L4", 23034 << 20, True)
    (row,) = plan(LLAMA_31_8B, ["fp16"]).rows
    assert (row.fits, row.largest) == (None, None)


def test_a_disk_that_is_too_small() -> None:
    with pytest.raises(DoesNotFit, match=r"would be written and 9\.3 GiB are free"):
        require_fit(plan(LLAMA_31_8B, ["fp16"], target="cpu", limits=Limits(max_batch_size=1), disk=10**10))
    require_fit(plan(LLAMA_31_8B, ["fp16"], "L4", disk=10**10))  # another machine's disk is not known
    made = plan(LLAMA_31_8B, ["fp16"], "L4")
    assert made.disk_bytes == made.rows[0].checkpoint_bytes + made.rows[0].engine_bytes


def test_calibration_takes_disk_and_not_memory_with_more_samples() -> None:
    def rows(tokens: int) -> tuple[Row, ...]:
        return make_plan(
            "m",
            LLAMA_31_8B,
            ["fp16", "int8"],
            ["trtllm"],
            Limits(),
            MACHINE,
            free_disk_bytes=DISK,
            card=find_card("L40S"),
            calibration_tokens=tokens,
        ).rows

    (fp16, few), (_, many) = rows(1000), rows(64_000)
    assert (fp16.scratch_bytes, many.scratch_bytes) == (0, 2 * 4 * 64_000 * 4096)
    assert few.quantize_peak_bytes == many.quantize_peak_bytes > fp16.quantize_peak_bytes
    assert many.quantize_peak_bytes < many.checkpoint_bytes  # tensors are streamed


def test_every_precision_has_a_plan_and_a_json_form() -> None:
    made = plan(LLAMA_31_8B, list(PRECISIONS), "B200")
    document = json.loads(json.dumps(plan_document(made)))
    assert [row["precision"] for row in document["rows"]] == list(PRECISIONS)
    assert all(row["peak_bytes"] > row["weights_bytes"] > 0 for row in document["rows"])
    with pytest.raises(UsageError, match="int9"):
        plan(LLAMA_31_8B, ["int9"])


@pytest.mark.parametrize(
    ("text", "name", "memory_gb", "sm"),
    [
        ("A10 24GB", "A10", 24, 86),
        ("a10", "A10", 24, 86),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 80),
        ("A100", "A100", 40, 80),
        ("A100 80 GiB", "A100", 80, 80),
        ("NVIDIA H100 80GB HBM3", "H100", 80, 90),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 89),
        ("rtx 5060 ti 16gb", "RTX 5060 Ti", 16, 120),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 48, 89),
        ("24GB SM86", "custom", 24, 86),
        ("48 GB", "custom", 48, None),
    ],
)
def test_cards_are_found_by_any_of_their_names(text: str, name: str, memory_gb: int, sm: int | None) -> None:
    card = find_card(text)
    assert (card.name, card.nominal_gb, card.sm) == (name, memory_gb, sm)


@pytest.mark.parametrize(
    ("text", "hint"), [("A11", "A10 24GB"), ("A10 48GB", "A10 24GB"), ("", "24GB SM86"), ("H1000", "H100 80GB")]
)
def test_a_card_that_does_not_exist(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_card(text)
    assert hint in (caught.value.hint or "")


def test_every_card_is_found_by_its_own_title() -> None:
    for card in CARDS:
        assert find_card(card.title) == card
        assert 0.9 * card.nominal_gb <= card.memory_bytes / 2**30 <= card.nominal_gb


def test_weights_need_not_be_there_but_may_be(tmp_path: Path) -> None:
    spec = open_spec(str(write_huggingface(tmp_path)))
    assert spec.num_layers == 2

"""Build a CPU engine of a tiny decoder, and let it generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.checkpoint.spec import Decoder
from trtbuild.checkpoint.trtllm import write_checkpoint
from trtbuild.progress import silent
from trtbuild.targets.base import BuildOptions, Limits
from trtbuild.targets.registry import load_target
from trtbuild.targets.serving import Request

LIMITS = Limits(max_batch_size=4, max_input_len=100, max_seq_len=128, max_num_tokens=64)
CPU = load_target("cpu")


def as_checkpoint(decoder: Decoder, folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_checkpoint(decoder, folder)
    return folder


def built(decoder: Decoder, folder: Path, limits: Limits = LIMITS, **options: Any) -> Path:
    checkpoint = as_checkpoint(decoder, folder / "checkpoint")
    return CPU.build(checkpoint, folder / "engine", limits, BuildOptions(**options), silent)


def tokens(decoder: Decoder, count: int, seed: int = 1) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, decoder.spec.vocab_size, count)]


def generate(engine: Path, requests: list[Request]) -> dict[int, tuple[list[int], str]]:
    """Tokens and finish reason of each request, all submitted at once."""
    driver = CPU.open_driver(engine)
    for request in requests:
        driver.submit(request)
    answers: dict[int, list[int]] = {request.id: [] for request in requests}
    finished: dict[int, str] = {}
    while len(finished) < len(requests):
        for event in driver.step(None):
            answers[event.request_id] += event.token_ids
            if event.finish is not None:
                finished[event.request_id] = event.finish if event.error is None else event.error
    driver.close()
    return {number: (answers[number], finished[number]) for number in answers}

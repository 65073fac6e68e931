"""Measuring quality: every engine scores the same windows and answers the same questions, paired with the baseline.

Logits of a large vocabulary are too many to keep, so the baseline's logits of one window go into a temporary file, all
engines are compared with it, and it is deleted; only when the engines do not fit into memory together are all windows
kept for the time it takes. What an engine said is cached under the fingerprint of everything that decided it.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.bench.engines import EngineSource
from trtbuild.bench.measurement import Measured
from trtbuild.bench.quality import Scores, ScoreWindow, cut_windows
from trtbuild.bench.remote import EngineDied, Fleet
from trtbuild.bench.session import SpeedSession
from trtbuild.calibrate.corpus import builtin_evaluation, chat_prompts, prompt_ids, tokenized_samples
from trtbuild.checkpoint.tokenizer import Tokenizer
from trtbuild.profile import Evaluation
from trtbuild.progress import Progress
from trtbuild.store.atomic import atomic_file
from trtbuild.store.fingerprint import fingerprint_json
from trtbuild.store.manifest import package_versions

_PACKAGES = ("trtbuild", "numpy", "openvino", "openvino-genai", "tensorrt_llm")


@dataclass(frozen=True)
class QualityTask:
    """The text and the questions, as ids, and how they were made."""

    windows: tuple[ScoreWindow, ...]
    questions: tuple[tuple[int, ...], ...]
    answer_tokens: int
    window_tokens: int
    stride: int
    bos: bool
    text: str

    @property
    def tokens(self) -> int:
        return sum(len(window.ids) - window.first for window in self.windows)

    def describe(self) -> dict[str, Any]:
        """What perplexity depends on, for the report."""
        return {
            "text": self.text,
            "windows": len(self.windows),
            "window_tokens": self.window_tokens,
            "stride": self.stride,
            "bos": self.bos,
            "tokens_scored": self.tokens,
            "questions": len(self.questions),
            "answer_tokens": self.answer_tokens,
        }


def quality_task(tokenizer: Tokenizer, evaluation: Evaluation, max_seq_len: int | None) -> QualityTask:
    """The evaluation set and the built-in questions, shortened to what every engine can hold."""
    length = evaluation.window_tokens if max_seq_len is None else min(evaluation.window_tokens, max_seq_len)
    samples = tokenized_samples(tokenizer, builtin_evaluation(), evaluation.windows, length)
    windows = [window for ids in samples.ids for window in cut_windows(ids.tolist(), length, length)]
    questions = [tuple(prompt_ids(tokenizer, prompt.text)) for prompt in chat_prompts()[: evaluation.answers]]
    bos = tokenizer.bos_token_id is not None and all(w.ids[0] == tokenizer.bos_token_id for w in windows)
    text = f"built-in evaluation text, {samples.data_fingerprint[:12]}"
    return QualityTask(tuple(windows), tuple(questions), evaluation.answer_tokens, length, length, bos, text)


class ScoreCache:
    """Scores and answers on disk, each under the fingerprint of everything that decided it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def _path(self, key: Mapping[str, Any]) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{fingerprint_json({**key, 'packages': package_versions(_PACKAGES)})}.npz"

    def load(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        path = self._path(key)
        if path is None or not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile):  # cut short: as if it were not there
            return None

    def save(self, key: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        path = self._path(key)
        if path is not None:
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)


def default_cache() -> Path:
    """Where scores are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "trtbuild" / "quality"


def collect_answers(session: SpeedSession, task: QualityTask, cache: ScoreCache) -> None:
    """Greedy answers of every engine that still lives."""
    engines = [m for m in session.measured if m.error is None]
    with session.progress.task("answering questions", len(engines)) as advance:
        for measured in engines:
            key = {"answers": task.questions, "tokens": task.answer_tokens, "engine": measured.source.fingerprint}
            stored = cache.load(key)
            if stored is not None:
                measured.answers = _unpack(stored)
            else:
                try:
                    worker = session.fleet.get(measured.source)
                    measured.answers = worker.answers(task.questions, task.answer_tokens)
                    cache.save(key, _pack(measured.answers))
                except EngineDied as death:
                    session.give_up(measured, death)
            advance(1)


def _pack(answers: Sequence[list[int] | None]) -> dict[str, Any]:
    """Answers as arrays; a length of -1 is a question that was not answered."""
    lengths = np.array([-1 if ids is None else len(ids) for ids in answers], np.int64)
    return {"lengths": lengths, "ids": np.array([i for ids in answers for i in ids or ()], np.int64)}


def _unpack(stored: Mapping[str, Any]) -> list[list[int] | None]:
    answers: list[list[int] | None] = []
    start = 0
    for length in stored["lengths"].tolist():
        answers.append(None if length < 0 else stored["ids"][start : start + length].tolist())
        start += max(length, 0)
    return answers


def collect_scores(
    engines: Sequence[Measured], baseline: Measured | None, task: QualityTask, cache: ScoreCache, progress: Progress
) -> None:
    """Score the windows with every engine; those with a scorer only, and the baseline before the others."""
    scorable = [m for m in engines if m.source.scorer is not None]
    if baseline is not None and baseline in scorable:
        scorable.sort(key=lambda m: m is not baseline)
    base = baseline.source.fingerprint if baseline is not None else None
    keys = {m.source.name: _score_key(task, m.source, base) for m in scorable}
    missing = []
    for measured in scorable:
        stored = cache.load(keys[measured.source.name])
        if stored is None:
            missing.append(measured)
        else:
            measured.scores = _unpack_scores(stored)
    if not missing:
        return
    if baseline is not None and baseline in scorable and baseline not in missing:
        missing.insert(0, baseline)  # its logits are needed again for the divergence
    _score(missing, baseline, task, progress)
    for measured in missing:
        if measured.scores is not None:
            cache.save(keys[measured.source.name], _pack_scores(measured.scores))


def _score_key(task: QualityTask, source: EngineSource, baseline: str | None) -> dict[str, Any]:
    windows = [[list(window.ids), window.first] for window in task.windows]
    return {"scores": windows, "engine": source.fingerprint, "baseline": baseline}


def _score(engines: Sequence[Measured], baseline: Measured | None, task: QualityTask, progress: Progress) -> None:
    for measured in engines:
        measured.scores = Scores()
    fleet = Fleet(lambda process: process.open_scorer())
    together = fleet.fits([m.source for m in engines])
    chunk = 1 if together else len(task.windows)
    with (
        tempfile.TemporaryDirectory(prefix="trtbuild-logits-") as folder,
        progress.task("scoring text", len(task.windows) * len(engines)) as advance,
    ):
        try:
            for start in range(0, len(task.windows), chunk):
                windows = task.windows[start : start + chunk]
                files = [Path(folder, f"{start + i}.npy") for i in range(len(windows))]
                for measured in engines:
                    for window, file in zip(windows, files, strict=True):
                        _score_one(fleet, measured, measured is baseline, window, file if len(engines) > 1 else None)
                        advance(1)
                for file in files:
                    file.unlink(missing_ok=True)
        finally:
            fleet.close()


def _score_one(fleet: Fleet, measured: Measured, is_baseline: bool, window: ScoreWindow, file: Path | None) -> None:
    if measured.scores is None:
        return
    write = file if is_baseline else None
    against = file if not is_baseline and file is not None and file.exists() else None
    try:
        found = fleet.get(measured.source).score(window.ids, window.first, write=write, against=against)
    except EngineDied as death:
        measured.scores = None
        measured.error = measured.error or str(death)
        return
    measured.scores.add(found)


def _pack_scores(scores: Scores) -> dict[str, Any]:
    empty = np.empty(0)
    return {
        "lengths": np.array([len(part) for part in scores.logp], np.int64),
        "logp": np.concatenate(scores.logp),
        "top1": np.concatenate(scores.top1),
        "kl": np.concatenate(scores.kl) if scores.kl else empty,
    }


def _unpack_scores(stored: Mapping[str, Any]) -> Scores:
    cuts = np.cumsum(stored["lengths"])[:-1]
    kl = np.split(stored["kl"], cuts) if len(stored["kl"]) else []
    return Scores(np.split(stored["logp"], cuts), np.split(stored["top1"], cuts), kl)

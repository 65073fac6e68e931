"""lm-evaluation-harness on an engine: its tasks ask, our scorer and driver answer (extra `eval`).

Log-likelihoods come from the engine's logits, generated text from its driver with greedy decoding, so a task measures
the engine that is shipped and not the model it was built from.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtbuild.bench.driver import Driver, Request, Scorer
from trtbuild.bench.engines import EngineSource
from trtbuild.bench.measurement import Measured
from trtbuild.bench.workload import engine_tokenizer
from trtbuild.checkpoint.tokenizer import Tokenizer
from trtbuild.errors import MachineLacks, UsageError
from trtbuild.progress import Progress
from trtbuild.targets.registry import resolve

_MAX_NEW_TOKENS = 256


def run_tasks(engines: Sequence[Measured], tasks: Sequence[str], progress: Progress) -> None:
    """Run lm-eval tasks on every engine and keep each task's numbers.

    Raises MachineLacks when lm-eval is not installed, UsageError for a task it does not know.
    """
    try:
        lm_eval = importlib.import_module("lm_eval")
    except ImportError as error:
        raise MachineLacks(f"lm-eval is not installed ({error})", hint="pip install 'trtbuild[eval]'") from error
    with progress.task("lm-eval tasks", len(engines)) as advance:
        for measured in engines:
            if measured.under_test and measured.error is None:
                model = engine_model(measured.source)
                try:
                    found = lm_eval.simple_evaluate(model=model, tasks=list(tasks), bootstrap_iters=1000)
                except (KeyError, ValueError) as error:
                    raise UsageError(f"lm-eval cannot run {', '.join(tasks)} ({error})") from error
                finally:
                    model.close()
                measured.tasks = {task: _numbers(values) for task, values in found["results"].items()}
            advance(1)


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
    return {name: value for name, value in numbers.items() if name != "sample_len"}


def engine_model(source: EngineSource) -> Any:
    """lm-eval's model class around an engine; made here because its base class exists only where lm-eval does."""
    from lm_eval.api.model import LM

    tokenizer = engine_tokenizer(source.path)
    if tokenizer is None or source.scorer is None:
        raise UsageError(f"{source.name} has no tokenizer or no scorer, so no task can ask it anything")

    class EngineModel(LM):  # type: ignore[misc]
        """The three questions lm-eval asks."""

        def __init__(self, answering: EngineAnswers) -> None:
            super().__init__()
            self.answering = answering

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            return [self.answering.continuation(*request.args) for request in requests]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            return [self.answering.whole_text(request.args[0]) for request in requests]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return [self.answering.generate(*request.args) for request in requests]

        def close(self) -> None:
            self.answering.close()

    return EngineModel(EngineAnswers(source, tokenizer))


class EngineAnswers:
    """Text in, numbers or text out, on one engine. The scorer and the driver are opened when first needed."""

    def __init__(self, source: EngineSource, tokenizer: Tokenizer) -> None:
        self._source, self._tokenizer = source, tokenizer
        self._scorer: Scorer | None = None
        self._driver: Driver | None = None
        self._asked = 0
        self._limit = source.limits.max_seq_len if source.limits is not None else 1 << 30

    def continuation(self, context: str, continuation: str) -> tuple[float, bool]:
        """Log-probability of `continuation` after `context`, and whether greedy decoding would write it.

        White space at the end of the context belongs to the continuation's first token; what is too long for the
        engine loses its beginning.
        """
        bare = context.rstrip()
        whole = self._tokenizer.encode(context + continuation)
        start = len(self._tokenizer.encode(bare)) if bare else len(self._prefix())
        if not bare:
            whole = [*self._prefix(), *self._tokenizer.encode(context + continuation, add_special_tokens=False)]
        cut = max(0, len(whole) - self._limit)
        return self._score(whole[cut:], max(1, start - cut))

    def whole_text(self, text: str) -> float:
        """Log-probability of a text, in windows that do not overlap, each after the beginning-of-text token."""
        ids, prefix = self._tokenizer.encode(text, add_special_tokens=False), self._prefix()
        size = self._limit - len(prefix)
        parts = [ids[start : start + size] for start in range(0, len(ids), size)]
        return sum(self._score([*prefix, *part], len(prefix))[0] for part in parts)

    def _prefix(self) -> list[int]:
        """What stands before a text without context: the BOS, or where there is none an end-of-text token."""
        bos = self._tokenizer.bos_token_id
        return [bos if bos is not None else self._tokenizer.stop_token_ids[0]]

    def _score(self, ids: Sequence[int], first: int) -> tuple[float, bool]:
        if self._scorer is None:
            assert self._source.scorer is not None
            self._scorer = resolve(self._source.scorer)(self._source.path)
        logits = self._scorer.logits(ids)[first - 1 : len(ids) - 1].astype(np.float64)
        targets = np.asarray(ids[first:])
        shifted = logits - logits.max(axis=1, keepdims=True)
        logp = shifted[np.arange(len(targets)), targets] - np.log(np.exp(shifted).sum(axis=1))
        return float(logp.sum()), bool((logits.argmax(axis=1) == targets).all())

    def generate(self, context: str, settings: dict[str, Any]) -> str:
        """Greedy text up to the first stop text; a context that is too long loses its beginning."""
        if self._driver is None:
            self._driver = resolve(self._source.driver)(self._source.path)
        limits = self._source.limits
        tokens = int(settings.get("max_gen_toks", _MAX_NEW_TOKENS))
        room = self._limit - tokens if limits is None else min(limits.max_input_len, self._limit - tokens)
        stops = settings.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        self._asked += 1
        self._driver.submit(Request(self._asked, self._tokenizer.encode(context)[-room:], tokens))
        ids: list[int] = []
        while True:
            for event in self._driver.step(self._driver.now()):
                if event.request_id != self._asked:  # the end of an answer that was stopped before
                    continue
                ids.extend(event.token_ids)
                text = self._tokenizer.decode(ids)
                ends = [text.index(stop) for stop in stops if stop in text]
                if event.finish is None and ends:
                    self._driver.cancel(self._asked)
                if event.finish is not None or ends:
                    return text[: min(ends)] if ends else text

    def close(self) -> None:
        for opened in (self._scorer, self._driver):
            if opened is not None:
                opened.close()

"""What the rules about a TensorRT-LLM checkpoint look at, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtbuild.checkpoint.safetensors import StoredTensor
from trtbuild.checkpoint.spec import DecoderSpec, Quantization, module_path
from trtbuild.checkpoint.trtllm_layouts import Expected, linear_modules
from trtbuild.checkpoint.trtllm_reader import RankFiles


@dataclass(frozen=True)
class Finding:
    """One breach of a rule. `tensor` names the tensor where there is one; only `fatal` findings stop a build."""

    rule: str
    text: str
    tensor: str | None = None
    hint: str | None = None
    fatal: bool = True


@dataclass(frozen=True)
class Subject:
    """A checkpoint under examination; `expected` is empty when it cannot be known (see the rules on sizes)."""

    files: RankFiles
    spec: DecoderSpec
    quantization: Quantization
    expected: tuple[dict[str, Expected], ...]

    def per_rank(self) -> Iterator[tuple[dict[str, Expected], dict[str, StoredTensor], str]]:
        """(expected, stored, file name) of every rank; nothing when the expectation is not known."""
        for expected, row in zip(self.expected, self.files.files, strict=False):
            for file in row:
                yield expected, dict(file.tensors), file.path.name

    def stored(self) -> Iterator[StoredTensor]:
        for row in self.files.files:
            for file in row:
                yield from file.tensors.values()

    def linears(self) -> Iterator[tuple[str, str]]:
        """(path, module) of every linear of a pipeline stage."""
        for layer in range(self.spec.num_layers // self.files.ranks.pp):
            for module in linear_modules(self.spec):
                yield module_path(layer, module), module


@dataclass(frozen=True)
class Breach:
    """What a rule reports; the table adds the rule's name, hint and weight."""

    text: str
    tensor: str | None = None
    hint: str | None = None


Check = Callable[[Subject], Iterator[Breach]]

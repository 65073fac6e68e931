"""The TensorRT-LLM checkpoint, the hub every engine is built from: read, write, validate.

A folder of `config.json` and `rank{r}.safetensors`, r = pp_rank · tp_size + tp_rank.
"""

from __future__ import annotations

from trtbuild.checkpoint.trtllm_findings import Finding
from trtbuild.checkpoint.trtllm_reader import read_checkpoint
from trtbuild.checkpoint.trtllm_validate import validate_checkpoint
from trtbuild.checkpoint.trtllm_writer import write_checkpoint

__all__ = ["Finding", "read_checkpoint", "validate_checkpoint", "write_checkpoint"]

"""Bytes that follow from a spec alone, for targets that keep one copy of the weights in this process's terms."""

from __future__ import annotations

from trtbuild.checkpoint.spec import LINEAR_MODULES, DecoderSpec, Quantization, module_path

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def layer_bytes(spec: DecoderSpec, quantization: Quantization, layer: int = 0) -> int:
    """Bytes of the linear weights of one layer: quantized ones one byte each, with an FP32 scale per row."""
    total = 0
    for module in LINEAR_MODULES:
        rows, columns = spec.linear_shape(module)
        quantized = quantization.quantizes(module_path(layer, module))
        total += rows * columns + rows * 4 if quantized else rows * columns * DTYPE_BYTES[spec.dtype]
    return total


def weight_bytes(spec: DecoderSpec, quantization: Quantization) -> int:
    """Bytes of the weights in the engine's file, a tied head once."""
    tables = spec.vocab_size * spec.hidden_size * DTYPE_BYTES[spec.dtype] * (1 if spec.tie_word_embeddings else 2)
    return tables + sum(layer_bytes(spec, quantization, layer) for layer in range(spec.num_layers))

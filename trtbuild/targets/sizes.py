"""Bytes that follow from a spec alone, for targets that keep one copy of the weights in this process's terms."""

from __future__ import annotations

from trtbuild.checkpoint.spec import LINEAR_MODULES, DecoderSpec, Quantization, module_path

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def weight_bytes(spec: DecoderSpec, quantization: Quantization) -> int:
    """Bytes of the weights in the engine's file: quantized linears one byte each, a tied head once."""
    float_bytes = DTYPE_BYTES[spec.dtype]
    tables = spec.vocab_size * spec.hidden_size * float_bytes
    total = tables if spec.tie_word_embeddings else 2 * tables
    for layer in range(spec.num_layers):
        for module in LINEAR_MODULES:
            rows, columns = spec.linear_shape(module)
            quantized = quantization.quantizes(module_path(layer, module))
            total += rows * columns * (1 if quantized else float_bytes) + (rows * 4 if quantized else 0)
    return total

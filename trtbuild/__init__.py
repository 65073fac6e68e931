"""From a Hugging Face checkpoint to TensorRT-LLM engines, rehearsed on a CPU from the same checkpoint."""

__version__ = "0.1.0"

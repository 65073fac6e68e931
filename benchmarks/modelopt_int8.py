"""What a user of nvidia-modelopt writes to get an INT8 TensorRT-LLM checkpoint; run by calibration_modelopt.py.

python modelopt_int8.py FOLDER SAMPLES.npy {max,entropy} OUT
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import modelopt.torch.quantization as mtq
import numpy as np
import torch
import transformers
from modelopt.torch.export import export_tensorrt_llm_checkpoint
from modelopt.torch.quantization.calib import HistogramCalibrator
from modelopt.torch.quantization.nn import TensorQuantizer


def entropy(model: torch.nn.Module, loop: Callable[[torch.nn.Module], None]) -> None:
    """Replace the maxima of the input quantizers by thresholds of its HistogramCalibrator."""
    quantizers = {name: m for name, m in model.named_modules() if isinstance(m, TensorQuantizer) and m.is_enabled}
    inputs = [m for name, m in quantizers.items() if name.endswith("input_quantizer")]
    others = [m for name, m in quantizers.items() if not name.endswith("input_quantizer")]
    for quantizer in others:
        quantizer.disable()
    for quantizer in inputs:
        quantizer._calibrator = HistogramCalibrator(8, None, False)
        quantizer.disable_quant()
        quantizer.enable_calib()
    loop(model)
    for quantizer in inputs:
        quantizer.load_calib_amax("entropy")
        quantizer.enable_quant()
        quantizer.disable_calib()
    for quantizer in others:
        quantizer.enable()


def main() -> None:
    folder, samples, method, out = sys.argv[1:]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(np.load(samples).astype(np.int64))

    def loop(model: torch.nn.Module) -> None:
        with torch.no_grad():
            for row in ids:
                model(row[None])

    config = copy.deepcopy(mtq.INT8_SMOOTHQUANT_CFG)
    if method == "entropy":
        config["algorithm"] = {"method": "smoothquant", "alpha": 0.5}
    model = mtq.quantize(model, config, loop)
    if method == "entropy":
        entropy(model, loop)
    Path(out).mkdir(parents=True, exist_ok=True)
    export_tensorrt_llm_checkpoint(
        model, "llama", torch.float16, export_dir=out, inference_tensor_parallel=1, inference_pipeline_parallel=1
    )


if __name__ == "__main__":
    main()

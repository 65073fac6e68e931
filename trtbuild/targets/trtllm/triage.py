"""Known causes of failures of NVIDIA's tools, as one table: what the log says, what it means, what to do.

The patterns are messages quoted in public issue threads and in the source of the tools; the thread is named beside
each. The first line of the log that any row matches decides, since later errors are usually its consequences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import DoesNotFit, InputRefused, MachineLacks, TrtbuildError
from trtbuild.targets.trtllm.process import Completed
from trtbuild.targets.trtllm.version import LAST_RELEASE


@dataclass(frozen=True)
class Cause:
    """A row: `pattern` found in a line means `cause`; `{0}`, `{1}` … in it are the pattern's groups."""

    pattern: str
    cause: str
    way_out: str
    error: type[TrtbuildError] = InputRefused
    thread: str = ""


CAUSES: tuple[Cause, ...] = (
    Cause(
        r"max_workers must be greater than 0",
        "there is no GPU: trtllm-build clamps its workers to the number of GPUs, and 0 crash its process pool",
        "build on a GPU machine; quantize and plan run anywhere",
        MachineLacks,
        "#1523",
    ),
    Cause(
        r"(?i)no CUDA-capable device|found no NVIDIA driver|cudaErrorNoDevice|CUDA driver version is insufficient"
        r"|could not select device driver|CUDA error: 35\b",
        "no usable GPU or driver",
        "check nvidia-smi; in a container, the NVIDIA container toolkit",
        MachineLacks,
        "#1839",
    ),
    Cause(
        r"undefined symbol|libpython[\w.]*: cannot open shared object",
        "tensorrt_llm does not match the torch or Python it runs in",
        "`trtbuild doctor` compares the installed versions with what the release needs",
        MachineLacks,
        "#7665",
    ),
    Cause(
        r"(lib(?:mpi|nvinfer|nvonnx|cudart|cublas|nccl|tensorrt)[\w.-]*): cannot open shared object",
        "the library {0} is missing",
        "install the packages the release needs (libopenmpi-dev, the CUDA toolkit), or use --container",
        MachineLacks,
        "#167",
    ),
    Cause(
        r"PRTE ERROR|ORTE_ERROR|MPI_ERR_SPAWN|It looks like MPI_INIT failed",
        "MPI cannot start its processes here",
        "use the system's OpenMPI instead of a conda one, or --container; `trtbuild doctor` tries it",
        MachineLacks,
        "#2476",
    ),
    Cause(
        r"Version tag does not match.*?(\d+).*?(\d+)",
        "this TensorRT (version tag {0}) cannot read an engine of another TensorRT (version tag {1})",
        "build the engine again with the release that runs it",
        InputRefused,
        "tensorrtllm_backend #531",
    ),
    Cause(
        r"expecting compute (\S+) got compute (\S+)",
        "an engine is for one kind of GPU, and this is another (compute {0} against {1})",
        "build the engine on the GPU that runs it",
        InputRefused,
        "llama_index #12318",
    ),
    Cause(
        r"mpiSize == tp \* pp|MPI size \d+ != TP size",
        "an engine of several ranks was started as one process",
        "start it with the launch line of `trtbuild inspect ENGINE`",
        InputRefused,
        "#1796",
    ),
    Cause(
        r"InflightBatching requires GPT attention plugin with packed input and paged KV cache",
        "the engine was built without attention plugin, packed input or paged KV",
        "build it again with `trtbuild build`, which sets all three",
        InputRefused,
        "#89",
    ),
    Cause(
        r"Number of bytes for rows and cols must be a multiple of 32",
        "a layer's size per rank does not fit the kernels of this precision",
        "use a smaller tp, or another precision",
        InputRefused,
        "#843",
    ),
    Cause(
        r"No valid weight only groupwise GEMM tactic",
        "no kernel for this group size and layer size",
        "quantize with group_size 128 and a smaller tp",
        InputRefused,
        "#1547",
    ),
    Cause(
        r"Required but not provided tensors:?\s*(.{0,200})",
        "the checkpoint lacks tensors its quant_algo needs: {0}",
        "quantize again; weight-only checkpoints must hold floating weights",
        InputRefused,
        "#1677",
    ),
    Cause(
        r"Encounter error '(.*?)' for parameter '(.*?)'",
        "tensor {1} does not fit the config: {0}",
        "quantize the model again",
    ),
    Cause(
        r"KeyError: 'architecture'",
        "the folder is not a TensorRT-LLM checkpoint",
        "make one with `trtbuild quantize MODEL -o CKPT`",
        InputRefused,
        "#6360",
    ),
    Cause(
        r"KeyError: '?rope|rope_scaling.*(?:ValueError|must be)|ValueError.*rope_scaling",
        "the installed transformers is older than the model's rope settings",
        "`trtbuild doctor` shows which transformers the release needs",
        InputRefused,
        "#2471",
    ),
    Cause(
        r"Calibration failure occurred with no scaling factors",
        "INT8 was asked for without scaling factors",
        "quantize the model (or its KV cache) first: `trtbuild quantize`",
        InputRefused,
        "#1268",
    ),
    Cause(
        r"(?i)(?:weight.only|smooth ?quant|int8 kv|per.channel|per.token).*not supported.*(?:sm|blackwell)",
        "this GPU does not run the checkpoint's INT8 or INT4 algorithm (SM 100-119)",
        "quantize to fp8 or nvfp4",
        InputRefused,
        "#5018",
    ),
    Cause(
        r"tensor volume exceeds.*?dimensions are (\[.*?\])",
        "a tensor has 2^31 elements or more: {0}",
        "lower max_num_tokens",
        DoesNotFit,
        "#2422",
    ),
    Cause(
        r"requires (\d+) bytes of scratch space, but only (\d+) is available",
        "a layer needs {0} bytes of scratch space and {1} are free",
        "lower max_num_tokens and max_seq_len",
        DoesNotFit,
        "#2688",
    ),
    Cause(
        r"(?i)CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUDA out of memory|OutOfMemory|Error Code 2: OutOf",
        "the GPU is out of memory",
        "lower max_num_tokens, max_batch_size and max_seq_len; `trtbuild plan` shows what fits",
        DoesNotFit,
        "#2451",
    ),
    Cause(
        r"(?i)no space left on device",
        "the disk is full",
        "free some space, or choose another disk with -o",
        InputRefused,
    ),
    Cause(
        r"unrecognized arguments: (.*)|No such option:? (\S+)",
        "this release does not know {0}",
        f"use the release this was written for: tensorrt_llm {LAST_RELEASE}",
        MachineLacks,
        "PR #2049",
    ),
    Cause(
        r"invalid choice: (\S+)",
        "this release does not take {0}",
        f"use the release this was written for: tensorrt_llm {LAST_RELEASE}",
        MachineLacks,
    ),
    Cause(
        r"Config name is missing|Invalid HF URI",
        "a calibration data set could not be fetched",
        "calibrate with `trtbuild calibrate --data FILE`; nothing is fetched then",
        InputRefused,
        "#5247",
    ),
    Cause(
        r"KeyError: '(task_id|output_tokens)'",
        "the data set lacks {0} in a line",
        "let trtbuild write the data set",
        InputRefused,
        "PR #4924",
    ),
    Cause(
        r"engine is not None|Failed to deserialize (?:cuda )?engine|Tensor names in engine are not the same",
        "the engine cannot be read: it was built by another release, or is damaged",
        "build it again",
        InputRefused,
        "TensorRT-Edge-LLM #194",
    ),
    Cause(
        r"(?i)backend.*tensorrt.*(?:removed|not supported|invalid)|BuildConfig.*cannot import",
        "this tensorrt_llm has no engine path",
        f"use tensorrt_llm {LAST_RELEASE}",
        MachineLacks,
        "#15918",
    ),
    Cause(
        r"Could not find any implementation for node (\S+)",
        "TensorRT has no kernel for {0}",
        "another dtype or precision may have one; the log names the node",
    ),
    Cause(
        r"could not find any supported formats consistent with input/output data types",
        "a plugin does not take this model's dtype",
        "leave the plugin flags at auto",
        InputRefused,
        "#582",
    ),
)

_COMPILED = tuple((re.compile(row.pattern), row) for row in CAUSES)
_ERROR_LINE = re.compile(r"\[E\]|\[ERROR\]|\bError\b|Error:|ERROR")


def diagnose(done: Completed, log: Path) -> TrtbuildError:
    """The error a failed run amounts to: a known cause, the first error of the log, or just the exit code."""
    tool = done.command[0]
    where = f"{tool} (log: {log})"
    for line in done.lines:
        for pattern, row in _COMPILED:
            match = pattern.search(line)
            if match:
                groups = [group for group in match.groups() if group is not None]
                return row.error(row.cause.format(*groups).strip(), where=where, hint=row.way_out)
    if done.killed:
        return DoesNotFit(
            "the kernel killed it: out of host memory",
            where=where,
            hint="one rank at a time needs the least; `trtbuild plan` shows how much",
        )
    first = next((line.strip() for line in done.lines if _ERROR_LINE.search(line)), None)
    said = first or next((line.strip() for line in reversed(done.lines) if line.strip()), "it said nothing")
    return InputRefused(f"ended with exit code {done.returncode}: {said[:300]}", where=where, hint="read its log")

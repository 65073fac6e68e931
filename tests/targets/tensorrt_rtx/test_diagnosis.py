"""What TensorRT-RTX 1.7.1 was heard to say, and what becomes of it."""

from __future__ import annotations

import pytest

from trtbuild.errors import DoesNotFit, InputRefused, MachineLacks, TrtbuildError
from trtbuild.targets.tensorrt_rtx.api import Message
from trtbuild.targets.tensorrt_rtx.diagnosis import failure, from_log

NO_DRIVER = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at "
    "/_src/common/dispatch/checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient for CUDA runtime "
    "version))"
)
CASES = {
    "FP32 on Turing": (
        "IBuilder::buildSerializedNetworkToStream: Error Code 1: Myelin ([pass.cpp:337: check_turing_op_compatibility] "
        "Cannot compile operation 'transformer.layers.0.attention.qkv/MatMul_U29' for Turing (SM75): FP32 GEMM is not "
        "supported. In compileGraph at /_src/optimizer/myelin/codeGenerator.cpp:2012)",
        DoesNotFit,
        "transformer.layers.0.attention.qkv/MatMul_U29: no engine: Cannot compile operation "
        "'transformer.layers.0.attention.qkv/MatMul_U29' for Turing (SM75): FP32 GEMM is not supported",
    ),
    "bfloat16 on Turing": (
        "IBuilder::buildSerializedNetworkToStream: Error Code 1: Myelin ([pass.cpp:1500: run_passes] Cannot compile "
        "for target(s) sm75, because the model contains HW-specific datatypes: b16. In compileGraph at "
        "/_src/optimizer/myelin/codeGenerator.cpp:2012)",
        DoesNotFit,
        "here: no engine: Cannot compile for target(s) sm75, because the model contains HW-specific datatypes: b16",
    ),
    "a cache that grows": (
        "ITensor::getDimensions: Error Code 3: API Usage Error (transformer.layers.0.attention/key: The KV cache "
        "tensor must have a static sequence length dimension. In validate at "
        "/_src/optimizer/api/layers/kVCacheUpdateLayer.cpp:129)",
        TrtbuildError,
        "transformer.layers.0.attention/key: no engine: The KV cache tensor must have a static sequence length "
        "dimension",
    ),
    "types": (
        "ITensor::getDimensions: Error Code 4: API Usage Error (transformer.layers.0.attention/residual: "
        "ElementWiseOperation SUM must have same input types. But they are of types Float and Int64. In validateTypes "
        "at /_src/optimizer/common/nodes/elementWiseNode.cpp:40)",
        TrtbuildError,
        "transformer.layers.0.attention/residual: no engine: ElementWiseOperation SUM must have same input types. But "
        "they are of types Float and Int64",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_cause_is_told_without_its_surroundings(case: str) -> None:
    text, kind, line = CASES[case]
    warning = Message(False, "Make sure input attention_mask has Int64 binding.")
    for messages in (
        [warning, Message(True, NO_DRIVER), Message(True, text), Message(True, "a consequence")],
        [Message(True, text), Message(True, NO_DRIVER)],
    ):
        error = failure("no engine", from_log(messages), "here")
        assert type(error) is kind
        assert str(error) == line
        assert error.hint


def test_a_log_of_consequences_alone_has_no_cause() -> None:
    assert from_log([Message(True, NO_DRIVER), Message(False, "something else")]) is None
    assert "no reason" in str(failure("no engine", None, "here"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "IBuilder::buildSerializedNetwork: Error Code 2: OutOfMemory (Requested size was 8589934592 bytes.)",
            DoesNotFit,
        ),
        ("Assertion failed: x: No importer registered for op: TensorScatter", InputRefused),
        ("cudaError 35: no driver", MachineLacks),
    ],
)
def test_known_causes_have_their_exit_code(text: str, kind: type[TrtbuildError]) -> None:
    from trtbuild.targets.tensorrt_rtx.diagnosis import Cause

    assert type(failure("it", Cause(text), "here")) is kind

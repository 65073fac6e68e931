"""The TensorRT module that is installed, imported on demand, and the one logger it gets.

Builder, parser and runtime share this logger: TensorRT keeps the first one it meets for the whole process. It collects
what is said, so that a failure can be explained by its first cause instead of a screen of consequences.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import MachineLacks
from trtbuild.targets.tensorrt_rtx.machine import Installed, require_installed


@dataclass(frozen=True)
class Message:
    """One line of TensorRT's log."""

    error: bool
    text: str


@dataclass(frozen=True)
class Api:
    """`trt` is the module; `logger` collects into `messages`, which whoever starts something clears first."""

    trt: Any
    installed: Installed
    logger: Any
    messages: list[Message]


@functools.cache
def load_api() -> Api:
    """Import the installed flavour once; raises MachineLacks where there is none or its libraries do not load."""
    found = require_installed()
    try:
        trt = importlib.import_module(found.flavour.module)
    except (ImportError, OSError, RuntimeError) as error:
        raise MachineLacks(
            f"{found.distribution} {found.version} does not load: {error}",
            hint=f"pip install --force-reinstall {found.distribution}=={found.version}",
        ) from error
    messages: list[Message] = []
    return Api(trt, found, _collecting_logger(trt, messages), messages)


def _collecting_logger(trt: Any, messages: list[Message]) -> Any:
    # The base class exists only once the module is imported.
    class Collector(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                messages.append(Message(severity != trt.ILogger.WARNING, text))

    return Collector()

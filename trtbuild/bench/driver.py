"""The driver protocol as the benchmark sees it; the types live in `trtbuild.targets.serving` (see there why)."""

from __future__ import annotations

from trtbuild.targets.serving import Driver, EngineMemory, FinishReason, Request, Scorer, TokenEvent

__all__ = ["Driver", "EngineMemory", "FinishReason", "Request", "Scorer", "TokenEvent"]

"""TensorRT's progress monitor as a task of ours, and a way to stop a build from the keyboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtbuild.progress import Advance


@dataclass
class _Phase:
    name: str
    steps: int
    done: int = 0


class PhaseTree:
    """TensorRT's nested phases as one number from 0 to 1 that never goes back.

    A phase inside another is a part of the step its parent is at. Phases that begin anew after the outermost one has
    ended do not count again.
    """

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._open: list[_Phase] = []
        self._told = 0.0
        self.interrupted: BaseException | None = None

    def start(self, name: str, steps: int) -> None:
        self._open.append(_Phase(name, max(1, steps)))

    def step(self, name: str) -> bool:
        """Count a step; False asks TensorRT to stop, after an interrupt that arrived while it was calling."""
        for phase in self._open:
            if phase.name == name:
                phase.done = min(phase.done + 1, phase.steps)
        self._tell()
        return self.interrupted is None

    def finish(self, name: str) -> None:
        for index in range(len(self._open) - 1, -1, -1):
            if self._open[index].name == name:
                del self._open[index:]
                break
        self._tell()

    @property
    def fraction(self) -> float:
        done, share = 0.0, 1.0
        for phase in self._open:
            share /= phase.steps
            done += phase.done * share
        return min(done, 1.0)

    def _tell(self) -> None:
        fraction = self.fraction
        if fraction > self._told:
            self._advance(fraction - self._told)
            self._told = fraction

    def complete(self) -> None:
        """Tell whatever is left, once the build has succeeded."""
        self._advance(1.0 - self._told)
        self._told = 1.0


def progress_monitor(trt: Any, tree: PhaseTree) -> Any:
    """An IProgressMonitor that feeds `tree`. An exception in a callback would be lost in TensorRT, so it is kept."""

    # The base class exists only once the module is imported.
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            del parent_phase
            self._guard(tree.start, phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            del step
            return self._guard(tree.step, phase_name) is True

        def phase_finish(self, phase_name: str) -> None:
            self._guard(tree.finish, phase_name)

        def _guard(self, function: Any, *arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:
                tree.interrupted = tree.interrupted or error
                return False

    return Monitor()

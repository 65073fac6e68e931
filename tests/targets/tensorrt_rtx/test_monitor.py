"""TensorRT's nested phases as one number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtbuild.targets.tensorrt_rtx.monitor import PhaseTree


def test_a_phase_within_another_is_a_part_of_its_step() -> None:
    told: list[float] = []
    tree = PhaseTree(told.append)
    tree.start("build", 2)
    assert tree.step("build")
    tree.start("tactics", 4)
    tree.step("tactics")
    assert sum(told) == 0.5 + 0.5 / 4
    tree.finish("tactics")
    tree.step("build")
    tree.finish("build")
    tree.complete()
    assert sum(told) == 1.0


@given(st.lists(st.tuples(st.sampled_from(["start", "step", "finish"]), st.sampled_from("abc"), st.integers(0, 5))))
def test_whatever_is_called_it_never_goes_back_and_ends_at_one(calls: list[tuple[str, str, int]]) -> None:
    told: list[float] = []
    tree = PhaseTree(told.append)
    for what, name, number in calls:
        getattr(tree, what)(*((name, number) if what == "start" else (name,)))
        assert min(told, default=0.0) >= 0.0
        assert sum(told) <= 1.0 + 1e-9
    tree.complete()
    assert abs(sum(told) - 1.0) < 1e-9

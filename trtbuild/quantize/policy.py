"""What a profile asks of quantization: the share of its quality budget that the choice of INT8 layers may use."""

from __future__ import annotations

from trtbuild.profile import Quality
from trtbuild.quantize.budget import Budget
from trtbuild.quantize.run import DEFAULT_BUDGET

SHARE = 0.5
"""Of the profile's budget. The choice is made on a small validation split and judged on other text, by its interval."""

_KL_PER_PCT = 0.02
"""KL that goes with one percent of perplexity where a profile limits the perplexity alone: twice what the change would
be on text like the model's own. Without it the chance of a few thousand tokens would decide."""


def budget_of(quality: Quality) -> Budget:
    """The budget on the validation split; a profile without a limit gets the default one."""
    if quality.within_measurement_error:
        return Budget(quality.rounding_pct, quality.max_kl)
    if quality.max_perplexity_change_pct is None and quality.max_kl is None:
        return DEFAULT_BUDGET
    change, kl = quality.max_perplexity_change_pct, quality.max_kl
    if kl is None and change is not None:
        kl = _KL_PER_PCT * change
    return Budget(None if change is None else SHARE * change, None if kl is None else SHARE * kl)

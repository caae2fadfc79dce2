"""Compiled, recurrent PPO learns what it learns eagerly, and the same at every run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.runtime.state import digest
from tests.recipes.environments import RandomEnds
from tests.recipes.runs import make


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"memory": "gru", "critic_memory": "shared"}])
def test_a_compiled_run_is_the_eager_one_but_for_rounding(changes: dict[str, Any]) -> None:
    plain, one, other = (
        make("recurrent_ppo", RandomEnds, compile=compiled, **changes).learn(256)
        for compiled in (False, True, True)
    )
    assert digest(one.state_dict()) == digest(other.state_dict())
    for mine, theirs in zip(one.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)

"""One compiled graph per algorithm gives what the eager update gives, and is deterministic."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from rl_training.runtime.state import digest
from tests.recipes.masked_environments import Masked
from tests.recipes.runs import ENVIRONMENTS, make

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dqn_rainbow": ("dqn", "discrete", {"rainbow": True, "num_atoms": 5}),
    "sac": ("sac", "box", {}),
    "td3": ("td3", "box", {}),
    "dqn_masked": ("dqn", "masked", {"action_masks": "info", "double": True}),
}
KINDS: dict[str, Any] = {**ENVIRONMENTS, "masked": lambda: Masked("info")}
SLOW = ["dqn_masked"]
pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++")), reason="no C++ compiler"
)


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in CASES]
)
def test_a_compiled_update_is_the_eager_one(case: str) -> None:
    name, kind, options = CASES[case]
    small = {"hidden_sizes": [8], "warm_up": 32, "minibatch_size": 8, **options}
    compiled, again, eager = (
        make(name, KINDS[kind], compile=compile, **small) for compile in (True, True, False)
    )
    for algorithm in (compiled, again, eager):
        algorithm.learn(128)
        assert algorithm.gradient_steps == 12
    for network in ("model", "target"):
        vectors = [
            parameters_to_vector(getattr(each, network).parameters()) for each in (compiled, eager)
        ]
        torch.testing.assert_close(*vectors, rtol=1e-3, atol=1e-4)
    assert digest(compiled.state_dict()) == digest(again.state_dict())

"""Optimisation on flat parameters: `FlatParameters`, `FlatAdam`, `GradientStep`, `descend`."""

from rl_training.optim.flat import FlatAdam, FlatParameters
from rl_training.optim.gradient_step import GradientStep, LossFunction, compile_isolated
from rl_training.optim.gradients import descend

__all__ = [
    "FlatAdam",
    "FlatParameters",
    "GradientStep",
    "LossFunction",
    "compile_isolated",
    "descend",
]

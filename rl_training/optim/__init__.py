"""Optimisation on flat parameters: `FlatParameters`, `FlatAdam`, `GradientStep`."""

from rl_training.optim.flat import FlatAdam, FlatParameters
from rl_training.optim.gradient_step import GradientStep, LossFunction, compile_isolated

__all__ = ["FlatAdam", "FlatParameters", "GradientStep", "LossFunction", "compile_isolated"]

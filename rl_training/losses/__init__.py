"""Losses and the formulas they are made of."""

from rl_training.losses.ppg import PPGAuxiliaryLoss, ppg_auxiliary_loss, ppg_loss
from rl_training.losses.ppo import LeanClipPPOLoss, ppo_loss
from rl_training.losses.recurrent_ppo import RecurrentPPOLoss, recurrent_ppo_loss
from rl_training.losses.returns import explained_variance, generalized_advantage_estimate

__all__ = [
    "LeanClipPPOLoss",
    "PPGAuxiliaryLoss",
    "RecurrentPPOLoss",
    "explained_variance",
    "generalized_advantage_estimate",
    "ppg_auxiliary_loss",
    "ppg_loss",
    "ppo_loss",
    "recurrent_ppo_loss",
]

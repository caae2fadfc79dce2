"""Losses and the formulas they are made of."""

from rl_training.losses.dqn import dqn_loss
from rl_training.losses.ppg import PPGAuxiliaryLoss, ppg_auxiliary_loss, ppg_loss
from rl_training.losses.ppo import LeanClipPPOLoss, ppo_loss
from rl_training.losses.recurrent_ppo import RecurrentPPOLoss, recurrent_ppo_loss
from rl_training.losses.returns import explained_variance, generalized_advantage_estimate
from rl_training.losses.sac import sac_loss
from rl_training.losses.td3 import td3_loss

__all__ = [
    "LeanClipPPOLoss",
    "PPGAuxiliaryLoss",
    "RecurrentPPOLoss",
    "dqn_loss",
    "explained_variance",
    "generalized_advantage_estimate",
    "ppg_auxiliary_loss",
    "ppg_loss",
    "ppo_loss",
    "recurrent_ppo_loss",
    "sac_loss",
    "td3_loss",
]

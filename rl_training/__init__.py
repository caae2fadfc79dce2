"""Reinforcement-learning training on TorchRL: algorithms by name, presets, exact resume.

The public names are imported on first use, so that ``import rl_training`` costs nothing: no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.garbage import import_module
from rl_training.version import __version__

if TYPE_CHECKING:
    from rl_training.algorithm import Algorithm as Algorithm
    from rl_training.checker import check_env as check_env
    from rl_training.config import TrainConfig as TrainConfig
    from rl_training.config import load_config as load_config
    from rl_training.config import replace_config as replace_config
    from rl_training.contrib.recurrent_ppg import RecurrentPPG as RecurrentPPG
    from rl_training.contrib.recurrent_ppg import train_recurrent_ppg as train_recurrent_ppg
    from rl_training.contrib.recurrent_ppo import RecurrentPPO as RecurrentPPO
    from rl_training.contrib.recurrent_ppo import train_recurrent_ppo as train_recurrent_ppo
    from rl_training.data.recurrent_rollout_buffer import (
        RecurrentRolloutBuffer as RecurrentRolloutBuffer,
    )
    from rl_training.data.replay_buffer import ReplayBuffer as ReplayBuffer
    from rl_training.data.rollout_buffer import RolloutBuffer as RolloutBuffer
    from rl_training.envs.factory import make_env as make_env
    from rl_training.envs.factory import make_vector_env as make_vector_env
    from rl_training.errors import UserError as UserError
    from rl_training.experiments.manager import ExperimentManager as ExperimentManager
    from rl_training.experiments.study import Study as Study
    from rl_training.losses.dqn import dqn_loss as dqn_loss
    from rl_training.losses.ppg import ppg_auxiliary_loss as ppg_auxiliary_loss
    from rl_training.losses.ppg import ppg_loss as ppg_loss
    from rl_training.losses.ppo import ppo_loss as ppo_loss
    from rl_training.losses.recurrent_ppo import recurrent_ppo_loss as recurrent_ppo_loss
    from rl_training.losses.sac import sac_loss as sac_loss
    from rl_training.losses.td3 import td3_loss as td3_loss
    from rl_training.models.actor_critic import MLPActorCritic as MLPActorCritic
    from rl_training.models.actor_critic import MLPPPGModel as MLPPPGModel
    from rl_training.models.lstm import LSTMActorCritic as LSTMActorCritic
    from rl_training.recipes.dqn import DQN as DQN
    from rl_training.recipes.dqn import train_dqn as train_dqn
    from rl_training.recipes.ppg import PPG as PPG
    from rl_training.recipes.ppg import train_ppg as train_ppg
    from rl_training.recipes.ppo import PPO as PPO
    from rl_training.recipes.ppo import train_ppo as train_ppo
    from rl_training.recipes.sac import SAC as SAC
    from rl_training.recipes.sac import train_sac as train_sac
    from rl_training.recipes.td3 import TD3 as TD3
    from rl_training.recipes.td3 import train_td3 as train_td3
    from rl_training.runtime.callbacks import Callback as Callback
    from rl_training.runtime.devices import resolve_device as resolve_device
    from rl_training.runtime.run import make_run_dir as make_run_dir
    from rl_training.workflows import TrainResult as TrainResult
    from rl_training.workflows import evaluate_checkpoint as evaluate_checkpoint
    from rl_training.workflows import predict_checkpoint as predict_checkpoint
    from rl_training.workflows import resume_checkpoint as resume_checkpoint
    from rl_training.workflows import train as train

_MODULES = {
    "checker": ["check_env"],
    "algorithm": ["Algorithm"],
    "config": ["TrainConfig", "load_config", "replace_config"],
    "data.replay_buffer": ["ReplayBuffer"],
    "contrib.recurrent_ppg": ["RecurrentPPG", "train_recurrent_ppg"],
    "contrib.recurrent_ppo": ["RecurrentPPO", "train_recurrent_ppo"],
    "data.recurrent_rollout_buffer": ["RecurrentRolloutBuffer"],
    "data.rollout_buffer": ["RolloutBuffer"],
    "envs.factory": ["make_env", "make_vector_env"],
    "errors": ["UserError"],
    "experiments.manager": ["ExperimentManager"],
    "experiments.study": ["Study"],
    "losses.dqn": ["dqn_loss"],
    "losses.ppg": ["ppg_auxiliary_loss", "ppg_loss"],
    "losses.ppo": ["ppo_loss"],
    "losses.sac": ["sac_loss"],
    "losses.td3": ["td3_loss"],
    "losses.recurrent_ppo": ["recurrent_ppo_loss"],
    "models.actor_critic": ["MLPActorCritic", "MLPPPGModel"],
    "models.lstm": ["LSTMActorCritic"],
    "recipes.dqn": ["DQN", "train_dqn"],
    "recipes.ppg": ["PPG", "train_ppg"],
    "recipes.ppo": ["PPO", "train_ppo"],
    "recipes.sac": ["SAC", "train_sac"],
    "recipes.td3": ["TD3", "train_td3"],
    "runtime.callbacks": ["Callback"],
    "runtime.devices": ["resolve_device"],
    "runtime.run": ["make_run_dir"],
    "workflows": [
        "TrainResult",
        "evaluate_checkpoint",
        "predict_checkpoint",
        "resume_checkpoint",
        "train",
    ],
}
_PLACES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})

"""Networks and action distributions."""

from rl_training.models.actor_critic import ActorCritic, MLPActorCritic, MLPPPGModel
from rl_training.models.build import build_actor_critic
from rl_training.models.cnn import ImageEncoder, ImpalaCNN, NatureCNN
from rl_training.models.custom import TensorDictActorCritic
from rl_training.models.heads import (
    ActionHead,
    CategoricalHead,
    GaussianHead,
    StateDependentNoiseHead,
)
from rl_training.models.lstm import LSTMActorCritic
from rl_training.models.mlp import MLP
from rl_training.models.multi_categorical import MultiCategoricalHead
from rl_training.models.recurrent_policy import RecurrentPolicy
from rl_training.models.tensordict_modules import policy_module, value_module

__all__ = [
    "MLP",
    "ActionHead",
    "ActorCritic",
    "CategoricalHead",
    "GaussianHead",
    "ImageEncoder",
    "ImpalaCNN",
    "LSTMActorCritic",
    "MLPActorCritic",
    "MLPPPGModel",
    "MultiCategoricalHead",
    "NatureCNN",
    "RecurrentPolicy",
    "StateDependentNoiseHead",
    "TensorDictActorCritic",
    "build_actor_critic",
    "policy_module",
    "value_module",
]

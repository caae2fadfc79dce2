"""SAC on Pendulum-v1 in one file: the whole loop, top to bottom, on TorchRL alone.

    python recipes/sac_pendulum.py --total-timesteps 10000 --seed 1

Soft actor-critic with twin critics and a tuned temperature (Haarnoja et al., 2018,
arXiv:1812.05905). The settings are those the RL Zoo publishes for this environment. Nothing here
imports ``rl_training``.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RescaleAction
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase, ExplorationType, GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate, ValueEstimators

ENV_ID = "Pendulum-v1"
MAX_EPISODE_STEPS = 200
NUM_ENVS = 1
WARM_UP = 100  # steps with random actions and without updates; then an update after every step
MINIBATCH_SIZE = 256
REPLAY_CAPACITY = 1_000_000
LEARNING_RATE = 1e-3
DISCOUNT = 0.99
TAU = 0.005  # how far the target critics move at every update
INITIAL_ALPHA = 1.0  # of the temperature, which is tuned towards minus the action's dimensions
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
HIDDEN_SIZES = (256, 256)


def make_env(num_envs: int = NUM_ENVS, seed: int = 1) -> EnvBase:
    """Build ``num_envs`` environments that step together, each on a random stream of its own."""
    # RescaleAction makes the bounds -1 and 1, which is where log-probabilities and the target
    # entropy are meant to be. Automatic resets stay off, so that "next" holds the true last
    # observation of an episode; TorchRL resets the finished rows itself.
    low, high = np.float32(-1.0), np.float32(1.0)
    vector = SyncVectorEnv(
        [lambda: RescaleAction(gymnasium.make(ENV_ID), low, high)] * num_envs,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    seeds = np.random.SeedSequence(seed).generate_state(num_envs)
    vector.reset(seed=[int(value) for value in seeds])
    return TransformedEnv(GymWrapper(vector), RewardSum())


class MeanAndDeviation(nn.Module):
    """Halves of a network's output as mean and standard deviation.

    TorchRL's ``NormalParamExtractor`` is not used: it bounds deviations from below alone.
    """

    def forward(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, ``[..., A]`` each, of ``[..., 2 A]``."""
        mean, log_std = output.chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()


def make_mlp(num_inputs: int, num_outputs: int) -> nn.Module:
    """Build a network of ReLUs with PyTorch's own initial weights."""
    return MLP(
        in_features=num_inputs,
        out_features=num_outputs,
        num_cells=list(HIDDEN_SIZES),
        activation_class=nn.ReLU,
    )


def sizes(env: EnvBase) -> tuple[int, int]:
    """Return the dimensions of an observation and of an action."""
    num_actions = env.full_action_spec_unbatched["action"].shape[-1]
    return env.observation_spec["observation"].shape[-1], num_actions


def make_actor(env: EnvBase) -> ProbabilisticActor:
    """Build the policy: observation -> Gaussian -> tanh of a sample."""
    num_observations, num_actions = sizes(env)
    network = nn.Sequential(make_mlp(num_observations, 2 * num_actions), MeanAndDeviation())
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.full_action_spec_unbatched["action"],
        distribution_class=TanhNormal,
    )


def make_critics(env: EnvBase) -> list[ValueOperator]:
    """Build two critics: observation and action -> state_action_value ``[..., 1]``."""
    inputs = ["observation", "action"]
    return [ValueOperator(make_mlp(sum(sizes(env)), 1), in_keys=inputs) for _ in range(2)]


def make_loss(actor: ProbabilisticActor, critics: list[ValueOperator]) -> SACLoss:
    """Build the losses of critics, policy and temperature, with target critics in them."""
    # Two critics, not one and num_qvalue_nets=2: of one, the other's weights would be drawn anew
    # from a uniform distribution, whatever their own was.
    loss_module = SACLoss(actor, critics, loss_function="l2", alpha_init=INITIAL_ALPHA)
    loss_module.make_value_estimator(ValueEstimators.TD0, gamma=DISCOUNT)
    return loss_module


class Optimizers(NamedTuple):
    """One Adam each."""

    critic: torch.optim.Adam
    actor: torch.optim.Adam
    alpha: torch.optim.Adam


def make_optimizers(loss_module: SACLoss) -> Optimizers:
    """Build the optimisers of critics, policy and temperature."""
    parts = (
        loss_module.qvalue_network_params.parameters(),
        loss_module.actor_network_params.parameters(),
        [loss_module.log_alpha],
    )
    return Optimizers(*(torch.optim.Adam(list(part), lr=LEARNING_RATE) for part in parts))


def make_replay() -> TensorDictReplayBuffer:
    """Build a buffer of single transitions, sampled uniformly with replacement."""
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(REPLAY_CAPACITY), batch_size=MINIBATCH_SIZE
    )


def descend(loss: Tensor, optimizer: torch.optim.Adam) -> None:
    """Take a step of one optimiser."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def update(
    samples: TensorDict, loss_module: SACLoss, optimizers: Optimizers, targets: SoftUpdate
) -> dict[str, Tensor]:
    """Take one gradient step on a minibatch: critics, policy by the new critics, temperature.

    The loss module's ``forward`` is not used: it computes the policy's loss by the critics as they
    were, and all that it returns in one pass.
    """
    loss_critic, _ = loss_module.qvalue_v2_loss(samples)
    loss_critic = 0.5 * loss_critic  # the papers' half; TorchRL's "l2" has none
    descend(loss_critic, optimizers.critic)
    loss_actor, sampled = loss_module.actor_loss(samples)
    descend(loss_actor, optimizers.actor)
    # The critics' target and the policy's loss saw alpha as it is up to here.
    loss_alpha = loss_module.alpha_loss(sampled["log_prob"]).mean()
    alpha = loss_module.log_alpha.detach().exp()
    descend(loss_alpha, optimizers.alpha)
    targets.step()
    losses = {"critic": loss_critic, "actor": loss_actor, "alpha": loss_alpha}
    return {
        **{f"loss_{name}": loss.detach() for name, loss in losses.items()},
        "alpha": alpha,
        "entropy": -sampled["log_prob"].mean(),
    }


@torch.no_grad()
def evaluate(actor: ProbabilisticActor, seed: int, episodes: int = 20) -> Tensor:
    """Play the tanh of the means, one episode per environment; return ``[episodes]`` returns."""
    env = make_env(episodes, seed)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(MAX_EPISODE_STEPS, actor, break_when_any_done=False)
    env.close()
    return rollout["next", "reward"].sum(dim=(1, 2))  # every episode lasts MAX_EPISODE_STEPS


def train(total_timesteps: int, seed: int) -> ProbabilisticActor:
    """Train for ``total_timesteps`` environment steps and return the policy."""
    torch.manual_seed(seed)
    env = make_env(seed=seed)
    actor = make_actor(env)
    loss_module = make_loss(actor, make_critics(env))
    optimizers, replay = make_optimizers(loss_module), make_replay()
    targets = SoftUpdate(loss_module, tau=TAU)

    collector = Collector(
        env,
        actor,
        frames_per_batch=NUM_ENVS,
        total_frames=total_timesteps,
        init_random_frames=WARM_UP,
        exploration_type=ExplorationType.RANDOM,
        auto_register_policy_transforms=False,  # the policy has no recurrent state to carry
    )
    recent_returns: deque[float] = deque(maxlen=10)
    for step, batch in enumerate(collector, start=1):  # [NUM_ENVS, 1]
        replay.extend(batch.select("observation", "action", "next").reshape(-1))
        recent_returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        if step <= WARM_UP:
            continue
        metrics = update(replay.sample(), loss_module, optimizers, targets)
        if step % 1000 == 0:
            print(
                f"steps {step:>7}  return {np.mean(recent_returns or [math.nan]):8.1f}  "
                f"alpha {metrics['alpha']:.3f}  critic loss {metrics['loss_critic']:.3f}"
            )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean return of 20 deterministic episodes on fresh seeds."""
    parser = argparse.ArgumentParser(description="SAC on Pendulum-v1, on TorchRL alone.")
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the networks are too small for more
    actor = train(arguments.total_timesteps, arguments.seed)
    returns = evaluate(actor, seed=arguments.seed + 1_000_000)
    mean, std = returns.mean(), returns.std()
    print(f"evaluation: mean return {mean:.2f}, std {std:.2f}, {len(returns)} episodes")


if __name__ == "__main__":
    main()

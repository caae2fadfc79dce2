"""TD3 on Pendulum-v1 in one file: the whole loop, top to bottom, on TorchRL alone.

    python recipes/td3_pendulum.py --total-timesteps 10000 --seed 1

Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, arXiv:1802.09477). The
settings are those the RL Zoo publishes for this environment, with a shorter warm-up. Nothing here
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
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase, ExplorationType, GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP, AdditiveGaussianModule, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss, ValueEstimators

ENV_ID = "Pendulum-v1"
MAX_EPISODE_STEPS = 200
NUM_ENVS = 1
WARM_UP = 1000  # steps with random actions and without updates; then an update after every step
MINIBATCH_SIZE = 256
REPLAY_CAPACITY = 200_000
LEARNING_RATE = 1e-3
DISCOUNT = 0.98
TAU = 0.005  # how far the targets move at each of their updates
POLICY_DELAY = 2  # updates of the critics for each of the policy and the targets
EXPLORATION_DEVIATION = 0.1  # of the noise while collecting
TARGET_POLICY_NOISE = 0.2  # deviation of the noise on the target policy's actions
TARGET_NOISE_CLIP = 0.5  # its bound
HIDDEN_SIZES = (400, 300)


def make_env(num_envs: int = NUM_ENVS, seed: int = 1) -> EnvBase:
    """Build ``num_envs`` environments that step together, each on a random stream of its own."""
    # RescaleAction makes the bounds -1 and 1, which is where all noise is meant to be. Automatic
    # resets stay off, so that "next" holds the true last observation of an episode; TorchRL resets
    # the finished rows itself.
    low, high = np.float32(-1.0), np.float32(1.0)
    vector = SyncVectorEnv(
        [lambda: RescaleAction(gymnasium.make(ENV_ID), low, high)] * num_envs,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    seeds = np.random.SeedSequence(seed).generate_state(num_envs)
    vector.reset(seed=[int(value) for value in seeds])
    return TransformedEnv(GymWrapper(vector), RewardSum())


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


def make_actor(env: EnvBase) -> TensorDictModule:
    """Build the policy: observation -> tanh of a network."""
    network = nn.Sequential(make_mlp(*sizes(env)), nn.Tanh())
    return TensorDictModule(network, in_keys=["observation"], out_keys=["action"])


def make_exploration(env: EnvBase, actor: TensorDictModule) -> TensorDictSequential:
    """Add Gaussian noise of one deviation to the policy's actions, within the bounds."""
    noise = AdditiveGaussianModule(
        env.full_action_spec_unbatched["action"],
        sigma_init=EXPLORATION_DEVIATION,
        sigma_end=EXPLORATION_DEVIATION,
    )
    return TensorDictSequential(actor, noise)


def make_critics(env: EnvBase) -> list[ValueOperator]:
    """Build two critics: observation and action -> state_action_value ``[..., 1]``."""
    inputs = ["observation", "action"]
    return [ValueOperator(make_mlp(sum(sizes(env)), 1), in_keys=inputs) for _ in range(2)]


def make_loss(actor: TensorDictModule, critics: list[ValueOperator]) -> TD3Loss:
    """Build the losses of critics and policy, with targets of both in them."""
    # Two critics, not one and num_qvalue_nets=2: of one, the other's weights would be drawn anew
    # from a uniform distribution, whatever their own was.
    loss_module = TD3Loss(
        actor,
        critics,
        bounds=(-1.0, 1.0),
        policy_noise=TARGET_POLICY_NOISE,
        noise_clip=TARGET_NOISE_CLIP,
        loss_function="l2",
    )
    loss_module.make_value_estimator(ValueEstimators.TD0, gamma=DISCOUNT)
    return loss_module


class Optimizers(NamedTuple):
    """One Adam each."""

    critic: torch.optim.Adam
    actor: torch.optim.Adam


def make_optimizers(loss_module: TD3Loss) -> Optimizers:
    """Build the optimisers of critics and policy."""
    parts = loss_module.qvalue_network_params, loss_module.actor_network_params
    return Optimizers(*(torch.optim.Adam(part.parameters(), lr=LEARNING_RATE) for part in parts))


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
    samples: TensorDict,
    loss_module: TD3Loss,
    optimizers: Optimizers,
    targets: SoftUpdate,
    *,
    delayed: bool,
) -> dict[str, Tensor]:
    """Take one gradient step of the critics, and when it is the ``delayed`` one's turn, one of the
    policy by the new critics and one of all targets.

    The loss module's ``forward`` is not used: it computes the policy's loss at every step, by the
    critics as they were.
    """
    loss_critic, _ = loss_module.value_loss(samples)
    descend(loss_critic, optimizers.critic)
    losses = {"loss_critic": loss_critic.detach()}
    if delayed:
        loss_actor, _ = loss_module.actor_loss(samples)
        descend(loss_actor, optimizers.actor)
        targets.step()
        losses["loss_actor"] = loss_actor.detach()
    return losses


@torch.no_grad()
def evaluate(actor: TensorDictModule, seed: int, episodes: int = 20) -> Tensor:
    """Play without noise, one episode per environment; return ``[episodes]`` returns."""
    env = make_env(episodes, seed)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(MAX_EPISODE_STEPS, actor, break_when_any_done=False)
    env.close()
    return rollout["next", "reward"].sum(dim=(1, 2))  # every episode lasts MAX_EPISODE_STEPS


def train(total_timesteps: int, seed: int) -> TensorDictModule:
    """Train for ``total_timesteps`` environment steps and return the policy."""
    torch.manual_seed(seed)
    env = make_env(seed=seed)
    actor = make_actor(env)
    loss_module = make_loss(actor, make_critics(env))
    optimizers, replay = make_optimizers(loss_module), make_replay()
    targets = SoftUpdate(loss_module, tau=TAU)

    collector = Collector(
        env,
        make_exploration(env, actor),
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
        delayed = (step - WARM_UP) % POLICY_DELAY == 0
        metrics = update(replay.sample(), loss_module, optimizers, targets, delayed=delayed)
        if step % 1000 == 0:
            print(
                f"steps {step:>7}  return {np.mean(recent_returns or [math.nan]):8.1f}  "
                f"critic loss {metrics['loss_critic']:.3f}"
            )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean return of 20 deterministic episodes on fresh seeds."""
    parser = argparse.ArgumentParser(description="TD3 on Pendulum-v1, on TorchRL alone.")
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

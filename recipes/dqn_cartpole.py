"""DQN on CartPole-v1 in one file: the whole loop, top to bottom, on TorchRL alone.

    python recipes/dqn_cartpole.py --total-timesteps 50000 --seed 1

Deep Q-learning with replay and a target network (Mnih et al., 2015, doi:10.1038/nature14236). The
settings are those the RL Zoo publishes for this environment. Nothing here imports ``rl_training``.
"""

from __future__ import annotations

import argparse
import math
from collections import deque

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase, ExplorationType, GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate, ValueEstimators

ENV_ID = "CartPole-v1"
MAX_EPISODE_STEPS = 500
NUM_ENVS = 1
TRAIN_EVERY = 256  # environment steps between two updates
GRADIENT_STEPS = 128  # per update
WARM_UP = 1024  # steps with random actions and without updates, a multiple of TRAIN_EVERY
MINIBATCH_SIZE = 64
REPLAY_CAPACITY = 100_000
LEARNING_RATE = 2.3e-3
DISCOUNT = 0.99
EPSILON_INITIAL, EPSILON_FINAL = 1.0, 0.04
EPSILON_FRACTION = 0.16  # of the run, over which epsilon falls linearly
MAX_GRADIENT_NORM = 10.0
HIDDEN_SIZES = (256, 256)


def make_env(num_envs: int = NUM_ENVS, seed: int = 1) -> EnvBase:
    """Build ``num_envs`` environments that step together, each on a random stream of its own."""
    # Automatic resets stay off, so that "next" holds the true last observation of an episode and
    # no transition leads from one episode into another; TorchRL resets the finished rows itself.
    vector = SyncVectorEnv(
        [lambda: gymnasium.make(ENV_ID)] * num_envs, autoreset_mode=AutoresetMode.DISABLED
    )
    seeds = np.random.SeedSequence(seed).generate_state(num_envs)
    vector.reset(seed=[int(value) for value in seeds])
    return TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())


def make_actor(env: EnvBase) -> QValueActor:
    """Build the network: observation -> a value for each action -> the action of the largest."""
    spec = env.full_action_spec_unbatched["action"]
    network = MLP(
        in_features=env.observation_spec["observation"].shape[-1],
        out_features=spec.space.n,
        num_cells=list(HIDDEN_SIZES),
        activation_class=nn.ReLU,
    )
    return QValueActor(network, in_keys=["observation"], spec=spec)


def make_exploration(
    env: EnvBase, actor: QValueActor, total_timesteps: int
) -> TensorDictSequential:
    """Put random actions in place of a share of the greedy ones; the last module has it."""
    epsilon = EGreedyModule(
        env.full_action_spec_unbatched["action"],
        eps_init=EPSILON_INITIAL,
        eps_end=EPSILON_FINAL,
        annealing_num_steps=max(1, int(EPSILON_FRACTION * total_timesteps)),
    )
    return TensorDictSequential(actor, epsilon)


def make_loss(actor: QValueActor) -> DQNLoss:
    """Build the loss, Huber's of the temporal-difference error, with a target network in it.

    A terminated transition's target is its reward; a truncated one bootstraps.
    """
    loss_module = DQNLoss(actor, loss_function="smooth_l1", delay_value=True)
    loss_module.make_value_estimator(ValueEstimators.TD0, gamma=DISCOUNT)
    return loss_module


def make_optimizer(loss_module: DQNLoss) -> torch.optim.Adam:
    """Build Adam over the network; the target network is not among the parameters."""
    return torch.optim.Adam(loss_module.parameters(), lr=LEARNING_RATE)


def make_replay() -> TensorDictReplayBuffer:
    """Build a buffer of single transitions, sampled uniformly with replacement."""
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(REPLAY_CAPACITY), batch_size=MINIBATCH_SIZE
    )


def make_target_updater(loss_module: DQNLoss) -> HardUpdate:
    """Build what copies the network into its target at each of its steps, one per update."""
    # It counts its own calls, neither environment nor gradient steps, and copies at every
    # (interval + 1)-th of them.
    return HardUpdate(loss_module, value_network_update_interval=0)


def gradient_step(
    samples: TensorDict, loss_module: DQNLoss, optimizer: torch.optim.Adam
) -> dict[str, Tensor]:
    """Move the network by one minibatch of transitions; return the loss."""
    loss = loss_module(samples)["loss"]
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(loss_module.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()
    return {"loss": loss.detach()}


@torch.no_grad()
def evaluate(actor: QValueActor, seed: int, episodes: int = 20) -> Tensor:
    """Act greedily for one episode per environment and return the returns ``[episodes]``."""
    env = make_env(episodes, seed)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(MAX_EPISODE_STEPS, actor, break_when_any_done=False)
    env.close()
    reward, done = rollout["next", "reward"].squeeze(-1), rollout["next", "done"].squeeze(-1).int()
    first_episode = done.cumsum(dim=1) - done == 0
    return (reward * first_episode).sum(dim=1)


def train(total_timesteps: int, seed: int) -> QValueActor:
    """Train for at least ``total_timesteps`` environment steps and return the greedy policy."""
    torch.manual_seed(seed)
    env = make_env(seed=seed)
    actor = make_actor(env)
    exploration = make_exploration(env, actor, total_timesteps)
    loss_module = make_loss(actor)
    optimizer, replay = make_optimizer(loss_module), make_replay()
    target = make_target_updater(loss_module)

    collector = Collector(
        env,
        exploration,
        frames_per_batch=TRAIN_EVERY,
        total_frames=math.ceil(total_timesteps / TRAIN_EVERY) * TRAIN_EVERY,
        init_random_frames=WARM_UP,
        auto_register_policy_transforms=False,  # the policy has no recurrent state to carry
    )
    recent_returns: deque[float] = deque(maxlen=20)
    for iteration, batch in enumerate(collector):  # [NUM_ENVS, TRAIN_EVERY]
        replay.extend(batch.select("observation", "action", "next").reshape(-1))
        exploration[-1].step(batch.numel())
        recent_returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        steps = (iteration + 1) * TRAIN_EVERY
        if steps <= WARM_UP:
            continue
        target.step()
        for _ in range(GRADIENT_STEPS):
            metrics = gradient_step(replay.sample(), loss_module, optimizer)
        if iteration % 10 == 0:
            print(
                f"steps {steps:>7}  return {np.mean(recent_returns or [math.nan]):7.1f}  "
                f"epsilon {exploration[-1].eps:.3f}  loss {metrics['loss']:.3f}"
            )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean return of 20 deterministic episodes on fresh seeds."""
    parser = argparse.ArgumentParser(description="DQN on CartPole-v1, on TorchRL alone.")
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the networks are too small for more
    actor = train(arguments.total_timesteps, arguments.seed)
    returns = evaluate(actor, seed=arguments.seed + 1_000_000)
    mean, std = returns.mean(), returns.std()
    print(f"evaluation: mean return {mean:.2f}, std {std:.2f}, {len(returns)} episodes")


if __name__ == "__main__":
    main()

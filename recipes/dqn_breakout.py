"""DQN on Breakout in one file: the game, the network and the loop, top to bottom, on TorchRL alone.

    python recipes/dqn_breakout.py --total-timesteps 10000000 --seed 1

Deep Q-learning with replay and a target network (Mnih et al., 2015, doi:10.1038/nature14236). The
settings are those the RL Zoo publishes. Nothing here imports ``rl_training``. The buffer holds both
observations of each transition in full: a tenth of the usual million takes 6 GB.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from typing import Any

import ale_py
import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase, ExplorationType, GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate, ValueEstimators

gymnasium.register_envs(ale_py)

ENV_ID = "BreakoutNoFrameskip-v4"
NUM_ENVS = 1
TRAIN_EVERY = 4  # environment steps between two gradient steps
WARM_UP = 100_000  # steps with random actions and without updates
TARGET_UPDATE_INTERVAL = 1_000  # environment steps
MINIBATCH_SIZE = 32
REPLAY_CAPACITY = 100_000
LEARNING_RATE = 1e-4
DISCOUNT = 0.99
EPSILON_INITIAL, EPSILON_FINAL = 1.0, 0.01
EPSILON_FRACTION = 0.1  # of the run, over which epsilon falls linearly
MAX_GRADIENT_NORM = 10.0


class Lives(gymnasium.Wrapper):
    """One life of a game as an episode, with the sign of its rewards; FIRE begins each.

    With ``training=False`` an episode is the whole game, with its own rewards.
    """

    def __init__(self, env: gymnasium.Env, training: bool = True) -> None:
        super().__init__(env)
        self.training = training
        self.lives = 0
        self.goes_on = False  # whether the game does, when the next episode begins

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next life of the game, or a new game."""
        if self.goes_on:
            self.env.step(0)
        else:
            self.env.reset(**options)
        self.goes_on = False
        for action in (1, 2):  # FIRE, which starts the ball, and the one after it
            observation, *_, info = self.env.step(action)
        self.lives = self.unwrapped.ale.lives()
        return observation, info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Play one step; a lost life ends an episode of training, or begins with FIRE."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self.unwrapped.ale.lives()
        lost, self.lives = 0 < lives < self.lives, lives
        self.goes_on = lost and not (terminated or truncated)
        if not self.training:
            if self.goes_on:
                observation, info = self.reset()
            return observation, float(reward), terminated, truncated, info
        return observation, float(np.sign(reward)), terminated or lost, truncated, info


def make_game(training: bool = True) -> gymnasium.Env:
    """Build one game: 4 frames an action, 84 x 84 pixels of grey, the latest 4 of them stacked."""
    game = AtariPreprocessing(gymnasium.make(ENV_ID), noop_max=30, frame_skip=4, screen_size=84)
    return FrameStackObservation(Lives(game, training), 4)


def make_env(num_envs: int = NUM_ENVS, seed: int = 1) -> EnvBase:
    """Build ``num_envs`` games that step together, each on a random stream of its own."""
    # Automatic resets stay off, so that "next" holds the true last observation of an episode and
    # no transition leads from one episode into another; TorchRL resets the finished rows itself.
    vector = SyncVectorEnv([make_game] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    seeds = np.random.SeedSequence(seed).generate_state(num_envs)
    vector.reset(seed=[int(value) % 2**31 for value in seeds])
    return TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())


class NatureCNN(nn.Module):
    """Images ``[..., 4, 84, 84]`` of uint8 to 512 features (Mnih et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
        )
        self.dense = nn.Linear(64 * 7 * 7, 512)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the features ``[..., 512]``."""
        images = observation.flatten(0, -4) if observation.ndim > 3 else observation.unsqueeze(0)
        features = self.dense(self.convolutions(images / 255.0).flatten(1)).relu()
        return features.reshape(*observation.shape[:-3], 512)


def make_actor(env: EnvBase) -> QValueActor:
    """Build the network: observation -> a value for each action -> the action of the largest."""
    spec = env.full_action_spec_unbatched["action"]
    network = nn.Sequential(NatureCNN(), nn.Linear(512, spec.space.n))
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

    A terminated transition's target is its reward, and a lost life is one; a truncated one
    bootstraps.
    """
    loss_module = DQNLoss(actor, loss_function="smooth_l1", delay_value=True)
    loss_module.make_value_estimator(ValueEstimators.TD0, gamma=DISCOUNT)
    return loss_module


def make_optimizer(loss_module: DQNLoss) -> torch.optim.Adam:
    """Build Adam over the network; the target network is not among the parameters."""
    return torch.optim.Adam(loss_module.parameters(), lr=LEARNING_RATE)


def make_target_updater(loss_module: DQNLoss) -> HardUpdate:
    """Build what copies the network into its target at each of its steps."""
    # It counts its own calls, not environment steps, and copies at every (interval + 1)-th of them.
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
def evaluate(actor: QValueActor, seed: int, episodes: int = 5) -> Tensor:
    """Act greedily for whole games, one after another, and return the scores ``[episodes]``."""
    game, scores = make_game(training=False), []
    for episode in range(episodes):
        observation, _ = game.reset(seed=seed + episode)
        score, over = 0.0, False
        while not over:
            policy_input = TensorDict({"observation": torch.from_numpy(observation)})
            with set_exploration_type(ExplorationType.DETERMINISTIC):
                action = actor(policy_input)["action"]
            observation, reward, terminated, truncated, _ = game.step(int(action))
            score, over = score + reward, terminated or truncated
        scores.append(score)
    return torch.tensor(scores)


def train(total_timesteps: int, seed: int) -> QValueActor:
    """Train for at least ``total_timesteps`` environment steps and return the greedy policy."""
    torch.manual_seed(seed)
    env = make_env(seed=seed)
    actor = make_actor(env)
    exploration = make_exploration(env, actor, total_timesteps)
    loss_module = make_loss(actor)
    optimizer, target = make_optimizer(loss_module), make_target_updater(loss_module)
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(REPLAY_CAPACITY), batch_size=MINIBATCH_SIZE
    )
    collector = Collector(
        env,
        exploration,
        frames_per_batch=TRAIN_EVERY,
        total_frames=math.ceil(total_timesteps / TRAIN_EVERY) * TRAIN_EVERY,
        init_random_frames=WARM_UP,
        auto_register_policy_transforms=False,  # the policy has no recurrent state to carry
    )
    recent_returns: deque[float] = deque(maxlen=100)
    metrics = {"loss": torch.tensor(math.nan)}
    for iteration, batch in enumerate(collector):  # [NUM_ENVS, TRAIN_EVERY]
        replay.extend(batch.select("observation", "action", "next").reshape(-1))
        exploration[-1].step(batch.numel())
        recent_returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        steps = (iteration + 1) * TRAIN_EVERY
        if steps > WARM_UP:
            if steps % TARGET_UPDATE_INTERVAL < TRAIN_EVERY:
                target.step()
            metrics = gradient_step(replay.sample(), loss_module, optimizer)
        if iteration % 250 == 0:
            print(
                f"steps {steps:>8}  return of a life {np.mean(recent_returns or [math.nan]):6.2f}  "
                f"epsilon {exploration[-1].eps:.3f}  loss {metrics['loss']:.4f}"
            )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean score of 5 whole games played greedily."""
    parser = argparse.ArgumentParser(description="DQN on Breakout, on TorchRL alone.")
    parser.add_argument("--total-timesteps", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    actor = train(arguments.total_timesteps, arguments.seed)
    scores = evaluate(actor, seed=arguments.seed + 1_000_000)
    print(f"evaluation: mean return {scores.mean():.2f}, std {scores.std():.2f}, 5 episodes")


if __name__ == "__main__":
    main()

"""PPO on Breakout in one file: the game, the network and the loop, top to bottom, on TorchRL alone.

    python recipes/ppo_breakout.py --total-timesteps 10000000 --seed 1

Proximal policy optimisation with the clipped objective (Schulman et al., 2017, arXiv:1707.06347) on
the screen of an Atari game, seen and played as by Mnih et al. (2015, doi:10.1038/nature14236). The
settings are those the RL Zoo publishes. Nothing here imports ``rl_training``.
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
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, ExplorationType, GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

gymnasium.register_envs(ale_py)

ENV_ID = "BreakoutNoFrameskip-v4"
NUM_ENVS = 8
NUM_STEPS = 128  # per environment and iteration
NUM_EPOCHS = 4
MINIBATCH_SIZE = 256
LEARNING_RATE = 2.5e-4  # falls linearly to 0 over the run
CLIP_EPSILON = 0.1  # falls linearly to 0 over the run
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
VALUE_COEFFICIENT = 0.5
ENTROPY_COEFFICIENT = 0.01
MAX_GRADIENT_NORM = 0.5
ADAM_EPSILON = 1e-5


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


def orthogonal(module: nn.Module, gain: float) -> nn.Module:
    """Give all layers of a module orthogonal weights and zero biases, and return it."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
    return module


def make_networks(env: EnvBase) -> tuple[ProbabilisticActor, ValueOperator]:
    """Build policy and value function, two heads on one encoder."""
    encoder = orthogonal(NatureCNN(), math.sqrt(2.0))
    actions = env.full_action_spec_unbatched["action"].space.n
    # A small gain starts the policy close to uniform.
    policy = nn.Sequential(encoder, orthogonal(nn.Linear(512, actions), 0.01))
    actor = ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    value = nn.Sequential(encoder, orthogonal(nn.Linear(512, 1), 1.0))
    return actor, ValueOperator(value, in_keys=["observation"])


def make_loss(actor: ProbabilisticActor, critic: ValueOperator) -> ClipPPOLoss:
    """Build the clipped objective; advantages are normalised within each minibatch."""
    return ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP_EPSILON,
        entropy_coeff=ENTROPY_COEFFICIENT,
        critic_coeff=VALUE_COEFFICIENT,
        loss_critic_type="l2",
        normalize_advantage=True,
        functional=False,  # the networks share their encoder
    )


def make_optimizer(loss_module: nn.Module) -> torch.optim.Adam:
    """Build one Adam over everything; the shared encoder counts once."""
    return torch.optim.Adam(loss_module.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON)


def compute_advantages(batch: TensorDict, critic: ValueOperator) -> TensorDict:
    """Write state_value, advantage and value_target ``[N, T, 1]`` into the batch ``[N, T]``.

    GAE cuts the sum where an episode ends and takes the value of the true next observation except
    after a termination. A lost life is one.
    """
    return GAE(gamma=DISCOUNT, lmbda=GAE_LAMBDA, value_network=critic)(batch)


def set_schedules(progress: float, loss_module: ClipPPOLoss, optimizer: torch.optim.Adam) -> None:
    """Lower learning rate and clip range linearly; ``progress`` is the share of the run done."""
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * (1.0 - progress)
    loss_module.clip_epsilon.fill_(CLIP_EPSILON * (1.0 - progress))


def update(
    batch: TensorDict,
    loss_module: ClipPPOLoss,
    optimizer: torch.optim.Adam,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Improve both networks on a rollout with advantages; return the last minibatch's losses."""
    samples = batch.reshape(-1)
    losses = TensorDict({})
    for _ in range(NUM_EPOCHS):
        for indices in torch.randperm(len(samples), generator=generator).split(MINIBATCH_SIZE):
            losses = loss_module(samples[indices])
            loss = losses["loss_objective"] + losses["loss_entropy"] + losses["loss_critic"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
    return {key: value.detach() for key, value in losses.items()}


@torch.no_grad()
def evaluate(actor: ProbabilisticActor, seed: int, episodes: int = 5) -> Tensor:
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


def train(total_timesteps: int, seed: int) -> ProbabilisticActor:
    """Train for at least ``total_timesteps`` environment steps and return the policy."""
    torch.manual_seed(seed)
    env = make_env(seed=seed)
    actor, critic = make_networks(env)
    loss_module = make_loss(actor, critic)
    optimizer = make_optimizer(loss_module)

    steps_per_iteration = NUM_ENVS * NUM_STEPS
    iterations = math.ceil(total_timesteps / steps_per_iteration)
    collector = Collector(
        env,
        actor,
        frames_per_batch=steps_per_iteration,
        total_frames=iterations * steps_per_iteration,
        auto_register_policy_transforms=False,  # the policy has no recurrent state to carry
    )
    recent_returns: deque[float] = deque(maxlen=100)
    for iteration, batch in enumerate(collector):  # [NUM_ENVS, NUM_STEPS]
        set_schedules(iteration / iterations, loss_module, optimizer)
        with torch.no_grad():
            compute_advantages(batch, critic)
        metrics = update(batch, loss_module, optimizer)
        recent_returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        print(
            f"steps {(iteration + 1) * steps_per_iteration:>8}  "
            f"return of a life {np.mean(recent_returns or [math.nan]):6.2f}  "
            f"entropy {metrics['entropy']:.3f}  value loss {metrics['loss_critic']:.3f}"
        )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean score of 5 whole games played greedily."""
    parser = argparse.ArgumentParser(description="PPO on Breakout, on TorchRL alone.")
    parser.add_argument("--total-timesteps", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    actor = train(arguments.total_timesteps, arguments.seed)
    scores = evaluate(actor, seed=arguments.seed + 1_000_000)
    print(f"evaluation: mean return {scores.mean():.2f}, std {scores.std():.2f}, 5 episodes")


if __name__ == "__main__":
    main()

"""PPO on Pendulum-v1 in one file: continuous actions, the whole loop visible, on TorchRL alone.

    python recipes/ppo_pendulum.py --total-timesteps 100000 --seed 1

Proximal policy optimisation with the clipped objective (Schulman et al., 2017, arXiv:1707.06347)
and a Gaussian policy whose standard deviation does not depend on the observation. The settings are
those the RL Zoo publishes for this environment, without its state-dependent exploration (gSDE).
Nothing here imports ``rl_training``.
"""

from __future__ import annotations

import argparse
import math

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import ClipAction
from tensordict import TensorDict
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, ExplorationType, GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ENV_ID = "Pendulum-v1"
MAX_EPISODE_STEPS = 200
NUM_ENVS = 4
NUM_STEPS = 1024  # per environment and iteration
NUM_EPOCHS = 10
MINIBATCH_SIZE = 64
LEARNING_RATE = 1e-3
CLIP_EPSILON = 0.2
DISCOUNT = 0.9
GAE_LAMBDA = 0.95
VALUE_COEFFICIENT = 0.5
ENTROPY_COEFFICIENT = 0.0
MAX_GRADIENT_NORM = 0.5
ADAM_EPSILON = 1e-5
HIDDEN_SIZES = (64, 64)


def make_env(num_envs: int = NUM_ENVS, seed: int = 1) -> EnvBase:
    """Build ``num_envs`` environments that step together, each on a random stream of its own."""
    # ClipAction bounds what the simulator receives; the batch keeps the sampled action, which is
    # the one its log-probability belongs to. Automatic resets stay off, so that "next" holds the
    # true last observation of an episode; TorchRL resets the finished rows itself.
    vector = SyncVectorEnv(
        [lambda: ClipAction(gymnasium.make(ENV_ID))] * num_envs,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    seeds = np.random.SeedSequence(seed).generate_state(num_envs)
    vector.reset(seed=[int(value) for value in seeds])
    return TransformedEnv(GymWrapper(vector), RewardSum())


def make_mlp(env: EnvBase, num_outputs: int, output_gain: float) -> nn.Module:
    """Build a tanh MLP with orthogonal weights: gain sqrt(2) inside, ``output_gain`` at the end."""
    network = MLP(
        in_features=env.observation_spec["observation"].shape[-1],
        out_features=num_outputs,
        num_cells=list(HIDDEN_SIZES),
        activation_class=nn.Tanh,
    )
    layers = [module for module in network if isinstance(module, nn.Linear)]
    gains = [math.sqrt(2.0)] * len(HIDDEN_SIZES) + [output_gain]
    for layer, gain in zip(layers, gains, strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return network


def make_actor(env: EnvBase) -> ProbabilisticActor:
    """Build the policy: observation -> mean; one learned log standard deviation per dimension."""
    num_actions = env.full_action_spec_unbatched["action"].shape[-1]
    network = nn.Sequential(
        make_mlp(env, num_actions, output_gain=0.01),
        AddStateIndependentNormalScale(num_actions, scale_mapping="exp", scale_lb=0.0),
    )
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )


def make_critic(env: EnvBase) -> ValueOperator:
    """Build the value network: observation -> state_value ``[..., 1]``, apart from the policy."""
    return ValueOperator(make_mlp(env, 1, output_gain=1.0), in_keys=["observation"])


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
    )


def make_optimizer(loss_module: nn.Module) -> torch.optim.Adam:
    """Build one Adam over policy and critic."""
    return torch.optim.Adam(loss_module.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON)


def compute_advantages(batch: TensorDict, critic: ValueOperator) -> TensorDict:
    """Write state_value, advantage and value_target ``[N, T, 1]`` into the batch ``[N, T]``.

    Every Pendulum episode ends by running out of time, never by termination, so the value of the
    true next observation counts at each end; only the sum over later rewards is cut there.
    """
    return GAE(gamma=DISCOUNT, lmbda=GAE_LAMBDA, value_network=critic, vectorized=True)(batch)


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
def evaluate(actor: ProbabilisticActor, seed: int, episodes: int = 20) -> Tensor:
    """Play the mean actions, one episode per environment, and return ``[episodes]`` returns."""
    env = make_env(episodes, seed)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(MAX_EPISODE_STEPS, actor, break_when_any_done=False)
    env.close()
    return rollout["next", "reward"].sum(dim=(1, 2))  # every episode lasts MAX_EPISODE_STEPS


def train(total_timesteps: int, seed: int) -> ProbabilisticActor:
    """Train for at least ``total_timesteps`` environment steps and return the policy."""
    torch.manual_seed(seed)
    env = make_env(seed=seed)
    actor, critic = make_actor(env), make_critic(env)
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
    for iteration, batch in enumerate(collector):  # [NUM_ENVS, NUM_STEPS]
        metrics = update(compute_advantages(batch, critic), loss_module, optimizer)
        returns = batch["next", "episode_reward"][batch["next", "done"]]
        print(
            f"steps {(iteration + 1) * steps_per_iteration:>7}  return {returns.mean():8.1f}  "
            f"entropy {metrics['entropy'].mean():.3f}  value loss {metrics['loss_critic']:.3f}"
        )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean return of 20 deterministic episodes on fresh seeds."""
    parser = argparse.ArgumentParser(description="PPO on Pendulum-v1, on TorchRL alone.")
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the networks are too small for more
    actor = train(arguments.total_timesteps, arguments.seed)
    returns = evaluate(actor, seed=arguments.seed + 1_000_000)
    mean, std = returns.mean(), returns.std()
    print(f"evaluation: mean return {mean:.2f}, std {std:.2f}, {len(returns)} episodes")


if __name__ == "__main__":
    main()

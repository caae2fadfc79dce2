"""PPG on CartPole-v1 in one file: policy phase, auxiliary phase, the whole loop, on TorchRL alone.

    python recipes/ppg_cartpole.py --total-timesteps 100000 --seed 1

Phasic policy gradient (Cobbe et al., 2021, arXiv:2009.04416) with separate policy and value
networks. A phase is ``NUM_POLICY_ITERATIONS`` rounds of PPO, whose observations and value targets
are kept, and then an auxiliary phase that teaches the policy's own features to predict those
targets while a KL penalty holds the policy in place. Do not expect it to beat PPO on observations
this small; the point of the file is to show the algorithm. Nothing here imports ``rl_training``.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.nn.functional import mse_loss
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, ExplorationType, GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ENV_ID = "CartPole-v1"
MAX_EPISODE_STEPS = 500
NUM_ENVS = 8
NUM_STEPS = 128  # per environment and iteration
NUM_POLICY_ITERATIONS = 4  # the paper's N_pi: PPO iterations per phase
NUM_POLICY_EPOCHS = 4  # E_pi = E_V: policy and value share minibatches and optimiser
NUM_POLICY_MINIBATCHES = 8
NUM_AUXILIARY_EPOCHS = 6  # E_aux
NUM_AUXILIARY_MINIBATCHES = 16  # per auxiliary epoch
BETA_CLONE = 10.0  # weight of the KL that holds the policy; short phases want more than 1
LEARNING_RATE = 1e-3
CLIP_EPSILON = 0.2
DISCOUNT = 0.98
GAE_LAMBDA = 0.95
VALUE_COEFFICIENT = 0.5
ENTROPY_COEFFICIENT = 0.01
MAX_GRADIENT_NORM = 0.5
ADAM_EPSILON = 1e-8
HIDDEN_SIZES = (64, 64)


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


def make_linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """Build a linear layer with orthogonal weights of the given gain and no bias to start with."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def make_trunk(env: EnvBase) -> nn.Module:
    """Build a tanh MLP from the observation to ``HIDDEN_SIZES[-1]`` features."""
    sizes = [env.observation_spec["observation"].shape[-1], *HIDDEN_SIZES]
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes):
        layers += [make_linear(num_inputs, num_outputs, math.sqrt(2.0)), nn.Tanh()]
    return nn.Sequential(*layers)


def make_actor(env: EnvBase) -> ProbabilisticActor:
    """Build the policy: observation -> features -> logits -> action and its log-probability."""
    num_actions = env.full_action_spec_unbatched["action"].space.n
    trunk = TensorDictModule(make_trunk(env), in_keys=["observation"], out_keys=["features"])
    # A small output gain starts the policy close to uniform.
    head = make_linear(HIDDEN_SIZES[-1], num_actions, gain=0.01)
    return ProbabilisticActor(
        TensorDictSequential(trunk, TensorDictModule(head, ["features"], ["logits"])),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )


def make_auxiliary_head() -> TensorDictModule:
    """Build the head that predicts values from the policy's features in the auxiliary phase."""
    head = make_linear(HIDDEN_SIZES[-1], 1, gain=1.0)
    return TensorDictModule(head, in_keys=["features"], out_keys=["auxiliary_value"])


def make_critic(env: EnvBase) -> ValueOperator:
    """Build the value network: observation -> state_value ``[..., 1]``, apart from the policy."""
    network = nn.Sequential(make_trunk(env), make_linear(HIDDEN_SIZES[-1], 1, gain=1.0))
    return ValueOperator(network, in_keys=["observation"])


def make_loss(actor: ProbabilisticActor, critic: ValueOperator) -> ClipPPOLoss:
    """Build the clipped objective of the policy phase; the advantages come already normalised."""
    return ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP_EPSILON,
        entropy_coeff=ENTROPY_COEFFICIENT,
        critic_coeff=VALUE_COEFFICIENT,
        loss_critic_type="l2",
        normalize_advantage=False,
    )


def make_optimizer(*modules: nn.Module) -> torch.optim.Adam:
    """Build one Adam over the modules; each of the two phases keeps its own over the whole run."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=ADAM_EPSILON)


def compute_advantages(batch: TensorDict, critic: ValueOperator) -> TensorDict:
    """Write state_value, advantage and value_target ``[N, T, 1]`` into the batch ``[N, T]``.

    The advantages are normalised over the whole rollout, as the paper's own code does.
    """
    return GAE(gamma=DISCOUNT, lmbda=GAE_LAMBDA, value_network=critic, average_gae=True)(batch)


def minibatches(
    samples: TensorDict, count: int, generator: torch.Generator | None
) -> list[TensorDict]:
    """Cut the samples ``[B]`` into ``count`` random minibatches that hold every sample once."""
    permutation = torch.randperm(len(samples), generator=generator)
    return [samples[indices] for indices in permutation.chunk(count)]


def gradient_step(loss: Tensor, optimizer: torch.optim.Adam) -> None:
    """Take one clipped step; gradients are cleared first, so none can leak from the other phase."""
    parameters = optimizer.param_groups[0]["params"]
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
    optimizer.step()


def update(
    batch: TensorDict,
    loss_module: ClipPPOLoss,
    optimizer: torch.optim.Adam,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Policy phase: PPO on one rollout with advantages; return the last minibatch's losses."""
    samples = batch.reshape(-1)
    losses = TensorDict({})
    for _ in range(NUM_POLICY_EPOCHS):
        for minibatch in minibatches(samples, NUM_POLICY_MINIBATCHES, generator):
            losses = loss_module(minibatch)
            loss = losses["loss_objective"] + losses["loss_entropy"] + losses["loss_critic"]
            gradient_step(loss, optimizer)
    return {key: value.detach() for key, value in losses.items()}


def auxiliary_loss(
    minibatch: TensorDict,
    actor: ProbabilisticActor,
    auxiliary_head: TensorDictModule,
    critic: ValueOperator,
) -> dict[str, Tensor]:
    """Return KL(old || new) and both value losses of observation, value_target, old_logits."""
    inputs = minibatch.select("observation")
    new_policy = actor.get_dist(inputs)  # leaves the features in inputs for the auxiliary head
    old_policy = Categorical(logits=minibatch["old_logits"])
    auxiliary_value = auxiliary_head(inputs)["auxiliary_value"]
    value = critic(inputs)["state_value"]
    return {
        "kl": kl_divergence(old_policy, new_policy).mean(),
        "value_loss": 0.5 * mse_loss(auxiliary_value, minibatch["value_target"]),
        "true_value_loss": 0.5 * mse_loss(value, minibatch["value_target"]),
    }


def auxiliary_update(
    batches: list[TensorDict],
    actor: ProbabilisticActor,
    auxiliary_head: TensorDictModule,
    critic: ValueOperator,
    optimizer: torch.optim.Adam,
    generator: torch.Generator | None = None,
) -> list[dict[str, Tensor]]:
    """Auxiliary phase over the rollouts of a phase; return every minibatch's losses in order."""
    stored = [batch.reshape(-1).select("observation", "value_target") for batch in batches]
    samples: TensorDict = torch.cat(stored)
    # The policy to hold on to is the one at the end of the policy phase, on every observation of
    # the phase; the value targets stay those of the rollouts.
    with torch.no_grad():
        samples["old_logits"] = actor.get_dist(samples.select("observation")).logits
    history = []
    for _ in range(NUM_AUXILIARY_EPOCHS):
        for minibatch in minibatches(samples, NUM_AUXILIARY_MINIBATCHES, generator):
            losses = auxiliary_loss(minibatch, actor, auxiliary_head, critic)
            joint_loss = losses["value_loss"] + BETA_CLONE * losses["kl"]
            gradient_step(joint_loss + losses["true_value_loss"], optimizer)
            history.append({key: value.detach() for key, value in losses.items()})
    return history


@torch.no_grad()
def evaluate(actor: ProbabilisticActor, seed: int, episodes: int = 20) -> Tensor:
    """Act greedily for one episode per environment and return the returns ``[episodes]``."""
    env = make_env(episodes, seed)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(MAX_EPISODE_STEPS, actor, break_when_any_done=False)
    env.close()
    reward, done = rollout["next", "reward"].squeeze(-1), rollout["next", "done"].squeeze(-1).int()
    first_episode = done.cumsum(dim=1) - done == 0
    return (reward * first_episode).sum(dim=1)


def train(total_timesteps: int, seed: int) -> ProbabilisticActor:
    """Train for at least ``total_timesteps`` environment steps and return the policy."""
    torch.manual_seed(seed)
    env = make_env(seed=seed)
    actor, auxiliary_head, critic = make_actor(env), make_auxiliary_head(), make_critic(env)
    loss_module = make_loss(actor, critic)
    policy_optimizer = make_optimizer(actor, critic)
    auxiliary_optimizer = make_optimizer(actor, auxiliary_head, critic)

    steps_per_iteration = NUM_ENVS * NUM_STEPS
    iterations = math.ceil(total_timesteps / steps_per_iteration)
    collector = Collector(
        env,
        actor,
        frames_per_batch=steps_per_iteration,
        total_frames=iterations * steps_per_iteration,
        auto_register_policy_transforms=False,  # the policy has no recurrent state to carry
    )
    recent_returns: deque[float] = deque(maxlen=20)
    phase: list[TensorDict] = []
    for iteration, batch in enumerate(collector):  # [NUM_ENVS, NUM_STEPS]
        update(compute_advantages(batch, critic), loss_module, policy_optimizer)
        recent_returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        phase.append(batch)
        if len(phase) == NUM_POLICY_ITERATIONS:
            history = auxiliary_update(phase, actor, auxiliary_head, critic, auxiliary_optimizer)
            phase = []
            print(
                f"steps {(iteration + 1) * steps_per_iteration:>7}  "
                f"return {np.mean(recent_returns or [math.nan]):7.1f}  "
                f"auxiliary kl {history[-1]['kl']:.4f}  "
                f"value loss {history[-1]['value_loss']:.3f}"
            )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean return of 20 deterministic episodes on fresh seeds."""
    parser = argparse.ArgumentParser(description="PPG on CartPole-v1, on TorchRL alone.")
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

"""Recurrent PPO on CartPole without velocities in one file: the whole loop, on TorchRL alone.

    python recipes/recurrent_ppo_cartpole.py --total-timesteps 100000 --seed 1

Proximal policy optimisation with the clipped objective (Schulman et al., 2017, arXiv:1707.06347)
of a policy and a value function that each have an LSTM. What they remember is zeroed where an
episode begins, in the rollout and inside the sequences that are learnt from; rollouts begin with
what was remembered at the end of the one before. Nothing here imports ``rl_training``: the file is
the plain statement of the mathematics that the library is tested against, and a start for a loop
of your own.
"""

from __future__ import annotations

import argparse
import math
from collections import deque

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformObservation
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import Unbounded
from torchrl.envs import (
    Compose,
    EnvBase,
    ExplorationType,
    GymWrapper,
    InitTracker,
    RewardSum,
    TensorDictPrimer,
    TransformedEnv,
)
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP, LSTMModule, ProbabilisticActor, set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ENV_ID = "CartPole-v1"
MAX_EPISODE_STEPS = 500
VELOCITIES = [1, 3]  # what the policy does not see
NUM_ENVS = 8
NUM_STEPS = 32  # per environment and iteration
NUM_EPOCHS = 20
MINIBATCH_ENVS = 8  # all rows of the rollout: every epoch is one gradient step
LEARNING_RATE = 1e-3  # falls linearly to 0 over the run
CLIP_EPSILON = 0.2  # falls linearly to 0 over the run
DISCOUNT = 0.98
GAE_LAMBDA = 0.8
VALUE_COEFFICIENT = 0.5
ENTROPY_COEFFICIENT = 0.0
MAX_GRADIENT_NORM = 0.5
ADAM_EPSILON = 1e-5
MEMORY_SIZE = 64
OUTPUT_SIZE = 64  # of the hidden layer between memory and head


def make_single_env() -> gymnasium.Env:
    """Build CartPole with zeros in place of its velocities."""
    env = gymnasium.make(ENV_ID)

    def hide(observation: np.ndarray) -> np.ndarray:
        observation = observation.copy()
        observation[VELOCITIES] = 0.0
        return observation

    return TransformObservation(env, hide, env.observation_space)


def make_env(num_envs: int = NUM_ENVS, seed: int = 1) -> EnvBase:
    """Build ``num_envs`` environments that step together, each on a random stream of its own."""
    # Automatic resets stay off, so that "next" holds the true last observation of an episode and
    # no transition leads from one episode into another; TorchRL resets the finished rows itself.
    vector = SyncVectorEnv([make_single_env] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    seeds = np.random.SeedSequence(seed).generate_state(num_envs)
    vector.reset(seed=[int(value) for value in seeds])
    env = GymWrapper(vector, categorical_action_encoding=True)
    # "is_init" says where an episode begins; the primer puts zeros there, and at the very start.
    return TransformedEnv(env, Compose(InitTracker(), RewardSum(), make_primer()))


def make_primer() -> TensorDictPrimer:
    """Build the transform that knows what is carried from step to step."""
    spec = Unbounded(shape=(1, MEMORY_SIZE))  # one layer
    return TensorDictPrimer(
        {f"{name}_{part}": spec for name in ("policy", "value") for part in "hc"},
        default_value=0.0,
        expand_specs=True,
    )


def make_lstm(num_inputs: int, name: str) -> LSTMModule:
    """Build an LSTM that reads the observation and carries ``{name}_h`` and ``{name}_c``."""
    lstm = LSTMModule(
        input_size=num_inputs,
        hidden_size=MEMORY_SIZE,
        in_keys=["observation", f"{name}_h", f"{name}_c"],
        out_keys=[f"{name}_memory", ("next", f"{name}_h"), ("next", f"{name}_c")],
    )
    for name, parameter in lstm.named_parameters():
        for number, gate in enumerate(parameter.data.chunk(4)):  # in, forget, proposed, out
            if gate.ndim == 2:
                nn.init.orthogonal_(gate)
            else:  # it begins by forgetting a quarter at every step
                gate.fill_(1.0 if number == 1 and "bias_ih" in name else 0.0)
    return lstm


def make_head(num_outputs: int, output_gain: float) -> nn.Module:
    """Build a hidden tanh layer and the output: gain sqrt(2), then ``output_gain``."""
    network = MLP(
        in_features=MEMORY_SIZE,
        out_features=num_outputs,
        num_cells=[OUTPUT_SIZE],
        activation_class=nn.Tanh,
    )
    layers = [module for module in network if isinstance(module, nn.Linear)]
    for layer, gain in zip(layers, (math.sqrt(2.0), output_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return network


def make_actor(env: EnvBase) -> ProbabilisticActor:
    """Build the policy: observation and memory -> logits -> action and its log-probability."""
    num_inputs = env.observation_spec["observation"].shape[-1]
    # A small output gain starts the policy close to uniform.
    head = make_head(env.full_action_spec_unbatched["action"].space.n, output_gain=0.01)
    return ProbabilisticActor(
        TensorDictSequential(
            make_lstm(num_inputs, "policy"),
            TensorDictModule(head, in_keys=["policy_memory"], out_keys=["logits"]),
        ),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )


def make_critic(env: EnvBase) -> TensorDictSequential:
    """Build the value network: observation and a memory of its own -> state_value ``[..., 1]``."""
    num_inputs = env.observation_spec["observation"].shape[-1]
    head = make_head(1, output_gain=1.0)
    return TensorDictSequential(
        make_lstm(num_inputs, "value"),
        TensorDictModule(head, in_keys=["value_memory"], out_keys=["state_value"]),
    )


def make_policy(actor: ProbabilisticActor, critic: TensorDictSequential) -> TensorDictSequential:
    """Build what collects: the critic's memory has to see every step too."""
    return TensorDictSequential(critic, actor)


def make_loss(actor: ProbabilisticActor, critic: TensorDictSequential) -> ClipPPOLoss:
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


@torch.no_grad()
def compute_advantages(batch: TensorDict, critic: TensorDictSequential) -> TensorDict:
    """Write state_value, advantage and value_target ``[N, T, 1]`` into the batch ``[N, T]``.

    GAE cuts the sum where an episode ends and takes the value of the true next observation except
    after a termination: an episode that only ran out of time counts what would have followed.
    """
    with set_recurrent_mode(True):
        replayed = critic(batch.select("observation", "is_init", "value_h", "value_c"))
    # One step from each state that a step ended with; GAE's own way to it knows no states.
    following = batch["next"].select("observation", "value_h", "value_c")
    following["is_init"] = torch.zeros_like(batch["is_init"])
    successor = critic(following)
    batch["state_value"] = replayed["state_value"]
    batch["next", "state_value"] = successor["state_value"]
    return GAE(gamma=DISCOUNT, lmbda=GAE_LAMBDA, value_network=None)(batch)


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
    """Improve both networks on a rollout with advantages; return the last minibatch's losses.

    A minibatch is whole rows: the memories run over them from what they held at their beginning.
    """
    losses = TensorDict({})
    for _ in range(NUM_EPOCHS):
        for rows in torch.randperm(len(batch), generator=generator).split(MINIBATCH_ENVS):
            with set_recurrent_mode(True):
                losses = loss_module(batch[rows])
            loss = losses["loss_objective"] + losses["loss_entropy"] + losses["loss_critic"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
    return {key: value.detach() for key, value in losses.items()}


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
    actor, critic = make_actor(env), make_critic(env)
    loss_module = make_loss(actor, critic)
    optimizer = make_optimizer(loss_module)

    steps_per_iteration = NUM_ENVS * NUM_STEPS
    iterations = math.ceil(total_timesteps / steps_per_iteration)
    collector = Collector(
        env,
        make_policy(actor, critic),
        frames_per_batch=steps_per_iteration,
        total_frames=iterations * steps_per_iteration,
        auto_register_policy_transforms=False,  # the environment has the primer already
    )
    recent_returns: deque[float] = deque(maxlen=20)
    for iteration, batch in enumerate(collector):  # [NUM_ENVS, NUM_STEPS]
        set_schedules(iteration / iterations, loss_module, optimizer)
        metrics = update(compute_advantages(batch, critic), loss_module, optimizer)
        recent_returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        if iteration % 20 == 0:
            print(
                f"steps {(iteration + 1) * steps_per_iteration:>7}  "
                f"return {np.mean(recent_returns or [math.nan]):7.1f}  "
                f"entropy {metrics['entropy']:.3f}  value loss {metrics['loss_critic']:.3f}"
            )
    collector.shutdown()
    return actor


def main() -> None:
    """Train, then print the mean return of 20 deterministic episodes on fresh seeds."""
    parser = argparse.ArgumentParser(description="Recurrent PPO on TorchRL alone.")
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

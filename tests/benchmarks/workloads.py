"""The fixed workloads that both libraries are timed on, with the same settings for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One environment with PPO's settings; ``steps`` environment steps are timed.

    With ``memory_size`` it is recurrent PPO: an LSTM of that size each for the policy and for the
    value function, on the observations themselves, with one hidden layer of 64 after it.
    """

    env_id: str
    steps: int
    num_envs: int
    num_steps: int
    minibatch_size: int
    num_epochs: int
    learning_rate: float
    discount: float
    gae_lambda: float
    linear_schedules: bool = False
    normalize: bool = False
    clip_epsilon: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 0.5
    memory_size: int | None = None

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps between two updates, all environments together."""
        return self.num_envs * self.num_steps


WORKLOADS = {
    "ppo_cartpole": Workload(
        env_id="CartPole-v1",
        steps=51_200,
        num_envs=8,
        num_steps=32,
        minibatch_size=256,
        num_epochs=20,
        learning_rate=1e-3,
        linear_schedules=True,
        discount=0.98,
        gae_lambda=0.8,
    ),
    "recurrent_ppo_cartpole": Workload(
        env_id="CartPoleNoVel-v1",
        steps=20_480,
        num_envs=8,
        num_steps=32,
        minibatch_size=256,
        num_epochs=20,
        learning_rate=1e-3,
        linear_schedules=True,
        discount=0.98,
        gae_lambda=0.8,
        memory_size=64,
    ),
    "ppo_pendulum": Workload(
        env_id="Pendulum-v1",
        steps=16_384,
        num_envs=4,
        num_steps=1024,
        minibatch_size=64,
        num_epochs=10,
        learning_rate=1e-3,
        discount=0.9,
        gae_lambda=0.95,
    ),
    "ppo_halfcheetah": Workload(
        env_id="HalfCheetah-v5",
        steps=10_240,
        num_envs=1,
        num_steps=2048,
        minibatch_size=64,
        num_epochs=10,
        learning_rate=3e-4,
        discount=0.99,
        gae_lambda=0.95,
        normalize=True,
    ),
}

"""What algorithms with replay have in common: warm-up, the replay buffer, and how many gradient
steps are due.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl_training.algorithm import Algorithm
from rl_training.config import ModelConfig
from rl_training.data.frame_stacks import stacked_frames
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_storage import scratch_directory
from rl_training.envs import observation_dtype, space_to_dict
from rl_training.errors import UserError
from rl_training.models.build import configured_encoder
from rl_training.models.cnn import is_image
from rl_training.models.exploration import ExplorationPolicy
from rl_training.off_policy_config import LEAST_RATIO
from rl_training.optim import FlatAdam, FlatParameters, compile_isolated
from rl_training.runtime.checks import require_counter
from rl_training.runtime.seeding import generator

logger = logging.getLogger(__name__)


class OffPolicyAlgorithm(Algorithm):
    """Collect, remember, and take the gradient steps that are due.

    A subclass makes ``model`` and its optimisers, and gives ``_act``, ``_rollout_noise`` and
    ``_gradient_step``.
    """

    model: nn.Module
    target: nn.Module
    """A copy of what the targets are computed with; it follows ``model``."""
    discrete: bool
    """Whether actions are Discrete."""
    num_actions: int
    """How many Discrete actions there are, or how many dimensions an action has."""

    def __init__(self, env: Any = None, **options: Any) -> None:
        super().__init__(env, **options)
        self.replay  # noqa: B018  too large for this machine: refused before anything is written

    def _setup(self, *arguments: Any) -> None:
        super()._setup(*arguments)
        self.gradient_steps = 0
        """Taken so far."""
        self._steps_beside = 0
        self._replay: ReplayBuffer | None = None
        for name in ("replay", "noise"):
            self.generators[name] = generator(self.config.seed, name)

    def make(self) -> None:
        """Build the networks and optimisers, and compile the update when asked."""
        self._read_action_space()
        self.make_networks()
        self.model.to(self.device)
        self.target.to(self.device).requires_grad_(False)
        self.modules.update(model=self.model, target=self.target)
        self.make_optimizers()
        self.rollout_policy = ExplorationPolicy(self._act_on_device)
        self._learn: Callable[[dict[str, Tensor]], dict[str, Tensor]] = self._gradient_step
        if self.config.compile:
            self._learn = compile_isolated(self._gradient_step)

    # ---- what a subclass gives

    @abstractmethod
    def make_networks(self) -> None:
        """Build ``model`` and ``target``."""

    @abstractmethod
    def make_optimizers(self) -> None:
        """Put the parameters on flat tensors and build the optimisers."""

    @abstractmethod
    def _act(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Return the actions of one step of collection."""

    @abstractmethod
    def _rollout_noise(self, steps: int) -> list[Tensor]:
        """Draw the noise of ``steps`` steps of all environments from ``generators["rollout"]``."""

    @abstractmethod
    def _gradient_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take one gradient step and return detached metrics, scalars by name, and under
        ``priority`` the samples' errors ``[B]`` when replay is prioritised.

        It draws no random numbers and is traceable as one graph.

        Args:
            batch: of the replay buffer, ``[B, ...]``, and what ``_draw`` adds.
        """

    def _draw(self, batch: dict[str, Tensor]) -> None:
        """Add the noise of one gradient step to ``batch``, from ``generators["noise"]``."""

    def _begin_update(self, step: int) -> dict[str, Tensor]:
        """Do what is due before the gradient steps at environment step ``step``; return metrics."""
        return {}

    # ---- spaces

    def _read_action_space(self) -> None:
        space = space_to_dict(self.action_space)
        self.discrete = space["type"] == "Discrete"
        if not self.discrete and len(space["shape"]) != 1:
            raise UserError(f"{self.name} needs actions of shape (A,), not {space['shape']}.")
        self.num_actions = int(space["n"] if self.discrete else space["shape"][0])

    @property
    def scale_actions(self) -> bool:
        """Box actions lie in [-1, 1]: policies, noise and critics know nothing of bounds."""
        return "Box" in self.action_spaces

    def _make_encoder(self, model: ModelConfig | None = None) -> nn.Module:
        """Return an encoder as ``model`` says; None: as the config does."""
        space = self.observation_space
        dtype, layout = observation_dtype(space).name, self.observation_layout
        return configured_encoder(model or self.config.model, space.shape, dtype, layout)()

    def _require_built_networks(self, *, encoder: bool) -> None:
        """Raise where networks of a user's own, or images, are asked for and not taken."""
        shape = tuple(self.observation_space.shape)
        if self.config.model.shared_trunk:  # runs of earlier versions may have it
            logger.warning("model.shared_trunk is PPO's, and does nothing for %s.", self.name)
        if self.networks is not None or self.config.model.network is not None:
            raise UserError(f"{self.name} takes no networks of your own yet.")
        if encoder:
            return
        if self.config.model.encoder not in ("auto", "mlp"):
            raise UserError(f"{self._critics} no encoder of your own yet: its critics are MLPs.")
        if self.config.model.encoders:
            raise UserError(f"{self._critics} no model.encoders: its critics are MLPs.")
        if self.observation_layout.packed:
            images = ", ".join(part.name for part in self.observation_layout.images)
            raise UserError(
                f"{self._critics} no images yet, such as {images}: its critics are MLPs."
            )
        if self.config.model.encoder == "auto" and is_image(shape):
            raise UserError(
                f"{self._critics} no images yet, such as observations of shape {shape}: its "
                "critics are MLPs; model.encoder 'mlp' flattens them."
            )

    @property
    def _critics(self) -> str:
        discrete = "Discrete" in self.action_spaces
        return f"{self.name} takes with Box actions" if discrete else f"{self.name} takes"

    def _make_adam(self, parameters: FlatParameters, *groups: str) -> FlatAdam:
        config = self.config.algorithm
        return FlatAdam(
            *parameters.select(*groups),
            learning_rate=config.learning_rate,
            epsilon=config.adam_epsilon,
        )

    # ---- collection

    @property
    def frames_per_batch(self) -> int:
        """``train_every``, rounded up to whole steps of all environments."""
        count = self.config.num_envs
        return int(-(-self.config.algorithm.train_every // count) * count)

    @property
    def policy(self) -> TensorDictModuleBase:
        """The deterministic policy as a TensorDict module; Box actions are in [-1, 1]."""
        return TensorDictModule(self._most_likely, in_keys=["observation"], out_keys=["action"])

    def _most_likely(self, observation: Tensor) -> Tensor:
        return self.action(observation, deterministic=True, generator=None)

    def before_collection(self) -> None:
        """Draw the rollout's random actions and noise."""
        count = self.config.num_envs
        steps = self.frames_per_batch // count
        random = self._blind_steps(steps)
        self.rollout_policy.begin_rollout(
            self._random_actions(random), self._rollout_noise(steps - random)
        )

    def _blind_steps(self, steps: int) -> int:
        """Return how many of the next ``steps`` belong to the warm-up, whose random actions look at
        no observation.
        """
        missing = self.config.algorithm.warm_up - self.global_step
        return min(max(-(-missing // self.config.num_envs), 0), steps)

    def _random_actions(self, steps: int) -> list[Tensor]:
        """Draw uniform actions: over the numbers, or over [-1, 1] in each dimension."""
        draws, count = self.generators["rollout"], self.config.num_envs
        if self.discrete:
            shape: tuple[int, ...] = (steps, count)
            return list(torch.randint(self.num_actions, shape, generator=draws).unbind(0))
        shape = (steps, count, self.num_actions)
        return list(torch.rand(shape, generator=draws).mul_(2).sub_(1).unbind(0))

    def _act_on_device(self, observation: Tensor, noise: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return self._act(observation, noise)
        return self._act(observation.to(self.device), noise.to(self.device)).cpu()

    # ---- replay

    @property
    def replay(self) -> ReplayBuffer:
        """The transitions that are remembered; made at first use."""
        if self._replay is None:
            self._replay = self._make_replay()
        return self._replay

    def _make_replay(self) -> ReplayBuffer:
        config, space = self.config.algorithm, self.observation_space
        dtype = torch.from_numpy(space.low.astype(observation_dtype(space))).dtype
        return ReplayBuffer(
            config.replay_capacity,
            self.config.num_envs,
            tuple(space.shape),
            dtype,
            () if self.discrete else (self.num_actions,),
            torch.int64 if self.discrete else torch.float32,
            n_steps=self.n_steps,
            discount=config.discount,
            storage=config.replay_storage,
            directory=self._replay_directory(),
            frame_stack=stacked_frames(self.config, named=self._source is None),
            **self._replay_options(),
        )

    def _replay_directory(self) -> str | os.PathLike[str] | None:
        config = self.config.algorithm
        in_memory = config.replay_storage == "ram"
        return None if in_memory else scratch_directory(config.replay_directory)

    @property
    def n_steps(self) -> int:
        """Rewards summed before the bootstrapped value."""
        return int(self.config.algorithm.n_steps)

    def _replay_options(self) -> dict[str, Any]:
        return {}

    def _importance_exponent(self) -> float | None:
        """Return beta of prioritised replay; None where it is uniform."""
        return None

    def describe(self) -> list[str]:
        """Return also the replay buffer's size, and whether the budget ends before the first
        update.
        """
        lines = [*super().describe(), self.replay.describe()]
        budget, warm_up = self.config.total_timesteps, self.config.algorithm.warm_up
        if warm_up >= budget:
            lines.append(
                f"nothing will be learned: algorithm.warm_up ({warm_up:,}) takes the whole budget "
                f"of {budget:,} steps"
            )
        return lines

    # ---- learning

    def due_gradient_steps(self, step: int) -> int:
        """Return how many gradient steps there are to be after ``step`` environment steps."""
        config = self.config.algorithm
        # As a fraction: 0.29 * 100 is less than 29 in floating point.
        ratio = Fraction(config.gradient_steps_per_step).limit_denominator(round(1 / LEAST_RATIO))
        return max(int((step - config.warm_up) * ratio // 1), 0) + self._steps_beside

    def _update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        self.replay.extend(batch)
        step = self.global_step + batch.numel()
        metrics = {**self._schedule(), **self._begin_update(step)}
        taken: list[dict[str, Tensor]] = []
        with self.modes.learning():
            while self.gradient_steps < self.due_gradient_steps(step):
                taken.append(self._sample_and_learn())
                self.gradient_steps += 1
        metrics["train/gradient_steps"] = torch.tensor(float(len(taken)))
        metrics["train/replay_size"] = torch.tensor(float(len(self.replay)))
        return {**_means(taken), **metrics}

    def _sample_and_learn(self) -> dict[str, Tensor]:
        batch = self.replay.sample(
            self.config.algorithm.minibatch_size,
            self.generators["replay"],
            beta=self._importance_exponent(),
        )
        indices = batch.pop("indices")
        self._draw(batch)
        metrics = self._take({key: value.to(self.device) for key, value in batch.items()})
        priority = metrics.pop("priority", None)
        if priority is not None:
            self.replay.update_priorities(indices, priority.cpu())
        return metrics

    def _take(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take one gradient step, by the compiled update where there is one."""
        return self._learn(batch)

    def _schedule(self) -> dict[str, Tensor]:
        config = self.config.algorithm
        linear = config.learning_rate_schedule == "linear"
        learning_rate = config.learning_rate * (1.0 - self.progress() if linear else 1.0)
        for optimizer in self.optimizers.values():
            optimizer.learning_rate.fill_(learning_rate)
        return {"train/learning_rate": torch.tensor(learning_rate)}

    def _normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers for a gradient step."""
        return torch.randn(shape, generator=self.generators["noise"])

    # ---- state

    def extra_state(self) -> dict[str, Any]:
        """Return the replay buffer and the count of gradient steps."""
        return {"replay": self.replay.state_dict(), "gradient_steps": self.gradient_steps}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self.replay.load_state_dict(state["replay"])
        self.gradient_steps = require_counter("gradient_steps", state["gradient_steps"])
        # Not 0 where another ratio or warm-up was in force: what that left undone stays undone.
        self._steps_beside = 0
        self._steps_beside = self.gradient_steps - self.due_gradient_steps(self.global_step)


def _means(metrics: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return each metric's mean over the gradient steps that gave it."""
    if len(metrics) == 1:
        return metrics[0]
    names = dict.fromkeys(name for each in metrics for name in each)
    return {
        name: torch.stack([each[name] for each in metrics if name in each]).mean() for name in names
    }

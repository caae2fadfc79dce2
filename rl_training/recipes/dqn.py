"""Deep Q-learning (Mnih et al. 2015, https://doi.org/10.1038/nature14236) and the six extensions of
Rainbow (Hessel et al. 2018, https://arxiv.org/abs/1710.02298).

python -m rl_training.recipes.dqn --config zoo/dqn_cartpole.yaml
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rl_training.config import TrainConfig, require
from rl_training.envs.masks import MaskColumns, mask_columns
from rl_training.losses import dqn as losses
from rl_training.models.masked import legal_alone, legal_or_all, random_legal
from rl_training.models.q_networks import QNetwork
from rl_training.off_policy import OffPolicyAlgorithm
from rl_training.off_policy_config import OffPolicyConfig
from rl_training.optim import FlatParameters, descend
from rl_training.registry import ACTION_SPACES
from rl_training.runtime.checks import require_counter
from rl_training.workflows import TrainResult, train_with_overrides


@dataclass(kw_only=True)
class DQNConfig(OffPolicyConfig):
    """DQN's hyperparameters, under the papers' names."""

    learning_rate: float = 1e-4
    """Adam's step size."""
    minibatch_size: int = 32
    """Transitions per gradient step."""
    warm_up: int = 1_000
    """Steps with random actions, and without updates, at the beginning."""
    train_every: int = 4
    """Steps between two updates; rounded up to whole steps of all environments."""
    gradient_steps_per_step: float = 0.25
    """Gradient steps per environment step after the warm-up (the update-to-data ratio)."""
    max_gradient_norm: float | None = 10.0
    """Gradient norm above which gradients are scaled down; None: never."""
    target_update_interval: int = 1_000
    """Steps between two updates of the target network."""
    tau: float = 1.0
    """How far the target network moves then: 1 copies the trained one."""
    exploration_initial: float = 1.0
    """First epsilon: the share of random actions."""
    exploration_final: float = 0.05
    """Last epsilon."""
    exploration_fraction: float = 0.1
    """Share of the run's total steps over which epsilon falls, linearly."""
    loss: Literal["l2", "huber"] = "huber"
    """Of the temporal-difference error."""
    rainbow: bool = False
    """Switch on double, duelling, prioritised, 3-step, distributional and noisy."""
    double: bool = False
    """Choose the successor's action by the trained network (double DQN)."""
    dueling: bool = False
    """Estimate value and advantages apart."""
    prioritized: bool = False
    """Replay transitions in proportion to their error (Schaul et al. 2016)."""
    priority_exponent: float = 0.6
    """Alpha: 0 is uniform replay."""
    importance_exponent: float = 0.4
    """First beta of the weights against that bias; it rises to 1 over the run's total steps."""
    distributional: bool = False
    """Learn the return's distribution (C51)."""
    num_atoms: int = 51
    """Of the distribution."""
    value_min: float = -10.0
    """Return of its first atom."""
    value_max: float = 10.0
    """Return of its last atom."""
    noisy: bool = False
    """Explore by noise on the last layer's weights instead of epsilon (noisy networks)."""
    noisy_std: float = 0.5
    """First standard deviation of that noise, times the square root of the layer's inputs."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        super().validate(config)
        self._require_at_least_one("target_update_interval")
        self._require(0 < self.tau <= 1, "tau", "lie in (0, 1]")
        self._require_share("exploration_initial", "exploration_final", "exploration_fraction")
        self._require_share("priority_exponent", "importance_exponent")
        self._require(self.num_atoms >= 2, "num_atoms", "be at least 2")
        self._require(
            self.value_min < self.value_max, "value_max", f"be above value_min {self.value_min}"
        )
        self._require_positive("noisy_std")
        require(
            config.model.critic_hidden_sizes is None,
            "model.critic_hidden_sizes",
            "must be null for dqn, which has action values alone: model.hidden_sizes are theirs",
        )

    def resolved(self) -> DQNConfig:
        """Return the config with what ``rainbow`` stands for."""
        if not self.rainbow:
            return self
        return dataclasses.replace(
            self,
            double=True,
            dueling=True,
            prioritized=True,
            n_steps=3 if self.n_steps == 1 else self.n_steps,
            distributional=True,
            noisy=True,
        )


class DQN(OffPolicyAlgorithm):
    """Act greedily but for some exploration, and fit action values to bootstrapped targets."""

    name: ClassVar[str] = "dqn"
    Config: ClassVar[type[Any]] = DQNConfig
    action_spaces: ClassVar[tuple[str, ...]] = ACTION_SPACES["dqn"]
    model: QNetwork
    target: QNetwork

    # ---- networks

    def make_networks(self) -> None:
        """Build the action-value network and its target."""
        self._require_built_networks(encoder=True)
        self.settings = settings = self.config.algorithm.resolved()
        self._mask: MaskColumns | None = None
        if self.config.env.action_masks != "off":
            self._mask = mask_columns(self.raw_observation_space, self.action_space)
        self.target_updates = 0
        """Done so far."""
        self._updates_beside = 0
        self.model = QNetwork(
            encoder=self._make_encoder(),
            num_actions=self.num_actions,
            num_atoms=settings.num_atoms if settings.distributional else 1,
            dueling=settings.dueling,
            noisy_std=settings.noisy_std if settings.noisy else None,
            orthogonal_init=self.config.model.orthogonal_init,
        )
        self.target = copy.deepcopy(self.model)
        self.support = torch.linspace(
            settings.value_min, settings.value_max, settings.num_atoms, device=self.device
        )

    def make_optimizers(self) -> None:
        """Build Adam on the whole network."""
        self.parameters = FlatParameters({"q": self.model.parameters()})
        self.target_parameters = FlatParameters({"q": self.target.parameters()})
        self.optimizers["q"] = self._make_adam(self.parameters, "q")

    # ---- acting

    def q_values(self, network: QNetwork, observation: Tensor, noise: Tensor | None) -> Tensor:
        """Return action values ``[*batch, n]``, of a distribution its means."""
        output = network(observation, noise)
        return (output.softmax(-1) * self.support).sum(-1) if network.num_atoms > 1 else output

    def legal(self, observation: Tensor) -> Tensor | None:
        """Return the mask of legal actions ``[*batch, n]`` in observations; None: all are legal."""
        return None if self._mask is None else self._mask.of(observation)

    def _greedy(self, network: QNetwork, observation: Tensor, noise: Tensor | None) -> Tensor:
        """Return the legal actions of highest value ``[*batch]``."""
        values, legal = self.q_values(network, observation, noise), self.legal(observation)
        if legal is not None:
            values = legal_alone(values, legal_or_all(legal))
        return values.argmax(-1)

    def action(
        self, observation: Tensor, *, deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Return the greedy action, or with probability ``exploration_final`` a random one."""
        greedy = self._greedy(self.model, observation, None)
        if deterministic:
            return greedy
        draws = torch.empty(len(greedy), 2).uniform_(generator=generator)
        epsilon = self.config.algorithm.exploration_final
        return self._epsilon_greedy(observation, greedy, draws.to(greedy.device), epsilon)

    def _act(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Read ``noise`` as epsilon, two uniform numbers per environment, and the network's own."""
        count = 2 * len(observation)
        epsilon, draws, own = torch.split(noise, [1, count, len(noise) - count - 1])
        greedy = self._greedy(self.model, observation, own)
        return self._epsilon_greedy(observation, greedy, draws.view(-1, 2), epsilon)

    def _epsilon_greedy(
        self, observation: Tensor, greedy: Tensor, draws: Tensor, epsilon: Tensor | float
    ) -> Tensor:
        """Return ``greedy`` ``[N]``, or where the first of two uniform numbers ``[N, 2]`` is below
        ``epsilon`` the random legal action that the second gives.
        """
        legal = self.legal(observation)
        if legal is None:
            random = (draws[:, 1] * self.num_actions).long().clamp(max=self.num_actions - 1)
        else:
            random = random_legal(legal, draws[:, 1])
        return torch.where(draws[:, 0] < epsilon, random, greedy)

    def _blind_steps(self, steps: int) -> int:
        """Random actions that have to be legal are drawn when it is known which are."""
        return super()._blind_steps(steps) if self._mask is None else 0

    def _rollout_noise(self, steps: int) -> list[Tensor]:
        draws, count = self.generators["rollout"], self.config.num_envs
        uniform = torch.rand(steps, 2 * count, generator=draws)
        normal = torch.randn(steps, self.model.noise_size, generator=draws)
        # The rollout's last steps: those before are random warm-up.
        first = self.global_step + self.frames_per_batch - steps * count
        epsilon = [self._exploration(first + step * count) for step in range(steps)]
        column = torch.tensor(epsilon).view(steps, 1)
        return list(torch.cat([column, uniform, normal], 1).unbind(0))

    def _exploration(self, step: int) -> float:
        """Return ``epsilon``; 1 in a warm-up that is not drawn beforehand."""
        warm_up = self._mask is not None and step < self.config.algorithm.warm_up
        return 1.0 if warm_up else self.epsilon(step)

    def epsilon(self, step: int) -> float:
        """Return the share of random actions at an environment step; 0 with noisy networks."""
        config = self.settings
        if config.noisy:
            return 0.0
        horizon = self.schedule_horizon or self.config.total_timesteps
        steps = config.exploration_fraction * horizon
        done = min(step / steps, 1.0) if steps > 0 else 1.0
        return config.exploration_initial + done * (
            config.exploration_final - config.exploration_initial
        )

    # ---- replay

    @property
    def n_steps(self) -> int:
        """Rewards summed before the bootstrapped value."""
        return int(self.settings.n_steps)

    def _replay_options(self) -> dict[str, Any]:
        return {"prioritised": self.settings.prioritized, "alpha": self.settings.priority_exponent}

    def _importance_exponent(self) -> float | None:
        if not self.settings.prioritized:
            return None
        first = self.settings.importance_exponent
        return float(first + self.progress() * (1.0 - first))

    # ---- learning

    def _begin_update(self, step: int) -> dict[str, Tensor]:
        """Update the target network as often as is due by now."""
        due = self._due_target_updates(step) - self.target_updates
        if due > 0:
            share = 1.0 - (1.0 - self.settings.tau) ** due
            self.target_parameters.follow(self.parameters, share)
            self.target_updates += due
        return {
            "train/epsilon": torch.tensor(self.epsilon(self.global_step)),
            "train/target_updates": torch.tensor(float(self.target_updates)),
        }

    def _due_target_updates(self, step: int) -> int:
        return int(step // self.settings.target_update_interval) + self._updates_beside

    def _draw(self, batch: dict[str, Tensor]) -> None:
        if self.model.noise_size:
            batch["noise"] = self._normal(3, self.model.noise_size)

    def _gradient_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        noise = batch["noise"].unbind(0) if "noise" in batch else (None, None, None)
        weights = batch.get("weights")
        if self.settings.distributional:
            loss, q, error = self._categorical_loss(batch, noise, weights)
        else:
            loss, q, error = self._value_loss(batch, noise, weights)
        limit = self.settings.max_gradient_norm
        norm = descend(loss, self.optimizers["q"], max_gradient_norm=limit)
        metrics = {
            "loss/q": loss.detach(),
            "train/q": q.detach().mean(),
            "train/gradient_norm": norm,
        }
        if self.settings.prioritized:
            metrics["priority"] = error.detach()
        return metrics

    def _value_loss(
        self, batch: dict[str, Tensor], noise: tuple[Tensor | None, ...], weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the values of the actions taken ``[B]`` and their errors ``[B]``."""
        following = batch["next_observation"]
        with torch.no_grad():
            next_q = self.target(following, noise[1])
            selecting = self.model(following, noise[2]) if self.settings.double else None
            target = losses.greedy_target(
                batch["reward"],
                batch["discount"],
                batch["terminated"],
                next_q,
                selecting,
                self.legal(following),
            )
        every_q = self.model(batch["observation"], noise[0])
        q = every_q.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        huber = self.settings.loss == "huber"
        loss = losses.td_loss(q, target, huber=huber, weights=weights)
        return loss, q, q.detach() - target

    def _categorical_loss(
        self, batch: dict[str, Tensor], noise: tuple[Tensor | None, ...], weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same for the return's distribution; the errors are cross-entropies."""
        following, rows = batch["next_observation"], _rows(batch["action"])
        with torch.no_grad():
            probabilities = self.target(following, noise[1]).softmax(-1)
            chooser = self.model if self.settings.double else self.target
            own = noise[2] if self.settings.double else noise[1]
            chosen = self._greedy(chooser, following, own)
            target = losses.project_distribution(
                probabilities[rows, chosen],
                batch["reward"],
                batch["discount"],
                batch["terminated"],
                self.support,
            )
        logits = self.model(batch["observation"], noise[0])[rows, batch["action"]]
        error = losses.categorical_loss(logits, target)
        q = (logits.detach().softmax(-1) * self.support).sum(-1)
        return (error if weights is None else error * weights).mean(), q, error

    # ---- state

    def extra_state(self) -> dict[str, Any]:
        """Return the count of target updates as well."""
        return {**super().extra_state(), "target_updates": self.target_updates}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore all of it."""
        super().load_extra_state(state)
        self.target_updates = require_counter("target_updates", state["target_updates"])
        # Not 0 where another interval was in force.
        self._updates_beside = 0
        self._updates_beside = self.target_updates - self._due_target_updates(self.global_step)


def _rows(action: Tensor) -> Tensor:
    return torch.arange(len(action), device=action.device)


def train_dqn(config: Any, **overrides: Any) -> TrainResult:
    """Train DQN as ``config`` says (a `TrainConfig` or the path of a preset), with any field
    overridden.
    """
    return train_with_overrides("dqn", config, overrides)


if __name__ == "__main__":
    from rl_training.cli import recipe_main

    recipe_main("dqn")

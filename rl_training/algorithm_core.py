"""What an algorithm is to the training loop beside its hooks: construction, environments, exact
state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_training import loop
from rl_training.algorithm_hooks import AlgorithmHooks
from rl_training.arguments import resolve_config
from rl_training.config import TrainConfig
from rl_training.envs import Normalizer, VectorEnv, make_batched_env, space_to_dict
from rl_training.envs.flatten import flat_space
from rl_training.envs.fresh import fresh_source, require_fresh
from rl_training.envs.hybrid import action_map
from rl_training.envs.layout import layout_of
from rl_training.envs.masks import require_masks_taken, without_mask
from rl_training.envs.spaces import action_kind, require_same_spaces, require_taken
from rl_training.envs.video import VideoRequest
from rl_training.errors import UserError
from rl_training.models.build import PYTHON_NETWORKS
from rl_training.models.modes import Modes
from rl_training.registry import takers
from rl_training.runtime.allocator import keep_freed_memory
from rl_training.runtime.checks import fitting, require_counter, require_outline, warn_of_nan
from rl_training.runtime.devices import resolve_device, set_torch_threads
from rl_training.runtime.seeding import derive_seed, generator, preserve_global_rng

if TYPE_CHECKING:
    from torchrl.collectors import Collector

logger = logging.getLogger(__name__)

Networks = tuple[TensorDictModuleBase, TensorDictModuleBase]


class AlgorithmCore(AlgorithmHooks):
    """One algorithm on one environment: train it, use it, save it, resume it.

    A subclass gives ``name``, ``Config``, ``make`` and ``_update``; it registers what it owns in
    ``modules``, ``optimizers`` and ``generators``, which makes it part of checkpoints and digests.

    Args:
        env: a gymnasium id; or a callable that makes an environment, an environment (one row) or a
            vector environment without autoreset.
        config: a complete configuration instead of ``changes`` on the defaults.
        networks: a policy and a value function of your own, as TensorDict modules that read
            ``observation``; see `rl_training.models.custom.TensorDictActorCritic`.
        **changes: any field of `TrainConfig`, or of its groups by its bare name
            (``num_envs=8, learning_rate=3e-4``).

    Raises:
        UserError: an unknown field or environment, an impossible value, a space it cannot take.
    """

    normalizer: Normalizer
    """Observation and reward statistics; those of the training environments."""
    _environment: VectorEnv | None

    def __init__(
        self,
        env: Any = None,
        *,
        config: TrainConfig | None = None,
        networks: Networks | None = None,
        **changes: Any,
    ) -> None:
        if networks is not None:
            changes["network"] = PYTHON_NETWORKS
        self._setup(resolve_config(self.name, env, config, changes), env, networks)
        self._write_runs = "output_dir" in changes
        if "checkpoint" in changes and not self._write_runs:
            logger.warning(
                "checkpoint has no effect without output_dir: learn writes no run directory."
            )
        environment = self._make_environment(None)
        self._environment = environment
        self.normalizer = environment.normalizer or self.normalizer
        self._make(environment.raw_observation_space, environment.single_action_space)

    def _setup(
        self, config: TrainConfig, env: Any, networks: Networks | None, device: str | None = None
    ) -> None:
        self.config = dataclasses.replace(config, env_id=env) if isinstance(env, str) else config
        require_masks_taken(self.name, config.env.action_masks)
        self.networks = networks
        self.device = resolve_device(config.device if device is None else device)
        self.global_step = 0
        self.updates = 0
        self.schedule_horizon: int | None = None
        self.modules, self.optimizers = {}, {}
        self.generators = {name: generator(config.seed, name) for name in ("rollout", "minibatch")}
        self._prediction_generator = generator(config.seed, "prediction")
        self._source = None if isinstance(env, str) else env
        self._environment = None
        self.normalizer = Normalizer()
        self._pending_environment: tuple[Mapping[str, Any], bool] | None = None
        self._collector: Collector | None = None
        self._write_runs = False
        self._policy_alone: Path | None = None
        """Where a policy without training state was loaded from, until it trains."""
        self._run_dir: Path | None = None
        self._unusable: str | None = None

    def _make(self, observation_space: Any, action_space: Any) -> None:
        self._require_taken(action_space)
        require_masks_taken(self.name, self.config.env.action_masks, action_space)
        self.raw_observation_space = observation_space
        self.observation_space, self.action_space = flat_space(observation_space), action_space
        normalized = self.normalizer.makes_floats
        self.observation_layout = layout_of(observation_space, normalized=normalized)
        self._action_map = action_map(
            action_space, squash=self.squash_actions, scale=self.scale_actions
        )
        # Parameters depend on the run's seed alone, and drawing them moves nobody else's generator.
        # The number of threads counts: orthogonal weights come from a QR decomposition.
        set_torch_threads(self.config.torch_threads)
        with preserve_global_rng():
            torch.manual_seed(derive_seed(self.config.seed, "parameters"))
            self.make()
        self.modes = Modes(self.modules)

    # ---- the low-level interface

    @property
    def environment(self) -> VectorEnv:
        """The training environments, built (and after a load: restored) at first use."""
        self.require_usable()
        if self._environment is None:
            active = self.normalizer.observation is not None or self.normalizer.reward is not None
            environment = self._make_environment(self.normalizer if active else None)
            self._require_same_spaces(environment)
            self._environment = environment
            if self._pending_environment is not None:
                state, approximate = self._pending_environment
                with fitting(f"{environment.name}: the running episodes cannot be restored"):
                    environment.load_state_dict(dict(state), approximate=approximate)
                self._pending_environment = None
        return self._environment

    def _make_environment(self, normalizer: Normalizer | None) -> VectorEnv:
        return make_batched_env(
            self.config,
            self._source,
            squash_actions=self.squash_actions,
            scale_actions=self.scale_actions,
            normalizer=normalizer,
            gamma=self.discount,
            require_actions=self._require_taken,
        )

    def _require_taken(self, action_space: Any) -> None:
        try:
            require_taken(action_space, self.action_spaces, self.name)
        except UserError as error:
            others = ", ".join(takers(action_kind(action_space)))
            raise UserError(f"{error} Taken by: {others}." if others else str(error)) from None

    def collector(self) -> Collector:
        """Return the Collector, an iterator of batches ``[N, T]``; always the same one."""
        if self._collector is None:
            set_torch_threads(self.config.torch_threads)
            keep_freed_memory()
            self._collector = loop.make_collector(self)
        return self._collector

    def update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Learn from one batch of the collector and return metrics, 0-dim tensors by name."""
        metrics = self._update(batch)
        self.global_step += batch.numel()
        self.updates += 1
        return metrics

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """Surround collecting and updating: what fails in between leaves no state to go on from."""
        try:
            yield
        except BaseException:
            self._unusable = (
                f"training of this {self.name} failed in the middle of an iteration: load a "
                "checkpoint, or begin again; this object can only predict and evaluate."
            )
            raise

    def require_usable(self) -> None:
        """Raise `UserError` after `close`, and after a failure in the middle of an iteration."""
        if self._unusable is not None:
            raise UserError(self._unusable)

    def progress(self) -> float:
        """Return the share of the schedules' horizon that is behind, in [0, 1]."""
        horizon = self.schedule_horizon or self.config.total_timesteps
        return min(self.global_step / horizon, 1.0)

    def require_fresh_environments(self) -> None:
        """Raise `UserError` when environments like the training ones cannot be made anew."""
        require_fresh(self.config, self._source)

    def evaluation_environment(
        self,
        *,
        num_envs: int,
        seed: int,
        env: Any = None,
        render_mode: str | None = None,
        video: VideoRequest | None = None,
    ) -> VectorEnv:
        """Return fresh environments with frozen normalisation, for evaluation."""
        given = self._source if env is None else env
        source = fresh_source(self.config, given, render_mode=render_mode, video=video)
        environment = make_batched_env(
            self.config,
            source,
            num_envs=num_envs,
            seed=seed,
            squash_actions=self.squash_actions,
            scale_actions=self.scale_actions,
            normalizer=self.normalizer.evaluation_view(),
            name=self.config.env_id if given is None else given if isinstance(given, str) else None,
        )
        self._require_same_spaces(environment)
        return environment

    def _require_same_spaces(self, environment: VectorEnv) -> None:
        source = self.config.env.action_masks
        mine, theirs = (
            without_mask(space, source)
            for space in (self.raw_observation_space, environment.raw_observation_space)
        )
        try:
            require_same_spaces(
                (mine, self.action_space), (theirs, environment.single_action_space)
            )
        except UserError as error:
            environment.close()
            raise UserError(f"{environment.name}: {error}{self._pipeline_hint()}") from error

    def _pipeline_hint(self) -> str:
        """Return what else to say of an environment given in Python that lacks an id's wrappers."""
        settings = self.config.env
        around = "env.atari" if settings.atari.enabled else "env.wrappers"
        if self._source is None or not (settings.atari.enabled or settings.wrappers):
            return ""
        return f" The policy saw what {around} made; it goes around environments given by their id."

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the whole training state, nested; equal states have equal digests."""
        return {
            "counters": {
                "global_step": self.global_step,
                "updates": self.updates,
                "schedule_horizon": self.schedule_horizon,
            },
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "optimizers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "generators": {name: each.get_state() for name, each in self.generators.items()},
            "environment": self.environment.state_dict(),
            "normalizer": self.normalizer.state_dict(),
            "extra": self.extra_state(),
        }

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        approximate: bool = False,
        fresh_environment: bool = False,
    ) -> None:
        """Restore ``state_dict()``; environments are replayed when they are first used.

        Args:
            state: of the same algorithm and model.
            approximate: begin fresh episodes instead of replaying those that were running.
            fresh_environment: leave the environment out altogether: it is another one.

        Raises:
            UserError: a Collector exists already, or the state belongs to another algorithm or
                model.
        """
        if self._collector is not None:
            raise UserError("this object has begun to train; load the state into a new one.")
        with fitting(f"the state does not fit this {self.name} and its model"):
            self._load_counters(state["counters"])
            for name, module in self.modules.items():
                module.load_state_dict(state["modules"][name])
            for name, optimizer in self.optimizers.items():
                require_outline(state["optimizers"][name], optimizer.state_dict())
                optimizer.load_state_dict(state["optimizers"][name])
            for name, each in self.generators.items():
                each.set_state(state["generators"][name])
            self.load_extra_state(state["extra"])
            self.normalizer.load_state_dict(state["normalizer"])
            environment = state["environment"]
        warn_of_nan(self.modules)
        if not fresh_environment:
            self._environment = None
            self._pending_environment = (environment, approximate)

    def _load_counters(self, counters: Mapping[str, Any]) -> None:
        self.global_step = require_counter("global_step", counters["global_step"])
        self.updates = require_counter("updates", counters["updates"])
        horizon = counters["schedule_horizon"]
        self.schedule_horizon = None if horizon is None else require_counter("horizon", horizon)

    def policy_state(self) -> dict[str, Any]:
        """Return what predict and evaluate need: parameters, statistics, spaces."""
        return {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "normalizer": self.normalizer.state_dict(),
            "observation_space": space_to_dict(self.raw_observation_space),
            "action_space": space_to_dict(self.action_space),
            "global_step": self.global_step,
        }

    def load_policy_state(self, state: Mapping[str, Any]) -> None:
        """Restore ``policy_state()`` of the same model: parameters and statistics, and nothing of
        training.

        Raises:
            UserError: it belongs to another model.
        """
        with fitting(f"the policy does not fit this {self.name} and its model"):
            for name, module in self.modules.items():
                module.load_state_dict(state["modules"][name])
            self.normalizer.load_state_dict(state["normalizer"])
        warn_of_nan(self.modules)

    def close(self) -> None:
        """Close the environments: training is over, the policy stays usable."""
        self._unusable = self._unusable or (
            f"this {self.name} is closed: it can predict and evaluate, and save a policy alone."
        )
        if self._collector is not None:
            self._collector.shutdown(close_env=False)
            self._collector = None
        if self._environment is not None:
            self._environment.close(raise_if_closed=False)
            self._environment = None

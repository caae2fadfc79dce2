"""Every algorithm's managed interface: learn, predict, evaluate, save, load."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training import evaluation, loop, persistence
from rl_training.algorithm_core import AlgorithmCore, Networks
from rl_training.arguments import names_attributes, names_keywords
from rl_training.config import TrainConfig, replace_config
from rl_training.envs import Normalizer, space_from_dict
from rl_training.envs.flatten import with_row_axis, without_row_axis
from rl_training.envs.fresh import normalizer_for
from rl_training.envs.masks import with_mask
from rl_training.envs.observations import as_batch
from rl_training.errors import UserError
from rl_training.runtime.callback_states import require_callbacks
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checks import fitting, require_counter, whole_number
from rl_training.runtime.run import Run

logger = logging.getLogger(__name__)

Self = TypeVar("Self", bound="Algorithm")
Array = NDArray[Any]


class StatefulPolicy:
    """Acts on observations one after the other, and remembers what came before.

    Policies without memory take it as well, and remember nothing.

    Args:
        algorithm: whose policy acts, with the parameters that it has at each call.
        deterministic: the most likely action instead of a sample.
    """

    def __init__(self, algorithm: Algorithm, *, deterministic: bool = True) -> None:
        self._algorithm = algorithm
        self._deterministic = deterministic
        self._state: Any = None
        self._starts: NDArray[np.bool_] | None = None

    def predict(self, observation: Any, *, reward: Any = None, action_masks: Any = None) -> Any:
        """Return actions for the next observations, one ``[*shape]`` or a batch ``[N, *shape]``.

        Args:
            observation: of the same environments, in the same order, as at the call before.
            reward: of the step before, one or ``[N]``; read by policies with ``previous_reward``.
            action_masks: as for `Algorithm.predict`.

        Raises:
            UserError: another number of observations than before, without a `reset` of all.
        """
        algorithm = self._algorithm
        observation = algorithm._with_masks(observation, action_masks)
        batch, single = as_batch(observation, algorithm.raw_observation_space, Normalizer())
        starts = np.ones(len(batch), np.bool_) if self._starts is None else self._starts
        if len(starts) != len(batch):
            raise UserError(
                f"this policy remembers {len(starts)} environments and was given {len(batch)} "
                "observations: reset() it first."
            )
        state = self._state
        if reward is not None and state is not None and "previous_reward" in state:
            given = np.asarray(reward, np.float32).reshape(len(batch), 1)
            state = {**state, "previous_reward": given}
        action, self._state = algorithm.predict(
            with_row_axis(observation, algorithm.raw_observation_space) if single else observation,
            state=state,
            episode_start=starts,
            deterministic=self._deterministic,
        )
        self._starts = np.zeros(len(batch), np.bool_)
        return without_row_axis(action, algorithm.action_space) if single else action

    def reset(self, environments: Any = None) -> None:
        """Let an episode begin with the next observation: everywhere, and for any number of
        environments (None), or for some.

        Args:
            environments: their indices, or a bool for each.
        """
        if environments is None or self._starts is None:
            self._state = self._starts = None
            return
        self._starts[np.asarray(environments)] = True


@names_attributes
class Algorithm(AlgorithmCore):
    """One algorithm on one environment: train it, use it, save it, resume it."""

    def __init__(
        self,
        env: Any = None,
        *others: Any,
        config: TrainConfig | None = None,
        networks: Networks | None = None,
        **changes: Any,
    ) -> None:
        if others:
            raise UserError(
                f"{type(self).__name__} takes one thing without a keyword, the environment. There "
                "is no name of a policy: networks follow from the spaces, hidden_sizes and encoder."
            )
        super().__init__(env, config=config, networks=networks, **changes)
        if self.config.init_from is not None:
            persistence.warm_start(self)

    def __repr__(self) -> str:
        step = f"global_step={self.global_step}"
        return f"{type(self).__name__}({self.config.env_id!r}, {step})"

    @classmethod
    def from_config(cls: type[Self], config: TrainConfig, env: Any = None) -> Self:
        """Make the algorithm that ``config`` describes (``env`` overrides its environment)."""
        return cls(env, config=config)

    @property
    def run_dir(self) -> Path | None:
        """The run directory that the last `learn` wrote; None before, and without ``output_dir``.

        It is known while that trains: callbacks find it as ``context.algorithm.run_dir``.
        """
        return self._run_dir

    @names_keywords
    def learn(
        self: Self,
        total_timesteps: int | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = False,
        reschedule: bool = False,
    ) -> Self:
        """Train for ``total_timesteps`` more environment steps (None: the config's), and return
        self.

        A run directory is written only when ``output_dir`` was given to the constructor: a new one
        by each call, as its callbacks and its best evaluation are its own; `run_dir` is the last.
        A later one begins with a checkpoint of where training stood. `resume_checkpoint` goes on in
        the same directory. Schedules end with the first budget and keep their final value
        afterwards; ``reschedule`` stretches them to the new one.

        Raises:
            UserError: a budget that is no positive whole number, callbacks that are none, or an
                object that was closed or whose training failed.
            KeyboardInterrupt: Ctrl-C, after the iteration was finished and saved.
            SystemExit: SIGTERM likewise, with status 143.
        """
        self.require_usable()
        require_callbacks(callbacks)
        if self._policy_alone is not None:
            logger.warning(
                "%s holds a policy without training state: optimisers, and whatever else training "
                "keeps, begin anew.",
                self._policy_alone,
            )
            self._policy_alone = None
        steps = self.config.total_timesteps if total_timesteps is None else total_timesteps
        before = self.global_step
        goal = before + whole_number("total_timesteps", steps)
        self.config = replace_config(self.config, total_timesteps=goal)
        if reschedule:
            self.schedule_horizon = goal
        evaluation.require_evaluable(self, run=self._write_runs)
        run = None
        if self._write_runs:
            run = Run.create(self.config, command=[], first_step=before)
            self._run_dir = run.directory
        result = loop.TrainingLoop(
            self,
            run=run,
            total_timesteps=goal,
            callbacks=callbacks,
            progress=progress,
            save_first=before > 0 or self.config.init_from is not None,
        ).train()
        # The iteration was finished first; whoever called must still learn that they were stopped.
        if result.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if result.signal is not None:
            raise SystemExit(128 + result.signal)
        return self

    @names_keywords
    def evaluate(
        self,
        episodes: int | None = None,
        *,
        seed: int | None = None,
        deterministic: bool | None = None,
        max_episode_steps: int | None = None,
        env: Any = None,
    ) -> dict[str, Any]:
        """Play whole episodes in fresh environments and return their statistics; training is
        untouched.

        See `rl_training.evaluation.evaluate` for the keys.
        """
        return evaluation.evaluate(
            self,
            episodes=episodes,
            seed=seed,
            deterministic=deterministic,
            max_episode_steps=max_episode_steps,
            env=env,
        )

    @torch.no_grad()
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        action_masks: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Return actions for raw observations, as the environment takes them, and the next state.

        Args:
            observation: one ``[*shape]`` or a batch ``[N, *shape]``, NumPy.
            state: recurrent state; None for policies without memory.
            episode_start: bool ``[N]``; only policies with memory read it.
            action_masks: legal actions, bool ``[n]`` or ``[N, n]``, where ``env.action_masks`` is
                ``info`` or ``method``; of several actions at once, one's after the other's.
            deterministic: the most likely action instead of a sample.

        Raises:
            UserError: the observation has another shape than the environment's.
        """
        observation = self._with_masks(observation, action_masks)
        batch, single = as_batch(observation, self.raw_observation_space, self.normalizer)
        action = self.action(
            batch.to(self.device),
            deterministic=deterministic,
            generator=self._prediction_generator,
        )
        return self._action_map.taken(action.cpu().numpy(), single=single), state

    def _with_masks(self, observation: Any, action_masks: Any) -> Any:
        source = self.config.env.action_masks
        return with_mask(
            observation, action_masks, source, self.raw_observation_space, self.action_space
        )

    def stateful_policy(self, *, deterministic: bool = True) -> StatefulPolicy:
        """Return a predictor that keeps a policy's memory itself, for serving."""
        return StatefulPolicy(self, deterministic=deterministic)

    @names_keywords
    def save(self, path: str | Path, *, policy_only: bool = False, overwrite: bool = False) -> Path:
        """Write a checkpoint (everything, or only what predict and evaluate need) as the directory
        ``path``; with ``overwrite`` in place of one that is there, in one step.

        Raises:
            UserError: something is there already, the place cannot be written, or the name is that
                of a file (``x.zip``).
        """
        return persistence.save(self, Path(path), policy_only=policy_only, overwrite=overwrite)

    @classmethod
    def load(
        cls: type[Self],
        path: str | Path,
        env: Any = None,
        *,
        best: bool = False,
        networks: Networks | None = None,
        trust_modules: bool = False,
        **changes: Any,
    ) -> Self:
        """Return the algorithm saved in a checkpoint, a run directory (its latest checkpoint, or
        its ``best``) or a policy directory.

        With ``env`` it goes on in that environment, from fresh episodes; without, exactly where it
        stood. Nothing read is ever executed, so ``networks`` given in Python must be given again.
        Code that its config names ("module:Class") is imported only with ``trust_modules``, or when
        it was imported before.

        Raises:
            UserError: no checkpoint is there, it is damaged, it is another algorithm's, it names
                code that is not trusted, or the spaces of ``env`` are not those it was trained on.
        """
        return persistence.load(
            cls,
            Path(path),
            best=best,
            env=env,
            networks=networks,
            changes=changes,
            trust_modules=trust_modules,
        )

    @classmethod
    def restore(
        cls: type[Self],
        config: TrainConfig,
        policy: Mapping[str, Any],
        *,
        env: Any = None,
        networks: Networks | None = None,
        device: str | None = None,
    ) -> Self:
        """Return an algorithm with the parameters and spaces of a ``policy_state()``, without
        making environments; on another ``device`` than the config's, if given.
        """
        self = cls.__new__(cls)
        self._setup(config, env, networks, device)
        with fitting("the policy cannot be used"):
            observation_space = space_from_dict(policy["observation_space"])
            action_space = space_from_dict(policy["action_space"])
            step = require_counter("global_step", policy["global_step"])
        self.normalizer = normalizer_for(config, observation_space, gamma=self.discount)
        self._make(observation_space, action_space)
        self.load_policy_state(policy)
        self.global_step = step
        return self

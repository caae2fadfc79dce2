"""One batched TorchRL environment over a gymnasium vector environment, with a fast path of its own
for collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from rl_training.envs.episodes import Episodes
from rl_training.envs.flatten import flat_space
from rl_training.envs.hybrid import action_map, policy_spec
from rl_training.envs.infos import Asked
from rl_training.envs.masks import ObservedMasks
from rl_training.envs.normalize import Normalizer
from rl_training.envs.rows import make_rows
from rl_training.envs.spaces import observation_dtype, observation_spec, require_supported
from rl_training.envs.step_limit import LimitedRows
from rl_training.envs.tensors import DONE_KEYS, TensorSteps
from rl_training.envs.workers import close_vector

_CPU = torch.device("cpu")


class VectorEnv(EnvBase):
    """N environments as one, batch size ``[N]`` on the CPU, that never show a ghost step.

    A step writes into ``next``: ``observation`` (the true successor, terminal at an episode's end),
    ``reward``, ``done``, ``terminated``, ``truncated``, ``episode_return`` (raw rewards, float32)
    and ``episode_length`` (int64), each ``[N, 1]`` but the observation ``[N, *obs]``. Where
    episodes are lives of a game, return and length are the game's so far, and ``game_over`` ends
    it. What ``env.info_keys`` name is in ``info``. The root has ``observation``, ``is_init`` and
    the three flags, all False.

    Observations keep the environment's dtype, except that every floating-point one becomes float32;
    see :func:`~rl_training.envs.spaces.observation_dtype`. Those that are no Box are flattened, as
    `rl_training.envs.flatten.Flattening` does; ``raw_observation_space`` is what they were. Keys
    that a policy writes into ``next`` (recurrent state) travel to the root, zeroed where an episode
    ended; what it writes under ``previous_reward`` is replaced by the step's reward. Every episode
    has its own seed, a function of seed, row and episode number.

    Tensors are fresh at every step; root and ``next`` may share one, so copy before writing into
    them.
    """

    def __init__(
        self,
        vector: Any,
        *,
        seed: int,
        name: str,
        squash_actions: bool = False,
        scale_actions: bool = False,
        normalizer: Normalizer | None = None,
        masks: ObservedMasks | None = None,
        info_keys: Sequence[str] = (),
        reset_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap ``vector``, a gymnasium vector environment that
        :func:`~rl_training.envs.factory.as_vector` accepted.

        Args:
            vector: the vector environment; it is closed with this one.
            seed: not negative; with the row and the episode number it gives every reset seed.
            name: what errors call the environment.
            squash_actions: take Box actions through tanh onto the bounds instead of clipping them.
            scale_actions: scale Box actions from [-1, 1] onto the bounds instead of clipping them.
            normalizer: of observations and rewards; ``None`` leaves both as they are.
            masks: of legal actions, in the observations.
            info_keys: keys of a step's ``info`` that go into ``next``, under ``info``.
            reset_options: of every reset.

        Raises:
            UserError: an unsupported space, a negative seed, or squashing or scaling
                without finite bounds.
        """
        require_supported(vector.single_observation_space, vector.single_action_space, name)
        super().__init__(device="cpu", batch_size=[vector.num_envs])
        self.vector = vector
        self.name = name
        self.num_envs: int = vector.num_envs
        self.raw_observation_space = vector.single_observation_space
        self.single_observation_space = flat_space(vector.single_observation_space)
        self.single_action_space = vector.single_action_space
        self.action_map = action_map(
            vector.single_action_space, squash=squash_actions, scale=scale_actions
        )
        self.normalizer = normalizer
        asked = Asked.of(info_keys, reset_options or {})
        self._info_shapes = {} if asked.info is None else asked.info.shapes
        episodes = Episodes(
            make_rows(vector, asked),
            self.action_map,
            seed=seed,
            name=name,
            normalizer=normalizer,
            close=self._close_vector,
            masks=masks,
        )
        normalized = normalizer is not None and normalizer.makes_floats
        dtype = observation_dtype(self.single_observation_space, normalized=normalized)
        # Plain objects hold what changes: setting an attribute on an EnvBase costs microseconds.
        self._steps = TensorSteps(episodes, dtype)
        self._flow = {"continue": False}
        self._make_specs(normalized, squash=squash_actions, scale=scale_actions)
        self.is_closed = False

    def _make_specs(self, normalized: bool, *, squash: bool, scale: bool) -> None:
        count = self.num_envs
        shape = (count, 1)

        def unbounded(dtype: torch.dtype) -> Any:
            return Unbounded(shape=shape, dtype=dtype, device="cpu")

        def composite(**specs: Any) -> Any:
            return Composite(**specs, shape=(count,), device="cpu")

        observation = observation_spec(self.single_observation_space, count, normalized=normalized)
        self.observation_spec = composite(observation=observation)
        # A state, not an observation: it stands in the root alone.
        self.state_spec = composite(
            is_init=Categorical(2, shape=shape, dtype=torch.bool, device="cpu")
        )
        self.action_spec = composite(
            action=policy_spec(self.single_action_space, count, squash=squash, scale=scale)
        )
        # TorchRL keeps reward keys, and no others, out of the root.
        game: dict[str, Any] = {}
        if self._steps.episodes.rows.plays_games:
            game["game_over"] = unbounded(torch.bool)
        if self._info_shapes:
            shapes = {key: (count, *(size or (1,))) for key, size in self._info_shapes.items()}
            game["info"] = composite(
                **{key: Unbounded(shape=each, device="cpu") for key, each in shapes.items()}
            )
        self.reward_spec = composite(
            reward=unbounded(torch.float32),
            episode_return=unbounded(torch.float32),
            episode_length=unbounded(torch.int64),
            **game,
        )
        flags = {
            key: Categorical(2, shape=shape, dtype=torch.bool, device="cpu") for key in DONE_KEYS
        }
        self.done_spec = composite(**flags)

    @property
    def raw_observation(self) -> Any:
        """The observations the environments gave last, before normalisation: NumPy ``[N, *obs]`` in
        their own dtype; flattened where they are no Box.
        """
        return self._steps.episodes.observation

    @property
    def agents(self) -> int:
        """Rows that play one episode together, side by side: the agents of a game; else 1."""
        return len(getattr(self.vector, "agents", ())) or 1

    def limit_episodes(self, steps: int) -> None:
        """Truncate every episode that has not ended after ``steps`` steps; call it before the first
        reset.
        """
        self._steps.episodes.rows = LimitedRows(self._steps.episodes.rows, steps)

    @property
    def cut(self) -> list[bool]:
        """Of each row, whether the limit of `limit_episodes` truncated its episode in the last
        step.
        """
        rows = self._steps.episodes.rows
        return rows.cut.tolist() if isinstance(rows, LimitedRows) else [False] * self.num_envs

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Step, reset the rows whose episode ended, and return the completed ``tensordict`` and the
        next root.
        """
        # Private getters and constructors of TensorDict: the public ones cost more than a CartPole.
        values, root = self._steps.step_and_renew(
            tensordict._get_str("action", None), tensordict._get_str("next", None)
        )
        batch_size = self.batch_size
        following = TensorDict._new_unsafe(
            source=values, batch_size=batch_size, device=_CPU, nested=False
        )
        tensordict._set_str("next", following, validated=True, inplace=False, non_blocking=False)
        return tensordict, TensorDict._new_unsafe(
            source=root, batch_size=batch_size, device=_CPU, nested=False
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._tensordict(self._steps.step(tensordict.get("action")))

    @property
    def _step_mdp(self) -> Callable[[TensorDictBase], TensorDictBase]:
        # TorchRL would keep the old root's is_init, because ``next`` has none.
        generic = super()._step_mdp

        def advance(tensordict: TensorDictBase) -> TensorDictBase:
            return generic(tensordict).set(
                "is_init", torch.zeros((self.num_envs, 1), dtype=torch.bool)
            )

        return advance

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is not None and not bool(mask.all()):
            rows = mask.reshape(-1).nonzero().reshape(-1).tolist()
            return self._tensordict(self._steps.renew(rows))
        if self._flow["continue"]:
            self._flow["continue"] = False
            return self._tensordict(self._steps.root)
        return self._tensordict(self._steps.restart())

    def _tensordict(self, source: dict[str, Any]) -> TensorDictBase:
        return TensorDict(dict(source), batch_size=self.batch_size, device=_CPU)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._steps.episodes.reseed(seed)

    def continue_episodes(self) -> None:
        """Make the next full ``reset()`` return the current root, recurrent state included, instead
        of resetting.

        A Collector resets when it is built; call this before building another one in the middle of
        a run. Without effect before the first reset.
        """
        if self._steps.root:
            self._steps.require_running()
            self._flow["continue"] = True

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to go on from here exactly: nested dicts and
        lists of arrays and numbers.

        Holds the actions of every running episode, the root (observation, is_init, recurrent state)
        and the normaliser.
        """
        if self._steps.root:
            self._steps.require_running()
        root = {key: value for key, value in self._steps.root.items() if key not in DONE_KEYS}
        return {**self._steps.episodes.state_dict(), "root": _to_nested(root)}

    def load_state_dict(self, state: dict[str, Any], approximate: bool = False, **_: Any) -> None:
        """Go on where :meth:`state_dict` was taken; the next ``reset()`` returns that root.

        Every running episode is replayed from its seed and its actions, then observation and return
        are compared bit by bit with the stored ones.

        Args:
            state: from an environment of the same kind and number.
            approximate: begin fresh episodes instead of replaying, and log a warning.

        Raises:
            ResumeError: an episode does not reproduce; the message names environment and row.
            UserError: the state does not fit this environment.
        """
        steps = self._steps
        steps.pending, steps.root = [], {}
        self._flow["continue"] = False
        steps.episodes.load_state_dict(state, approximate=approximate)
        if not steps.episodes.started:
            return
        steps.adopt(_from_nested(state["root"], self.batch_size), approximate=approximate)
        self._flow["continue"] = True

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the vector environment; closing twice does nothing."""
        self.is_closed = True
        self._close_vector()

    def _close_vector(self) -> None:
        if not getattr(self.vector, "closed", False):
            close_vector(self.vector)


def _to_nested(source: Any) -> dict[str, Any]:
    return {
        key: _to_nested(value) if isinstance(value, TensorDictBase) else value
        for key, value in source.items()
    }


def _from_nested(source: dict[str, Any], batch_size: torch.Size) -> dict[str, Any]:
    def restore(value: Any) -> Any:
        if isinstance(value, dict):
            return TensorDict(_from_nested(value, batch_size), batch_size=batch_size, device=_CPU)
        return torch.as_tensor(value).clone()

    return {key: restore(value) for key, value in source.items()}

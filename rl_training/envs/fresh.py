"""Environments beside the training ones: for evaluation, on the screen or into video files."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium

from rl_training.arguments import environment_name
from rl_training.envs.factory import is_maker, make_env, make_normalizer
from rl_training.envs.normalize import Normalizer
from rl_training.envs.parallel import is_parallel_id, parallel_maker
from rl_training.envs.video import VideoRecorder, VideoRequest
from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.config import TrainConfig

_GIVE = (
    "give an id or a callable that makes one environment, no vector of them, to train in or to "
    "evaluate(env=...); without evaluation.final and evaluation.interval, training needs none"
)


def fresh_source(
    config: TrainConfig,
    env: Any = None,
    *,
    render_mode: str | None = None,
    video: VideoRequest | None = None,
) -> Any:
    """Return something that makes new environments like the ones trained on, as `make_batched_env`
    takes it.

    Args:
        config: names the environment when ``env`` is None.
        env: an id, or what the user gave as the training environment.
        render_mode: how to draw it; only where the library itself makes the environment.
        video: record the first environment.

    Raises:
        UserError: an instance that says nothing of how to make another one, or cannot be drawn.
    """
    make = _maker(config, env, render_mode)
    if video is None:
        return make
    if is_parallel_id(config.env_id if env is None else env):
        raise UserError(f"{config.env_id}: no videos are recorded of PettingZoo's environments.")
    longest = config.evaluation.max_episode_steps
    return lambda: VideoRecorder(make(), video, longest=longest)


def require_fresh(config: TrainConfig, env: Any) -> None:
    """Raise where `fresh_source` would, and where evaluation's own arguments do not fit.

    Raises:
        UserError: before anything is trained.
    """
    make = fresh_source(config, env)
    if config.evaluation.env_kwargs:
        make().close()


def _maker(config: TrainConfig, env: Any, render_mode: str | None) -> Callable[[], Any]:
    if is_parallel_id(config.env_id if env is None else env):
        env_id = config.env_id if env is None else env
        return parallel_maker(env_id, config.env_kwargs, render_mode=render_mode)
    if env is None or isinstance(env, str):
        kwargs = {**config.env_kwargs, **config.evaluation.env_kwargs}
        config = dataclasses.replace(config, env_id=env or config.env_id, env_kwargs=kwargs)
        return functools.partial(
            make_env,
            config,
            0,
            record_episode_statistics=False,
            render_mode=render_mode,
            training=False,
        )
    if config.evaluation.env_kwargs:
        raise UserError("evaluation.env_kwargs: only for an environment that is given by its id.")
    factories = getattr(env, "env_fns", None)
    if factories:
        return _drawn(factories[0], render_mode)
    if isinstance(env, gymnasium.Env) and env.spec is not None:
        _require_rebuildable(env.spec)
        return functools.partial(gymnasium.make, env.spec, render_mode=render_mode)
    if is_maker(env):
        return _drawn(env, render_mode)
    raise UserError(
        f"{environment_name(env)} does not say how to make another environment like it, "
        f"which evaluation needs: {_GIVE}."
    )


def _require_rebuildable(spec: Any) -> None:
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            raise UserError(
                f"the wrapper {wrapper.name} of {spec.id} does not say how to make another one "
                f"(gymnasium.utils.RecordConstructorArgs), which evaluation needs: {_GIVE}."
            )


def _drawn(make: Callable[[], Any], render_mode: str | None) -> Callable[[], Any]:
    def checked() -> Any:
        made = make()
        if render_mode is not None and made.render_mode != render_mode:
            raise UserError(
                f"{type(made.unwrapped).__name__} has render_mode {made.render_mode!r}: "
                f"make it with {render_mode!r} to draw it."
            )
        return made

    return checked


def normalizer_for(config: TrainConfig, observation_space: Any, *, gamma: float) -> Normalizer:
    """Return the normaliser that ``config`` asks for, as `make_batched_env` would build it, without
    an environment.
    """
    rows = _Rows(observation_space, config.num_envs)
    return make_normalizer(config, rows, gamma=gamma) or Normalizer()


class _Rows(NamedTuple):
    """What a normaliser is made for."""

    single_observation_space: Any
    num_envs: int

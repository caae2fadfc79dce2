"""Environments from a config: one, a gymnasium vector of them, or the batched TorchRL one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import nn

from rl_training.arguments import environment_name
from rl_training.envs import procgen
from rl_training.envs.acceptance import (
    require_own_environments,
    require_usable,
    require_usable_vector,
)
from rl_training.envs.atari import make_atari
from rl_training.envs.envpool_atari import EnvpoolAtari
from rl_training.envs.flatten import flattening_of
from rl_training.envs.gymnasium_ids import make_by_id
from rl_training.envs.masks import MASK, ObservedMasks, masked
from rl_training.envs.native_atari import NativeAtari
from rl_training.envs.native_procgen import NativeProcgen
from rl_training.envs.normalize import (
    Normalizer,
    ObservationNormalizer,
    PackedNormalizer,
    RewardNormalizer,
)
from rl_training.envs.parallel import (
    MadeParallelError,
    is_parallel,
    is_parallel_id,
    parallel_maker,
    parallel_rows,
)
from rl_training.envs.seeding import SeededEpisodes
from rl_training.envs.vector import VectorEnv
from rl_training.envs.workers import close_vector, start_workers
from rl_training.errors import UserError, one_line
from rl_training.registry import import_object

if TYPE_CHECKING:
    from rl_training.config import TrainConfig

Environment = gymnasium.Env[Any, Any]
AnyVector = gymnasium.vector.VectorEnv[Any, Any, Any]
_ON_THREADS = ("native", "envpool")


def make_env(
    config: TrainConfig,
    env_index: int,
    *,
    record_episode_statistics: bool = True,
    render_mode: str | None = None,
    training: bool = True,
) -> Environment:
    """Build environment number ``env_index`` of a run: ``config.env_id`` with
    ``config.env_kwargs``, in ``config.env.wrappers``.

    ``"my_package:MyEnv-v0"`` imports ``my_package`` first, which registers the id. A reset without
    a seed takes the next episode seed of ``(config.seed, env_index)``, and every reset seeds the
    action space as well.

    Args:
        config: gives ``env_id``, ``env_kwargs`` and ``seed``.
        env_index: the row this environment has in a vector.
        record_episode_statistics: report ``info["episode"]`` at an episode's end, as gymnasium's
            wrapper does.
        render_mode: passed to the environment.
        training: of Atari games, the pipeline's variant: lives end episodes, rewards are clipped.

    Raises:
        UserError: an unknown id (with the nearest), a missing extra (named), keyword arguments or a
            render mode that the environment does not take.
    """
    env = _make_named(config.env_id, config, training=training, render_mode=render_mode)
    return _finish(env, config, env_index, record_episode_statistics)


def _make_named(
    env_id: str, config: TrainConfig, *, training: bool = True, render_mode: str | None = None
) -> Any:
    settings, kwargs = config.env.atari, config.env_kwargs
    if settings.enabled:
        return make_atari(env_id, kwargs, settings, training=training, render_mode=render_mode)
    env = make_by_id(env_id, kwargs, render_mode=render_mode)
    for name in config.env.wrappers:
        env = _wrapped(env, name)
    return env


def _wrapped(env: Environment, name: str) -> Environment:
    """Put the wrapper ``"module:Class"`` around an environment."""
    try:
        wrapper = import_object(name)
    except UserError as error:
        raise UserError(f"env.wrappers: {error}") from error
    # Before anything is called: what a text names may be any function of any module.
    if not (isinstance(wrapper, type) and issubclass(wrapper, gymnasium.Wrapper)):
        raise UserError(f"env.wrappers: {name} must be a subclass of gymnasium.Wrapper.")
    try:
        return wrapper(env)
    except (TypeError, AttributeError, AssertionError, KeyError) as error:
        reason = one_line(error)
        raise UserError(f"env.wrappers: {name} does not go around {env}: {reason}") from error


def _finish(
    env: Any,
    config: TrainConfig,
    index: int,
    record_episode_statistics: bool,
    *,
    in_worker: bool = False,
) -> Environment:
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise UserError(
            f"{environment_name(env)} is a vector of environments: a callable must make a single "
            "one, and is called as often as num_envs says."
        )
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{env!r} is not a gymnasium environment.")
    require_usable(env)
    env = masked(env, config.env.action_masks)
    if record_episode_statistics:
        env = gymnasium.wrappers.RecordEpisodeStatistics(env)
    info_keys = config.env.info_keys if in_worker else None
    return SeededEpisodes(env, seed=config.seed, index=index, info_keys=info_keys)


def make_vector_env(
    config: TrainConfig, num_envs: int | None = None, *, record_episode_statistics: bool = True
) -> AnyVector:
    """Build ``num_envs`` (``config.num_envs`` unless given) environments as a gymnasium vector,
    autoreset DISABLED.

    Returns:
        A ``SyncVectorEnv``; an ``AsyncVectorEnv`` when ``config.env.vectorization`` is
        ``"async"``; a `NativeAtari` or `NativeProcgen` when it is ``"native"``; an `EnvpoolAtari`
        when it is ``"envpool"``.

    Raises:
        UserError: as :func:`make_env`, or a number below 1.
    """
    if config.env.vectorization in _ON_THREADS:
        return _on_threads(config.env_id, config, num_envs)
    make = functools.partial(make_env, config, record_episode_statistics=record_episode_statistics)
    return _vectorize(make, config, num_envs)


def _on_threads(env_id: str, config: TrainConfig, num_envs: int | None) -> Any:
    count = _checked_count(config, num_envs)
    if config.env.vectorization == "envpool":
        return EnvpoolAtari(env_id, config.env_kwargs, config.env.atari, count)
    if env_id.startswith(procgen.PREFIX) and not config.env.atari.enabled:
        return NativeProcgen(env_id, config.env_kwargs, count)
    return NativeAtari(env_id, config.env_kwargs, config.env.atari, count)


def _checked_count(config: TrainConfig, num_envs: int | None) -> int:
    count = config.num_envs if num_envs is None else num_envs
    if count < 1:
        raise UserError(f"num_envs must be at least 1, got {count}.")
    return count


def _vectorize(
    make: Callable[[int], Environment], config: TrainConfig, num_envs: int | None
) -> AnyVector:
    count = _checked_count(config, num_envs)
    makers = [functools.partial(make, index) for index in range(count)]
    if config.env.vectorization != "async":
        vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
        require_own_environments(vector.envs)
        return vector
    return start_workers(makers)


def single_env(env: Any, config: TrainConfig) -> Environment:
    """Return one environment for anything but a vector environment that a user may pass; None
    stands for ``config``'s.

    Raises:
        UserError: as :func:`make_env`, or an object that is no environment.
    """
    if env is None or isinstance(env, str):
        return _make_quiet(env or config.env_id, config, 0)
    if isinstance(env, gymnasium.Env) or not is_maker(env):
        return _finish(env, config, 0, record_episode_statistics=False)
    return _call(env, config, 0)


def is_maker(env: Any) -> bool:
    """Return whether ``env`` may be called to make an environment; TorchRL's environments can be
    called too, as the modules that they are.
    """
    return callable(env) and not (isinstance(env, nn.Module) and hasattr(env, "observation_spec"))


def as_vector(env: Any, config: TrainConfig, *, num_envs: int | None = None) -> AnyVector:
    """Return a gymnasium vector environment for anything a user may pass as an environment.

    Args:
        env: ``None`` or an id (built from ``config``), a callable that builds one environment, an
            environment (one row), or a gymnasium vector environment (as many rows as it has). A
            parallel environment of PettingZoo has a row per agent.
        config: gives number, seed and vectorisation where ``env`` leaves them open.
        num_envs: how many rows to build; for an instance or a vector environment, how many it must
            have.

    Raises:
        UserError: an object that is none of these, another number of rows than ``num_envs``, or a
            vector environment that resets rows on its own in a way that would put ghost steps into
            the data.
    """
    if env is None or isinstance(env, str):
        if is_parallel_id(env or config.env_id):
            make_parallel = parallel_maker(env or config.env_id, config.env_kwargs)
            return cast("AnyVector", parallel_rows(make_parallel, config, num_envs))
        if config.env.vectorization in _ON_THREADS:
            return _on_threads(env or config.env_id, config, num_envs)
        make = functools.partial(_make_quiet, env or config.env_id, config)
        return _vectorize(make, config, num_envs)
    if isinstance(env, gymnasium.vector.VectorEnv):
        _require_count(env.num_envs, num_envs, "the vector environment")
        require_usable_vector(env, _observed_masks(config, env), config.env.reset_options)
        return env
    if isinstance(env, gymnasium.Env):
        _require_count(1, num_envs, "an environment instance")
        wrapped = _finish(env, config, 0, record_episode_statistics=False)
        return SyncVectorEnv([lambda: wrapped], autoreset_mode=AutoresetMode.DISABLED)
    if is_parallel(env):
        return cast("AnyVector", parallel_rows(lambda: env, config, num_envs))
    if is_maker(env):
        try:
            return _vectorize(functools.partial(_call, env, config), config, num_envs)
        except MadeParallelError as made:
            return cast("AnyVector", parallel_rows(env, config, num_envs, first=made.env))
    raise UserError(
        f"{env!r} is not an environment; allowed: a gymnasium id, a callable, an environment, a "
        "vector environment."
    )


def _make_quiet(env_id: str, config: TrainConfig, index: int) -> Environment:
    return _finish_quiet(_make_named(env_id, config), config, index)


def _call(make: Callable[[], Any], config: TrainConfig, index: int) -> Environment:
    made = make()
    if is_parallel(made):
        raise MadeParallelError(made)
    return _finish_quiet(made, config, index)


def _finish_quiet(env: Any, config: TrainConfig, index: int) -> Environment:
    """Finish an environment that only the library steps: no more of its info than that reads."""
    in_worker = config.env.vectorization == "async"
    return _finish(env, config, index, record_episode_statistics=False, in_worker=in_worker)


def _require_count(have: int, want: int | None, what: str) -> None:
    if want is not None and have != want:
        raise UserError(f"num_envs is {want}, and {what} has {have}.")


def make_batched_env(
    config: TrainConfig,
    env: Any = None,
    *,
    num_envs: int | None = None,
    seed: int | None = None,
    squash_actions: bool = False,
    scale_actions: bool = False,
    normalizer: Normalizer | None = None,
    gamma: float = 0.99,
    require_actions: Callable[[Any], None] | None = None,
    name: str | None = None,
) -> VectorEnv:
    """Build the batched TorchRL environment of a run.

    Args:
        config: gives whatever the other arguments leave open.
        env: as for :func:`as_vector`.
        num_envs: rows; ``config.num_envs`` unless given.
        seed: of every episode's seed; ``config.seed`` unless given.
        squash_actions: take Box actions through tanh onto the bounds.
        scale_actions: scale Box actions from [-1, 1] onto the bounds.
        normalizer: used as it is; unless given, built as ``config.env`` asks.
        gamma: discount of the running return that scales rewards.
        require_actions: raises unless the action space is one that will be acted in.
        name: what messages call the environment; its own unless given.

    Raises:
        UserError: as :func:`make_env`, :func:`as_vector` and :class:`VectorEnv`.
    """
    vector = as_vector(env, config, num_envs=num_envs)
    try:
        if require_actions is not None:
            require_actions(vector.single_action_space)
        if normalizer is None:
            normalizer = make_normalizer(config, vector, gamma=gamma)
        return VectorEnv(
            vector,
            seed=config.seed if seed is None else seed,
            name=name or _name(env, vector, config),
            squash_actions=squash_actions,
            scale_actions=scale_actions,
            normalizer=normalizer,
            masks=_observed_masks(config, vector),
            info_keys=config.env.info_keys,
            reset_options=config.env.reset_options,
        )
    except UserError:
        close_vector(vector)
        raise


def _observed_masks(config: TrainConfig, vector: Any) -> ObservedMasks | None:
    if config.env.action_masks == "off":
        return None
    return ObservedMasks(vector.single_observation_space, vector.single_action_space)


def make_normalizer(config: TrainConfig, vector: Any, *, gamma: float) -> Normalizer | None:
    """Build what ``config.env`` asks for, for ``vector``'s observations and rows; ``None`` when it
    asks for nothing.
    """
    settings = config.env
    if not (settings.normalize_observation or settings.normalize_reward):
        return None
    observation = reward = None
    if settings.normalize_observation:
        observation = _observation_normalizer(config, vector)
    if settings.normalize_reward:
        reward = RewardNormalizer(vector.num_envs, gamma=gamma, clip=settings.clip_reward)
    return Normalizer(observation=observation, reward=reward)


def _observation_normalizer(config: TrainConfig, vector: Any) -> ObservationNormalizer:
    space, clip = vector.single_observation_space, config.env.clip_observation
    flattening = flattening_of(space)
    if flattening is None:
        return ObservationNormalizer(tuple(space.shape), clip=clip)
    masks = config.env.action_masks != "off"
    untouched = flattening.columns((MASK,)) if masks else None
    if flattening.packed:
        return PackedNormalizer(flattening.floats, clip=clip, untouched=untouched)
    return ObservationNormalizer((flattening.floats,), clip=clip, untouched=untouched)


def _name(env: Any, vector: Any, config: TrainConfig) -> str:
    if env is None or isinstance(env, str):
        return env or config.env_id
    if isinstance(vector, AsyncVectorEnv) and env is not vector:
        # What makes the environments may be any function: they are in the workers.
        return str(vector.get_attr("shown_name")[0])
    return environment_name(next(iter(getattr(vector, "envs", ())), env))

"""Which environments of a user's own are taken: none that resets behind the library's back, and
none whose running statistics a checkpoint would not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rl_training.envs.flatten import batched_array
from rl_training.envs.hybrid import action_map, as_rows
from rl_training.envs.masks import ObservedMasks
from rl_training.envs.spaces import require_supported
from rl_training.errors import UserError, one_line

_DISABLED = "autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED"


_INSTEAD = {
    "NormalizeReward": "env.normalize_reward",
    "NormalizeObservation": "env.normalize_observation",
}
_NORMALIZERS = {
    name: (getattr(gymnasium.wrappers, name), getattr(gymnasium.wrappers.vector, name))
    for name in _INSTEAD
}
_STATISTICS = {"NormalizeReward": "return_rms", "NormalizeObservation": "obs_rms"}


def require_usable(env: Any) -> None:
    """Raise when ``env``, of one environment or of a vector, lacks its spaces, or a wrapper of it
    resets it inside ``step`` or normalises by statistics of its own.

    Raises:
        UserError: there is no space; gymnasium's ``Autoreset``, ``NormalizeReward`` or
            ``NormalizeObservation`` is among the wrappers.
    """
    for name in ("observation_space", "action_space"):
        if getattr(env, name, None) is None:
            raise UserError(
                f"{type(env.unwrapped).__name__} has no {name}: an environment sets it."
            )
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        if isinstance(layer, gymnasium.wrappers.Autoreset):
            raise UserError(
                f"{env} resets itself (wrapper Autoreset); pass it without that wrapper."
            )
        for wrapper, kinds in _NORMALIZERS.items():
            if isinstance(layer, kinds) and layer.update_running_mean:
                _refuse_normalizer(wrapper, env)
        layer = layer.env


def _refuse_normalizer(wrapper: str, env: Any) -> NoReturn:
    raise UserError(
        f"{env}: the running statistics of its wrapper {wrapper} would be in no checkpoint and "
        f"differ from row to row; leave it out and set {_INSTEAD[wrapper]}."
    )


def require_own_environments(envs: Sequence[Any]) -> None:
    """Raise when one environment object stands in several rows, where each would disturb the other.

    Raises:
        UserError: names the rows.
    """
    rows: dict[int, int] = {}
    for row, env in enumerate(envs):
        first = rows.setdefault(id(env.unwrapped), row)
        if first != row:
            raise UserError(
                f"rows {first} and {row} are the same {type(env.unwrapped).__name__} object: every "
                "row needs an environment of its own; give a callable that makes a new one."
            )


def require_usable_vector(
    vector: Any,
    masks: ObservedMasks | None = None,
    reset_options: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Raise unless finished rows of ``vector`` can be reset one by one, at once, and the others are
    left alone.

    A vector environment of gymnasium's own with autoreset DISABLED can. Any other is tried out: it
    is reset, stepped and reset in one row, and the observations of the other rows compared. Its
    wrappers are looked at as `require_usable` does, and no environment may stand in two rows. With
    ``masks`` it is stepped by legal actions; every reset has the ``reset_options``.

    Raises:
        UserError: autoreset SAME_STEP, or rows that a masked reset disturbs; the message names the
            remedy.
    """
    _require_usable_layers(vector)
    name = type(vector).__name__
    mode = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if mode == AutoresetMode.SAME_STEP:
        raise UserError(
            f"{name} resets finished rows in the same step (autoreset SAME_STEP); "
            f"{_remedy(vector)}."
        )
    if mode == AutoresetMode.DISABLED and type(vector) in (SyncVectorEnv, AsyncVectorEnv):
        return
    inner = getattr(vector, "unwrapped", vector)
    if (
        mode == AutoresetMode.NEXT_STEP
        and isinstance(inner, AsyncVectorEnv)
        and not inner.shared_memory
    ):
        # Its workers forget about a pending autoreset only where observations travel through shared
        # memory.
        raise UserError(
            f"{name} without shared memory would reset finished rows twice; {_remedy(vector)}."
        )
    try:
        spared = _masked_reset_spares_others(vector, name, masks, dict(reset_options))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{name} cannot reset one row with a seed of its own "
            f"({type(error).__name__}: {one_line(error)}); {_remedy(vector)}."
        ) from error
    if not spared:
        raise UserError(
            f"{name} resets every row when asked to reset one, so its episodes cannot be told "
            f"apart; {_remedy(vector)}."
        )


def _remedy(vector: Any) -> str:
    """Return what to do instead of passing a vector environment that is refused."""
    if isinstance(getattr(vector, "unwrapped", vector), SyncVectorEnv | AsyncVectorEnv):
        return f"build it with {_DISABLED} (gymnasium.make_vec: in vector_kwargs)"
    spec = getattr(vector, "spec", None)
    one = "a callable that makes one environment" if spec is None else f"the id {spec.id!r}"
    # What is written as a vector has no such argument: gymnasium.make_vec makes CartPole's so.
    return (
        f"give {one} and num_envs={vector.num_envs} instead, or let its reset(seed=[...], "
        "options={'reset_mask': ...}) begin episodes in the rows of the mask alone, and set "
        "metadata['autoreset_mode'] to DISABLED"
    )


def _require_usable_layers(vector: Any) -> None:
    require_usable(vector)
    inner = getattr(vector, "unwrapped", vector)
    envs = getattr(inner, "envs", ())
    require_own_environments(envs)
    for env in envs:
        require_usable(env)
    if isinstance(inner, AsyncVectorEnv):
        # The wrappers are in other processes; what they have says which they are.
        for wrapper, statistics in _STATISTICS.items():
            parts = [inner.call("has_wrapper_attr", statistics)]
            parts.append(inner.call("has_wrapper_attr", "update_running_mean"))
            if any(all(has) for has in zip(*parts, strict=True)):
                _refuse_normalizer(wrapper, vector)


def _masked_reset_spares_others(
    vector: Any, name: str, masks: ObservedMasks | None, options: dict[str, Any]
) -> bool:
    require_supported(vector.single_observation_space, vector.single_action_space, name)
    space = vector.single_action_space
    first = vector.reset(seed=list(range(vector.num_envs)), options=dict(options) or None)[0]
    mapping = action_map(space)
    taken = mapping.zeros(vector.num_envs)
    if masks is not None:
        taken = mapping.to_env(
            masks.legal_actions(batched_array(first, vector.single_observation_space))
        )
    actions = as_rows(space)[1](taken)
    space = vector.single_observation_space
    before = batched_array(vector.step(actions)[0], space)
    mask = np.zeros(vector.num_envs, bool)
    mask[0] = True
    # Another seed than the first: a row that is reset after all then shows it even where its first
    # step changed nothing.
    seeds = [vector.num_envs + row for row in range(vector.num_envs)]
    options = {**options, "reset_mask": mask}
    after = batched_array(vector.reset(seed=seeds, options=options)[0], space)
    return before[1:].tobytes() == after[1:].tobytes()

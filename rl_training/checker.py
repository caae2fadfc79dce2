"""What the library will do with an environment: `check_env`, and ``rl-training check-env``."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.arguments import environment_name
from rl_training.config import ModelConfig, TrainConfig
from rl_training.envs.contract import Findings, drawn_frame, try_out
from rl_training.envs.factory import make_env, single_env
from rl_training.envs.flatten import flat_space
from rl_training.envs.hybrid import action_map, is_hybrid
from rl_training.envs.layout import Layout, Part, layout_of, name_of, observation_kind
from rl_training.envs.masks import MASK, METHOD
from rl_training.envs.parallel import MadeParallelError, is_parallel, is_parallel_id
from rl_training.envs.parts import leaves_of
from rl_training.envs.spaces import (
    action_kind,
    observation_dtype,
    require_supported,
    require_taken,
    space_to_dict,
)
from rl_training.errors import UserError, one_line
from rl_training.models.cnn import natural_encoder
from rl_training.models.parts import chosen_encoder, image_words
from rl_training.registry import ACTION_MASKS, ACTION_SPACES, sees

if TYPE_CHECKING:
    from gymnasium import Env

_LONGEST = 120
_BOXES = {
    "Box": ("clipped to the bounds", " (sac, td3: scaled onto them)"),
    "integer Box": ("rounded to the nearest within the bounds", " (sac, td3: equal shares)"),
    "unbounded Box": (
        "clipped where there is a bound",
        "; sac, td3 and algorithm.squash need finite bounds",
    ),
}
"""Kind -> what becomes of a Gaussian's numbers, and what else to say where there are no other
parts."""
_GAME_AS_IT_IS = (
    "this is the game as it is, as it is without settings: env.atari.enabled: true, or "
    "tags: [atari], turns on the standard pipeline (frames skipped, made gray and small, and "
    "stacked; lives as episodes, rewards clipped)"
)


@dataclass(kw_only=True)
class EnvironmentReport:
    """What was found, in plain words; ``str()`` is the whole text."""

    environment: str
    observation_space: str
    action_space: str
    observation: list[str]
    """How each part is read."""
    stored: str
    """What the batch holds of an observation."""
    action: list[str]
    """How each part is acted on."""
    masks: str
    time_limit: str
    resume: str
    rendering: str
    tried: str
    """How much was played."""
    algorithms: dict[str, str | None]
    """Name to why it refuses; None: it takes the environment."""
    notes: list[str]
    violations: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations

    def to_dict(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {**dataclasses.asdict(self), "ok": self.ok}

    def sections(self) -> list[tuple[str, list[str]]]:
        """Return headings and lines, in the order of the text."""
        takes = [name for name, reason in self.algorithms.items() if reason is None]
        refuses = {reason: None for reason in self.algorithms.values() if reason is not None}
        return [
            ("observation", [self.observation_space, *self.observation, self.stored]),
            ("actions", [self.action_space, *self.action]),
            ("masks", [self.masks]),
            ("time limit", [self.time_limit]),
            ("resume", [self.resume]),
            ("rendering", [self.rendering]),
            ("tried out", [self.tried]),
            ("algorithms", [f"taken by {', '.join(takes) or 'none'}", *refuses]),
            ("notes", self.notes),
            ("violations", self.violations or ["none"]),
        ]

    def __str__(self) -> str:
        lines = [self.environment]
        for heading, texts in self.sections():
            for index, each in enumerate(texts):
                lines.append(f"{heading if index == 0 else '':<12} {each}")
        return "\n".join(lines)


def check_env(
    env: Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    steps: int = 200,
    seed: int = 1,
) -> EnvironmentReport:
    """Say what the library will do with an environment, and what is wrong with it.

    It is reset and stepped with random actions; nothing is trained.

    Args:
        env: an id (``"my_package:MyEnv-v0"`` imports ``my_package``), a callable that makes an
            environment, or an environment, which is left reset and open.
        env_kwargs: of an id, for its constructor.
        steps: how many steps are tried.
        seed: of the first episode and of the actions.

    Raises:
        UserError: the environment cannot be made, or it is none.
    """
    env_id = env if isinstance(env, str) else ""
    if is_parallel_id(env_id) or is_parallel(env):
        raise _several_agents(env_id or environment_name(env))
    config = TrainConfig(algo="ppo", env_id=env_id, seed=seed, env_kwargs=dict(env_kwargs or {}))
    try:
        made = single_env(None if env_id else env, config)
    except MadeParallelError as error:
        error.env.close()
        raise _several_agents(environment_name(error.env)) from error
    try:
        return _report(made, config, env_id, steps=steps, seed=seed)
    finally:
        if env_id or callable(env):
            made.close()


def _several_agents(name: str) -> UserError:
    return UserError(f"{name} is an environment of several agents: check-env looks at one.")


def _report(
    env: Env[Any, Any], config: TrainConfig, env_id: str, *, steps: int, seed: int
) -> EnvironmentReport:
    name = env_id or type(env.unwrapped).__name__
    observation_space, action_space = env.observation_space, env.action_space
    report = functools.partial(
        EnvironmentReport,
        environment=name,
        observation_space=_short(observation_space),
        action_space=_short(action_space),
        time_limit=_time_limit(env),
        rendering=_rendering(env, config, env_id),
    )
    try:
        require_supported(observation_space, action_space, name)
    except UserError as error:
        nothing = "not looked at: the spaces are not supported"
        return report(
            observation=[],
            stored=nothing,
            action=[],
            masks=nothing,
            resume=nothing,
            tried=nothing,
            algorithms=dict.fromkeys(ACTION_SPACES, "its spaces are not supported: see violations"),
            notes=[],
            violations=[str(error)],
        )
    found = try_out(env, steps=steps, seed=seed)
    if found.steps and not found.episodes and getattr(env.spec, "max_episode_steps", None) is None:
        found.note(
            f"no episode ended in {found.steps} steps and there is no time limit: set "
            "max_episode_steps, for an evaluation cuts what never ends only at "
            "evaluation.max_episode_steps"
        )
    if env_id and "ale_py" in str(getattr(env.spec, "entry_point", "")):
        found.note(_GAME_AS_IT_IS)
    layout = layout_of(observation_space)
    return report(
        observation=[_part_words(part, layout, found) for part in layout.parts],
        stored=_stored(observation_space, layout),
        action=_action_words(action_space),
        masks=_mask_words(env, found),
        resume=_resume_words(env, found),
        tried=(
            f"{found.steps} steps of random actions; {found.terminated} episodes ended, "
            f"{found.truncated} were cut"
        ),
        algorithms={each: refusal(each, observation_space, action_space) for each in ACTION_SPACES},
        notes=found.notes,
        violations=found.violations,
    )


def refusal(name: str, observation_space: Any, action_space: Any) -> str | None:
    """Return why the algorithm ``name`` refuses an environment of these spaces; None: it takes it.

    The spaces are ones that some algorithm takes.
    """
    try:
        require_taken(action_space, ACTION_SPACES[name], name)
    except UserError as error:
        return str(error)
    kind = action_kind(action_space)
    if not sees(name, observation_kind(observation_space), kind):
        return f"{name} takes with {kind} actions no images yet: its critics are MLPs."
    shape = space_to_dict(action_space).get("shape", [0])
    if name in ("sac", "td3") and len(shape) != 1:
        return f"{name} needs actions of shape (A,), not {shape}."
    return None


def _short(space: Any) -> str:
    """Return a space on one line; one of many bounds without them."""
    text = one_line(space)
    if len(text) <= _LONGEST or not hasattr(space, "low"):
        return text
    return f"Box of shape {space.shape}, {space.dtype}, with bounds of its own for each number"


def _part_words(part: Part, layout: Layout, found: Findings) -> str:
    label = f"{part.name}: " if part.name else ""
    model = ModelConfig()
    if layout.whole and part.kind != "image" and len(part.shape) >= 3:
        found.note("observations are no images: set model.encoder to 'mlp' or 'module:Class'")
    if part.kind == "image":
        encoder = (
            natural_encoder(part.shape)
            if layout.whole
            else chosen_encoder(part, model.encoder, model.encoders)
        )
        return f"{label}{image_words(part)}, encoder {encoder}"
    if part.kind == "one-hot":
        return f"{label}one-hot, {sum(part.counts)} columns"
    count = math.prod(part.shape)
    words = "1 number" if count == 1 else f"{count} numbers"
    if part.kind == "bits":
        return f"{label}{count} bits, as they are"
    if not layout.whole and layout.images and len(part.shape) >= 3:
        found.note(
            f"part {part.name!r} has {len(part.shape)} dimensions and is no image: set "
            f"model.encoders.{part.name} to 'identity', 'mlp' or 'module:Class'"
        )
    return f"{label}{words} of {part.dtype}, shape {part.shape}, as they are"


def _stored(space: Any, layout: Layout) -> str:
    flat = flat_space(space)
    dtype = observation_dtype(flat)
    size = math.prod(flat.shape) * dtype.itemsize
    how = "packed: numbers, then pixels" if layout.packed else "one vector"
    how = "as it is" if layout.whole else how
    return f"stored as {dtype} {list(flat.shape)}, {size:,} bytes ({how})"


def _action_words(space: Any) -> list[str]:
    if not is_hybrid(space):
        return [_single_action(space)]
    parts = [
        f"{name_of(path)}: {_single_action(each, alone=False)}" for path, each in leaves_of(space)
    ]
    count = action_map(space).shape[0]
    return [
        *parts,
        f"stored as a row of {count} numbers, discrete ones first; predict gives the structure",
    ]


def _single_action(space: Any, *, alone: bool = True) -> str:
    kind = action_kind(space)
    if kind == "Discrete":
        last = space.start + space.n - 1
        return f"one of {space.n} choices, {space.start} to {last}: a categorical"
    if kind in ("MultiDiscrete", "MultiBinary"):
        return f"{math.prod(space.shape)} choices at once: independent categoricals"
    count = math.prod(space.shape)
    words = f"{count} number{'s' if count != 1 else ''} of {space.dtype}"
    how, scaled = _BOXES[kind]
    return f"{words}, {how}{scaled if alone else ''}"


def _mask_words(env: Env[Any, Any], found: Findings) -> str:
    sources = []
    if found.mask_in_info:
        sources.append(("info", f"info[{MASK!r}]"))
    if env.has_wrapper_attr(METHOD):
        sources.append(("method", f"{METHOD}()"))
    if MASK in getattr(env.observation_space, "spaces", {}):
        sources.append(("observation", f"the observation's key {MASK!r}"))
    if not sources:
        return "none found"
    where = ", ".join(what for _, what in sources)
    return (
        f"found in {where}; not used unless env.action_masks is {sources[0][0]!r} "
        f"({', '.join(ACTION_MASKS)})"
    )


def _time_limit(env: Env[Any, Any]) -> str:
    limit = getattr(env.spec, "max_episode_steps", None)
    if limit is None:
        return "none: an episode lasts until the environment ends or cuts it"
    return f"{limit} steps, then the episode is cut; values are bootstrapped through the cut"


def _resume_words(env: Env[Any, Any], found: Findings) -> str:
    if getattr(env, "can_snapshot", False):
        return "exact, by the environment's own snapshots"
    if found.repeats is None:
        return "not tried: the environment broke before"
    if found.repeats:
        return "exact, by replaying seed and actions: an episode was the same when played again"
    found.note("an episode is not the same again by its seed and its actions: no exact resume")
    return (
        "not exact: an episode was another one when played again by its seed and its actions; "
        "a run goes on with fresh episodes (--resume approximate)"
    )


def _rendering(env: Env[Any, Any], config: TrainConfig, env_id: str) -> str:
    modes = list(env.metadata.get("render_modes") or [])
    if "rgb_array" not in modes:
        return f"modes {modes or 'none'}: no videos, which need 'rgb_array'"
    if not env_id:
        return f"modes {modes}; not tried"
    wrong = drawn_frame(functools.partial(make_env, config, 0, render_mode="rgb_array"))
    return f"modes {modes}; " + ("videos work" if wrong is None else f"no videos: {wrong}")

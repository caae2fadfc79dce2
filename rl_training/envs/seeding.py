"""One seed per episode of every sub-environment, and the wrapper that applies it to the action
space too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from rl_training.arguments import environment_name
from rl_training.envs.answers import require_info
from rl_training.envs.flatten import require_integers
from rl_training.envs.infos import GAME_KEYS, PlainStep
from rl_training.envs.worlds import world_renewer


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """Return the 31-bit seed of one episode, from ``SeedSequence((seed, environment, episode))``.

    Unlike ``seed + environment``, no two runs with neighbouring seeds share a stream. 31 bits
    because some environments take a signed 32-bit seed.
    """
    return (
        int(np.random.SeedSequence((seed, environment, episode)).generate_state(1)[0]) & 0x7FFFFFFF
    )


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds the action space together with the environment at every seeded reset.

    A reset without a seed takes the environment's next episode seed, so a factory's environment is
    reproducible alone. An episode is a function of its seed and its actions in BipedalWalker too.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        seed: int,
        index: int,
        info_keys: Sequence[str] | None = None,
    ) -> None:
        """Wrap environment number ``index`` of a run seeded by ``seed``; of its ``info`` only
        ``info_keys`` are left, and a game's (None: all is left).
        """
        super().__init__(env)
        self._seed, self._index, self._episode = seed, index, 0
        self._unchecked = True
        self._renew_world = world_renewer(env)
        # The wrapped method itself: a step costs no extra call.
        self.step = env.step  # type: ignore[method-assign]
        self._tells = info_keys is None
        if info_keys is not None:
            kept = GAME_KEYS if self.plays_games else ()
            plain = PlainStep(env.step, env.observation_space, info_keys, kept)
            self.step = plain.step  # type: ignore[method-assign]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode with ``seed``, or with this environment's next episode seed."""
        if seed is None:
            seed = episode_seed(self._seed, self._index, self._episode)
            self._episode += 1
        self.env.action_space.seed(seed)
        if self._renew_world is not None:
            self._renew_world()
        observation, information = self.env.reset(seed=seed, options=options)
        require_info(information, "reset")
        if self._unchecked:  # here and not by the vector alone: a worker's buffer casts silently
            require_integers(observation, self.env.observation_space)
            self._unchecked = False
        return observation, information if self._tells else {}

    @property
    def shown_name(self) -> str:
        """What messages call the environment."""
        return environment_name(self.env)

    @property
    def can_snapshot(self) -> bool:
        """Whether the wrapped environment gives its whole state: `snapshot` and `restore`."""
        return hasattr(self.env, "snapshot") and hasattr(self.env, "restore")

    @property
    def plays_games(self) -> bool:
        """Whether an episode is only a part of a game, of which each step tells."""
        return bool(getattr(self.env, "plays_games", False))

    def snapshot(self) -> dict[str, Any]:
        """Return the wrapped environment's whole state."""
        state: dict[str, Any] = self.env.snapshot()  # type: ignore[attr-defined]
        return state

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore the one of ``states``, of all rows, that is this environment's."""
        self.env.restore(states[self._index])  # type: ignore[attr-defined]

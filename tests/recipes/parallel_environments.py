"""A parallel environment as PettingZoo has them, of which everything is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

AGENTS = ["red", "green", "blue"]


class Crowd:
    """Three agents see a random context each, and earn 1 for its number and 0.1 for every other
    agent that was right. Episodes are of 3 to 8 steps, and end or are cut for all.

    Args:
        dies: an agent whose episode is over after two steps.
        odd: an agent that sees more than the others.
        absent: an agent that does not begin an episode.
        raises: agents' steps raise in episodes of this seed.
        masked: observations are Dicts with a mask that has the right action and one other.
    """

    metadata: dict[str, Any] = {"name": "crowd_v0"}  # noqa: RUF012

    def __init__(
        self,
        *,
        dies: str | None = None,
        odd: str | None = None,
        absent: str | None = None,
        raises: int | None = None,
        masked: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.dies, self.odd, self.absent, self.raises = dies, odd, absent, raises
        self.masked, self.render_mode = masked, render_mode
        self.closed = False

    def observation_space(self, agent: str) -> Any:
        context = spaces.Box(0.0, 1.0, (5 if agent == self.odd else 4,), np.float64)
        if not self.masked:
            return context
        return spaces.Dict({"observation": context, "action_mask": spaces.MultiBinary(4)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.draws = np.random.default_rng(seed)
        self.fails = seed == self.raises
        self.agents = [agent for agent in AGENTS if agent != self.absent]
        self.length = (options or {}).get("length", int(self.draws.integers(3, 9)))
        self.steps = 0
        return self._observe(), {agent: {} for agent in self.agents}

    def _observe(self) -> dict[str, Any]:
        self.right = dict(zip(AGENTS, self.draws.integers(4, size=3).tolist(), strict=True))
        seen: dict[str, Any] = {agent: np.eye(4)[number] for agent, number in self.right.items()}
        if not self.masked:
            return seen
        self.masks = {a: np.eye(4, dtype=np.int8)[n] for a, n in self.right.items()}
        for mask in self.masks.values():
            mask[self.draws.integers(4)] = 1
        return {a: {"observation": seen[a], "action_mask": self.masks[a]} for a in seen}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        if self.fails:
            raise OSError("no crowd")
        if self.masked:
            assert all(self.masks[agent][action] for agent, action in actions.items())
        self.steps += 1
        hits = {agent: int(action == self.right[agent]) for agent, action in actions.items()}
        total = sum(hits.values())
        rewards = {agent: hit + 0.1 * (total - hit) for agent, hit in hits.items()}
        over, cut = self.steps >= self.length, bool(self.draws.random() < 0.5)
        terminated = dict.fromkeys(self.agents, over and not cut)
        truncated = dict.fromkeys(self.agents, over and cut)
        if self.dies is not None and self.steps == 2:
            terminated[self.dies] = True
        infos = {agent: {"hit": hit} for agent, hit in hits.items()}
        seen = self._observe()
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return seen, rewards, terminated, truncated, infos

    def close(self) -> None:
        self.closed = True


parallel_env = Crowd
"""The name that PettingZoo's modules have."""

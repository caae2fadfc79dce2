"""The standard pipeline of Atari games, as one wrapper that talks to the emulator itself.

The steps are those of Mnih et al. (2015) as OpenAI baselines wrote them down. In one wrapper
instead of seven, only the frames that are looked at are drawn, and the whole state can be saved.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.config.groups import AtariConfig
from rl_training.envs.gymnasium_ids import make_by_id, spec_of
from rl_training.envs.replay import ResumeError
from rl_training.errors import UserError

Array = NDArray[Any]
_EXTRA = 'pip install "rl_training[atari]"'


def make_atari(
    env_id: str,
    env_kwargs: dict[str, Any],
    settings: AtariConfig,
    *,
    training: bool,
    render_mode: str | None = None,
) -> AtariPipeline:
    """Build a game by its id (``PongNoFrameskip-v4``, ``ALE/Pong-v5``) in the standard pipeline.

    The id gives game, time limit and the probability of sticky actions, the pipeline all the rest.

    Raises:
        UserError: as `make_by_id`; an id that is no Atari game, or a missing package (named).
    """
    spec = spec_of(env_id)
    if "ale_py" not in str(spec.entry_point):
        raise UserError(
            f"env.atari is for Atari games, and {env_id} is none: leave out env.atari.enabled, or "
            "the tag 'atari', which switches it on."
        )
    if "frameskip" in env_kwargs:
        raise UserError("env_kwargs: with env.atari, frameskip is env.atari.frame_skip.")
    name = "repeat_action_probability"
    sticky = env_kwargs.get(name, spec.kwargs.get(name, 0.0))
    if settings.sticky_actions is not None:
        sticky = settings.sticky_actions
    try:
        env = make_by_id(env_id, {**env_kwargs, "frameskip": 1, name: 0.0}, render_mode=render_mode)
    except (RuntimeError, TypeError) as error:  # the emulator's own, of an impossible value
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{env_id} does not take one of the env_kwargs {sorted(env_kwargs)}: {reason}"
        ) from error
    return AtariPipeline(env, settings, training=training, sticky_actions=sticky, env_id=env_id)


def require_atari(env: Any, env_id: str) -> Any:
    """Return the emulator's own environment inside ``env``.

    Raises:
        UserError: it is no Atari game, or its actions are not the joystick's.
    """
    inner = env.unwrapped
    if not hasattr(inner, "ale"):
        raise UserError(f"env.atari is for Atari games, and {env_id} is none.")
    if not isinstance(inner.action_space, spaces.Discrete):
        raise UserError(f"env.atari needs Discrete actions: leave out {env_id}'s 'continuous'.")
    return inner


def resizer() -> Any:
    """Return OpenCV, which resizes the frames.

    Raises:
        UserError: it is not installed.
    """
    try:
        import cv2
    except ImportError as error:
        raise UserError(f"env.atari needs OpenCV to resize frames: {_EXTRA}.") from error
    return cv2


class GameRules(NamedTuple):
    """What a game's id and arguments make of it in the pipeline."""

    limit: float
    """Steps of the agent after which a game is cut, or infinity."""
    fires: bool
    """Whether each life begins with FIRE and the third action."""
    sticky_actions: float
    screen: tuple[int, int]
    """Its height and width."""


class AtariPipeline(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An Atari game as agents are trained on it: uint8 ``[stack, size, size]``, the newest last.

    1. A game begins with 1 to ``noop_max`` frames without action.
    2. An action is held for ``frame_skip`` frames; their rewards are summed, the last two frames
       merged by their maximum. Where a game ends before, its last frame counts alone.
    3. In training an episode ends with a life, and `reset` goes on with the same game, after one
       step without action.
    4. Where a game has FIRE as its second action, each life begins with FIRE and the third action.
    5. Frames are brightness, resized by area.
    6. In training the reward is its sign.
    7. The first frame of an episode fills the stack.

    With ``training=False`` episodes are whole games and rewards are the game's. A life lost is then
    followed by what `reset` would have done, within the step, so that a policy sees what it was
    trained on.

    Sticky actions are drawn here, by the emulator's own rule, from the generator that the episode's
    seed gives: so no reset has to load the game anew, which takes a tenth of a second.

    Args:
        env: the game, made with frameskip 1 and without sticky actions of its own.
        settings: numbers and switches.
        training: whether lives end episodes, and rewards are clipped.
        sticky_actions: probability that a frame repeats the action of the one before.
        env_id: what errors call it.

    Raises:
        UserError: it is no Atari game, or OpenCV is missing.
    """

    plays_games = True
    """An episode may be only a part of a game, of which each step tells."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        settings: AtariConfig,
        *,
        training: bool = True,
        sticky_actions: float = 0.0,
        env_id: str = "the environment",
    ) -> None:
        super().__init__(require_atari(env, env_id))
        self._cv2 = resizer()
        self.settings, self.training = settings, training
        self._name = env_id
        limit = None if env.spec is None else env.spec.max_episode_steps
        self._limit = float("inf") if limit is None else limit
        game: Any = self.unwrapped
        # The emulator draws its own seed from the clock. It takes another one only by loading the
        # game anew; once is enough, as the pipeline asks nothing of its generator.
        game.seed_game(0)
        game.load_game()
        self._ale: Any = game.ale
        self._actions: list[Any] = list(game._action_set)
        meanings = game.get_action_meanings()
        self._fires = settings.fire_reset and len(meanings) > 2 and meanings[1] == "FIRE"
        self._sticky = sticky_actions
        self._act = self._act_stickily if sticky_actions > 0 else self._ale.act
        self._random = np.random.default_rng(0)
        self._held = self._actions[0]
        self._lives = self._steps = 0
        self._continues = False
        """Whether the next `reset` goes on with the game."""
        self.score = 0.0
        """Of the running game: its own rewards so far."""
        self._make_frames()
        # What a recording shows is one frame in frame_skip, of 60 a second.
        self.metadata = {**env.metadata, "render_fps": max(1, 60 // settings.frame_skip)}

    @property
    def rules(self) -> GameRules:
        """The game's rules, for those who play it elsewhere."""
        height, width = self._ale.getScreenDims()
        return GameRules(self._limit, self._fires, self._sticky, (height, width))

    def _make_frames(self) -> None:
        height, width = self._ale.getScreenDims()
        size = self.settings.screen_size
        colours = () if self.settings.grayscale else (3,)
        self._screen = (
            self._ale.getScreenGrayscale if self.settings.grayscale else self._ale.getScreenRGB
        )
        self._screens = [np.zeros((height, width, *colours), np.uint8) for _ in range(2)]
        self._channels = 1 if self.settings.grayscale else 3
        shape = (self.settings.frame_stack * self._channels, size, size)
        self._stack: Array = np.zeros(shape, np.uint8)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    # ---- episodes

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode: the game's next life after a step that lost one, else a new game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        going_on = self._continues
        self._continues = False
        if going_on:
            self._begin_life()
        else:
            self._begin_game()
        self._fill_stack()
        return self._stack.copy(), {"lives": self._lives}

    def _begin_game(self) -> None:
        self._start_emulator()
        if self._fires:
            self._press_fire(restart=True)
        else:
            self._screen(self._screens[1])
        self._lives = self._ale.lives()

    def _start_emulator(self) -> None:
        """Reset the game and let it run without action for a random number of frames."""
        self._ale.reset_game()
        self._held, self._steps, self.score = self._actions[0], 0, 0.0
        most = self.settings.noop_max
        for _ in range(int(self._random.integers(1, most + 1)) if most else 0):
            self._act(self._actions[0])
            if self._ale.game_over():
                self._ale.reset_game()

    def _begin_life(self) -> float:
        """Take the steps between two lives and return their reward."""
        reward = self._hold(self._actions[0])
        if self._ale.game_over():
            if self.training:
                self._begin_game()
            return reward
        if self._fires:
            reward += self._press_fire(restart=self.training)
        self._lives = self._ale.lives()
        self.score += reward
        return reward

    def _press_fire(self, *, restart: bool) -> float:
        reward = 0.0
        for action in self._actions[1:3]:
            reward += self._hold(action)
            if self._ale.game_over():
                if not restart:
                    break
                self._start_emulator()
        return reward

    # ---- steps

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Hold the action of number ``action`` for ``frame_skip`` frames."""
        ale = self._ale
        reward = self._hold(self._actions[action])
        self.score += reward
        self._steps += 1
        over = ale.game_over()
        lives = ale.lives()
        lost = not over and 0 < lives < self._lives and self.settings.episodic_life
        self._lives = lives
        if lost and not self.training:
            reward += self._begin_life()
            self._fill_stack()
            over = ale.game_over()
        else:
            self._push_frame()
        truncated = self._steps >= self._limit or (over and bool(ale.game_truncated()))
        terminated = (over and not ale.game_truncated()) or (lost and self.training)
        self._continues = lost and self.training and not truncated
        if self.training and self.settings.clip_reward:
            reward = float((reward > 0) - (reward < 0))
        information = {
            "lives": lives,
            "score": self.score,
            "game_length": self._steps,
            "game_over": (terminated or truncated) and not self._continues,
        }
        return self._stack.copy(), reward, terminated, truncated, information

    def _hold(self, action: Any) -> float:
        """Hold an action and return the summed reward; the merged frame is in ``_screens[1]``."""
        act, over = self._act, self._ale.game_over
        older, newer = self._screens
        last = self.settings.frame_skip - 1
        reward = 0.0
        for frame in range(last + 1):
            reward += act(action)
            if frame == last:
                self._screen(newer)
            elif over():
                self._screen(newer)
                return reward
            elif frame == last - 1:
                self._screen(older)
        if last:
            np.maximum(older, newer, out=newer)
        return reward

    def _act_stickily(self, action: Any) -> float:
        if self._random.random() >= self._sticky:
            self._held = action
        return float(self._ale.act(self._held))

    # ---- frames

    def _frame(self) -> Array:
        """Return the merged frame resized, ``[channels, size, size]``."""
        size = self.settings.screen_size
        small = self._cv2.resize(self._screens[1], (size, size), interpolation=self._cv2.INTER_AREA)
        return small[None] if small.ndim == 2 else small.transpose(2, 0, 1)

    def _push_frame(self) -> None:
        channels = self._channels
        self._stack[:-channels] = self._stack[channels:]
        self._stack[-channels:] = self._frame()

    def _fill_stack(self) -> None:
        self._stack.reshape(-1, self._channels, *self._stack.shape[1:])[:] = self._frame()

    # ---- state

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state: emulator, generator, lives, frames."""
        emulator = self._ale.cloneState(include_rng=True).__getstate__()
        return {
            "emulator": np.frombuffer(emulator, np.uint8).copy(),
            "memory": np.array(self._ale.getRAM(), np.uint8),
            "generator": json.dumps(self._random.bit_generator.state),
            "held": self._actions.index(self._held),
            "lives": self._lives,
            "steps": self._steps,
            "score": self.score,
            "continues": self._continues,
            "stack": self._stack.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `snapshot` was taken, bit for bit.

        Raises:
            ResumeError: the emulator does not arrive at the saved memory.
        """
        import ale_py

        emulator: Any = ale_py.ALEState.__new__(ale_py.ALEState)
        try:
            emulator.__setstate__(np.asarray(state["emulator"], np.uint8).tobytes())
            self._ale.restoreState(emulator)
        except (RuntimeError, ValueError) as error:
            raise ResumeError(f"{self._name}: the emulator refuses its saved state.") from error
        memory = np.array(self._ale.getRAM(), np.uint8)
        if memory.tobytes() != np.asarray(state["memory"], np.uint8).tobytes():
            raise ResumeError(
                f"{self._name}: the emulator does not arrive at its saved memory, so the run "
                "cannot resume exactly; resume with `--resume approximate` to go on with fresh "
                "episodes."
            )
        self._random.bit_generator.state = json.loads(state["generator"])
        self._held = self._actions[int(state["held"])]
        self._lives, self._steps = int(state["lives"]), int(state["steps"])
        self.score, self._continues = float(state["score"]), bool(state["continues"])
        self._stack[:] = np.asarray(state["stack"], np.uint8)

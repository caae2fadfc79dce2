"""Episodes as MP4 files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rl_training.errors import UserError

_DEFAULT_FRAMES_PER_SECOND = 30


@dataclass(frozen=True)
class VideoRequest:
    """How many episodes to record, and where the numbered files go."""

    directory: Path
    episodes: int


class VideoRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes the first episodes of an environment, drawn as ``rgb_array``, as ``episode_0001.mp4``
    and so on.

    Files that are there already are never overwritten: numbering goes on after them.

    Raises:
        UserError: the environment does not draw itself into arrays, or the video extra is missing.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], request: VideoRequest) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise UserError(
                f"{env} cannot be recorded: its render_mode is {env.render_mode!r}, "
                "not 'rgb_array'."
            )
        self._request = request
        self._recorded = 0
        self._frames: list[np.ndarray[Any, Any]] = []
        _writer_module()

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and its recording while any is due."""
        result = self.env.reset(**keywords)
        self._frames = []
        self._draw()
        return result

    def step(self, action: Any) -> Any:
        """Step, draw, and write the file at the episode's end."""
        result = self.env.step(action)
        self._draw()
        if (result[2] or result[3]) and self._frames:
            self._write()
        return result

    def _draw(self) -> None:
        if self._recorded < self._request.episodes:
            self._frames.append(np.asarray(self.env.render(), np.uint8))

    def _write(self) -> None:
        directory = self._request.directory
        directory.mkdir(parents=True, exist_ok=True)
        number = 1
        while (path := directory / f"episode_{number:04d}.mp4").exists():
            number += 1
        rate = self.env.metadata.get("render_fps", _DEFAULT_FRAMES_PER_SECOND)
        # macro_block_size 2 is what the codec needs; the default of 16 would resize the picture.
        _writer_module().mimwrite(path, _even(self._frames), fps=rate, macro_block_size=2)
        self._recorded += 1
        self._frames = []


def _even(frames: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    height, width = (size - size % 2 for size in frames[0].shape[:2])
    return [frame[:height, :width] for frame in frames]


def _writer_module() -> Any:
    try:
        import imageio
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise UserError(
            'writing videos needs an extra: pip install "rl_training[video]".'
        ) from error
    return imageio

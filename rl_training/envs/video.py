"""Episodes as MP4 files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rl_training.envs.video_file import VideoFile, even, ffmpeg
from rl_training.errors import UserError, VideoError

_DEFAULT_FRAMES_PER_SECOND = 30


@dataclass(frozen=True)
class VideoRequest:
    """How many episodes to record, and where the numbered files go."""

    directory: Path
    episodes: int
    prefix: str = "episode"
    """What the files are called, before the number: ``episode_0001.mp4``."""


def expect_no_screen() -> None:
    """Let SDL, with which many environments draw, not complain where it finds no screen."""
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


class VideoRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes the first episodes of an environment, drawn as ``rgb_array``, as ``episode_0001.mp4``
    and so on.

    Files that are there already are never overwritten: numbering goes on after them. A file gets
    its name when its episode is over; what an episode without an end left is removed.

    Args:
        env: makes the frames.
        request: what is recorded, and where to.
        longest: steps after which an episode counts as over, as it does in an evaluation; None: no
            limit.

    Raises:
        UserError: the environment does not draw itself into arrays, or the video extra is missing.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], request: VideoRequest, *, longest: int | None = None
    ) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise UserError(
                f"{env} cannot be recorded: its render_mode is {env.render_mode!r}, "
                "not 'rgb_array'."
            )
        self._request = request
        self._longest = longest
        self._recorded = self._taken = 0
        self._file: VideoFile | None = None
        ffmpeg()
        expect_no_screen()

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and its recording while any is due."""
        self._abandon()
        result = self.env.reset(**keywords)
        self._taken = 0
        if self._recorded < self._request.episodes:
            self._file = self._open()
            self._draw(self._file)
        return result

    def step(self, action: Any) -> Any:
        """Step, draw, and name the file at the episode's end."""
        result = self.env.step(action)
        self._taken += 1
        if self._file is not None:
            self._draw(self._file)
            if result[2] or result[3] or self._taken == self._longest:
                self._finish(self._file)
        return result

    def close(self) -> None:
        """Close the environment; an episode that is not over leaves no file."""
        self._abandon()
        super().close()

    def _open(self) -> VideoFile:
        directory = self._request.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise VideoError(f"no video can be written in {directory}: {reason}.") from error
        rate = self.env.metadata.get("render_fps", _DEFAULT_FRAMES_PER_SECOND)
        # Frame by frame: an episode's frames together can take a gigabyte.
        return VideoFile(directory / f".partial_{os.getpid()}.mp4", rate)

    def _draw(self, file: VideoFile) -> None:
        frame = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            kind = type(frame).__name__
            raise VideoError(f"{self.env} cannot be recorded: its render() returns {kind}.")
        file.add(even(frame))

    def _finish(self, file: VideoFile) -> None:
        file.finish()
        number = 1
        while (path := self._path(number)).exists():
            number += 1
        file.path.replace(path)
        self._file = None
        self._recorded += 1

    def _path(self, number: int) -> Path:
        return self._request.directory / f"{self._request.prefix}_{number:04d}.mp4"

    def _abandon(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.abandon()

"""An MP4 file, written frame by frame by ffmpeg, of which it is known at the end whether it is
whole.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import UserError, VideoError, one_line

_PIXEL_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}
_PATIENCE = 60.0
"""Seconds until ffmpeg counts as stuck when it was told that no frame follows."""


class VideoFile:
    """Frames of one size as an MP4 file. The process comes with the first of them.

    Args:
        path: of the file, whose directory is there; what is there already is written over.
        rate: frames of a second.

    Raises:
        UserError: the video extra is missing.
    """

    def __init__(self, path: Path, rate: float) -> None:
        self.path = path
        self._program, self._rate = ffmpeg(), rate
        self._process: subprocess.Popen[bytes] | None = None
        self._shape: tuple[int, ...] = ()

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Append a frame ``[height, width, 1, 3 or 4]``, whose sides are even.

        Raises:
            VideoError: it is no picture, or of another size than the frames before; or the disk is
                full or refuses, and nothing is left of the file.
        """
        if self._process is None:
            self._shape = frame.shape
            self._process = self._start()
        if frame.shape != self._shape:
            raise VideoError(f"a frame is {frame.shape} after frames of {self._shape}.")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except OSError as error:  # it has ended, and says why
            complaint = self._end() or str(error)
            self.abandon()
            raise self._refused(complaint) from error

    def finish(self) -> None:
        """Write what is left and close.

        Raises:
            VideoError: the file could not be written whole; nothing is left of it.
        """
        complaint = self._end()
        if complaint is not None:
            self.abandon()
            raise self._refused(complaint)

    def abandon(self) -> None:
        """Close and remove the file."""
        self._end()
        self.path.unlink(missing_ok=True)

    def _start(self) -> subprocess.Popen[bytes]:
        height, width, depth = self._shape
        if depth not in _PIXEL_FORMATS:
            raise VideoError(f"a frame is {self._shape}: its last dimension is no colours'.")
        frames = ["-f", "rawvideo", "-pix_fmt", _PIXEL_FORMATS[depth], "-s", f"{width}x{height}"]
        command = [self._program, "-y", "-v", "error", *frames, "-r", f"{self._rate:.02f}"]
        command += ["-i", "-", "-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", str(self.path)]
        try:
            # A session of its own: Ctrl-C ends the evaluation, which ends the file.
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise self._refused(str(error)) from error

    def _end(self) -> str | None:
        """Let the process end, and return what it complains of; None where all is written."""
        if self._process is None:
            return "it has no frame"
        process, self._process = self._process, None
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # of a process that is gone
            process.stdin.close()
        process.stdin = None
        try:
            told = process.communicate(timeout=_PATIENCE)[1].decode(errors="replace")
        except BaseException as error:
            process.kill()
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return "ffmpeg does not end"
            raise
        if process.returncode == 0:
            return None
        return one_line(told) or f"ffmpeg ended with status {process.returncode}"

    def _refused(self, reason: str) -> VideoError:
        return VideoError(f"no video can be written in {self.path.parent}: {reason}.")


def ffmpeg() -> str:
    """Return where the program is.

    Raises:
        UserError: the video extra is missing.
    """
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise UserError(
            'writing videos needs an extra: pip install "rl_training[video]".'
        ) from error


def even(frame: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a picture without the odd row and column, which the codec cannot take."""
    height, width = (size - size % 2 for size in frame.shape[:2])
    return frame[:height, :width].astype(np.uint8, copy=False)

"""Episodes as video files and on the screen, by hand and in the course of training."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from rl_training import cli
from rl_training.config import config_from_dict
from rl_training.envs.video import VideoRecorder, VideoRequest
from rl_training.envs.video_file import VideoFile
from rl_training.errors import UserError, VideoError
from rl_training.evaluation import evaluate
from rl_training.recipes.ppo import PPO
from rl_training.workflows import TrainResult, evaluate_checkpoint, resume_checkpoint, train

imageio = pytest.importorskip("imageio.v2", reason="needs imageio, of the dev extra")
pytest.importorskip("imageio_ffmpeg", reason="needs imageio-ffmpeg, of the video extra")

LENGTH = 12
"""Steps of every episode in this file."""


class Painted(gymnasium.Env[Any, Any]):
    """Draws its time as a brightness, in a picture of odd size; counts what is shown on screen."""

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["human", "rgb_array"],
        "render_fps": 10,
    }
    shown: ClassVar[list[int]] = []

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._observe(), 1.0, self.time == LENGTH, False, {}

    def _observe(self) -> Any:
        if self.render_mode == "human":
            self.shown.append(self.time)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def render(self) -> Any:
        return np.full((65, 97, 3), 20 * self.time, np.uint8)


class Blank(Painted):
    """Says that it draws, and does not."""

    def render(self) -> Any:
        return None


class Breaks(Painted):
    """Cannot draw for long."""

    def render(self) -> Any:
        if self.time == 5:
            raise OSError("no space left on device")
        return super().render()


class Fades(Painted):
    """Draws, after its first picture, what is none or of another size."""

    later: ClassVar[Any] = None

    def render(self) -> Any:
        return super().render() if self.time == 0 else self.later


class Noisy(Painted):
    """Its pictures take room."""

    def render(self) -> Any:
        return np.random.default_rng(self.time).integers(0, 256, (64, 96, 3), np.uint8)


class Unseen(Painted):
    """Cannot be drawn."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012


class Bare(Painted):
    """Does not even know that environments are drawn."""

    def __init__(self) -> None:
        super().__init__(None)


for _name in ("Painted", "Blank", "Breaks", "Fades", "Noisy", "Unseen", "Bare"):
    gymnasium.register(f"Drawing/{_name}-v0", entry_point=f"{__name__}:{_name}")


def trained(
    directory: Path,
    env_id: str = "Drawing/Painted-v0",
    *,
    algo: str = "ppo",
    total_timesteps: int = 128,
    **groups: Any,
) -> TrainResult:
    """Train on 2 environments, 32 steps each an iteration, so two iterations in all."""
    content = {
        "algo": algo,
        "env_id": env_id,
        "output_dir": str(directory / "runs"),
        "total_timesteps": total_timesteps,
        "num_envs": 2,
        "algorithm": {"num_steps": 32, "minibatch_size": 32},
        "evaluation": {"final": False},
        "tracking": {"tensorboard": False},
    }
    return train(config_from_dict({**content, **groups}, source="test"))


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("painted")).run_dir


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    Painted.shown.clear()
    yield


def brightness(path: Path) -> list[float]:
    """Return the mean brightness of each frame of a video."""
    return [float(np.mean(frame)) for frame in imageio.mimread(path, memtest=False)]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_eval_records_whole_episodes_and_never_overwrites(
    painted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = painted / "videos"
    words = ["eval", str(painted), "--video", "2", "--episodes", "3"]
    assert cli.main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["videos"] == str(videos)
    assert report["lengths"] == [LENGTH] * 3
    assert names(videos) == ["episode_0001.mp4", "episode_0002.mp4"]
    for name in names(videos):
        # First observation, every step, and the terminal observation. The codec rounds a little.
        found = brightness(videos / name)
        assert found == pytest.approx([20 * time for time in range(LENGTH + 1)], abs=4)
    frame = next(iter(imageio.get_reader(videos / "episode_0001.mp4")))
    assert frame.shape == (64, 96, 3), "an odd row and column are cut off, nothing is scaled"
    assert imageio.get_reader(videos / "episode_0001.mp4").get_meta_data()["fps"] == 10
    before = {name: (videos / name).read_bytes() for name in names(videos)}
    assert cli.main(words) == 0
    assert f"videos      {videos}" in capsys.readouterr().out
    assert names(videos) == [f"episode_{number:04d}.mp4" for number in (1, 2, 3, 4)]
    assert all((videos / name).read_bytes() == content for name, content in before.items())


def test_more_videos_than_episodes_play_as_many_episodes_as_videos(painted: Path) -> None:
    record = evaluate_checkpoint(painted, episodes=1, video=3)
    assert record["episodes"] == 3


def test_videos_of_a_checkpoint_outside_a_run_lie_beside_it(tmp_path: Path) -> None:
    algorithm = PPO("Drawing/Painted-v0", num_envs=2, num_steps=32, minibatch_size=32)
    saved = algorithm.save(tmp_path / "saved", policy_only=True)
    record = evaluate_checkpoint(saved, episodes=1, video=1)
    assert names(Path(record["videos"])) == ["episode_0001.mp4"]
    evaluate_checkpoint(saved, episodes=1)  # it is intact still


def test_a_real_environment_is_recorded_without_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER")
    pytest.importorskip("pygame", reason="needs pygame, of the video extra")
    algorithm = PPO("CartPole-v1", num_envs=2, num_steps=32, minibatch_size=32)
    saved = algorithm.save(tmp_path / "saved", policy_only=True)
    record = evaluate_checkpoint(saved, episodes=1, video=1)
    frames = imageio.mimread(Path(record["videos"]) / "episode_0001.mp4", memtest=False)
    assert len(frames) == record["lengths"][0] + 1
    assert frames[0].shape == (400, 600, 3)
    assert not np.array_equal(frames[0], frames[-1])
    assert "XDG_RUNTIME_DIR" not in capfd.readouterr().err


def test_an_environment_is_checked_without_a_word_about_screens(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER")
    pytest.importorskip("pygame", reason="needs pygame, of the video extra")
    assert cli.main(["check-env", "CartPole-v1"]) == 0
    printed = capfd.readouterr()
    assert "videos work" in printed.out
    assert "XDG_RUNTIME_DIR" not in printed.err


def test_an_episode_that_does_not_end_leaves_no_file(tmp_path: Path) -> None:
    env = VideoRecorder(Painted("rgb_array"), VideoRequest(tmp_path / "videos", 1))
    env.reset(seed=0)
    env.step(0)
    env.reset(seed=1)  # given up
    for _ in range(3):
        env.step(0)
    env.close()
    assert names(tmp_path / "videos") == []


def test_an_episode_that_the_evaluation_cuts_has_its_video(tmp_path: Path) -> None:
    algorithm = PPO(lambda: Painted("rgb_array"), num_envs=2)
    algorithm.config.evaluation.max_episode_steps = 4
    request = VideoRequest(tmp_path, 2)
    evaluate(algorithm, episodes=2, video=request)
    assert names(tmp_path) == ["episode_0001.mp4", "episode_0002.mp4"]
    assert len(brightness(tmp_path / "episode_0001.mp4")) == 5
    algorithm.close()


def test_render_shows_every_step_of_the_episodes_on_the_screen(painted: Path) -> None:
    assert cli.main(["eval", str(painted), "--render", "--episodes", "2"]) == 0
    # Environments reset a finished row at once, that of the last episode too.
    assert Painted.shown == [*range(LENGTH + 1), *range(LENGTH + 1), 0]


@pytest.mark.parametrize(
    ("env_id", "flags", "complaint"),
    [
        ("Drawing/Unseen-v0", ["--render"], "cannot render 'human'; it offers: nothing."),
        ("Drawing/Unseen-v0", ["--video", "1"], "cannot render 'rgb_array'; it offers: nothing."),
        ("Drawing/Bare-v0", ["--video", "1"], "'rgb_array': it takes no render_mode."),
        ("Drawing/Blank-v0", ["--video", "1"], "cannot be recorded: its render() returns NoneType"),
    ],
)
def test_an_environment_that_cannot_be_drawn_is_a_clear_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    env_id: str,
    flags: list[str],
    complaint: str,
) -> None:
    run = trained(tmp_path, env_id).run_dir
    assert cli.main(["eval", str(run), *flags]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_callable_must_make_its_environment_ready_to_be_drawn(tmp_path: Path) -> None:
    algorithm = PPO(Painted, num_envs=2, num_steps=32, minibatch_size=32)
    saved = algorithm.save(tmp_path / "saved")
    with pytest.raises(UserError, match="make it with 'rgb_array' to draw it"):
        evaluate_checkpoint(saved, video=1, env=Painted)
    record = evaluate_checkpoint(saved, video=1, env=lambda: Painted("rgb_array"))
    assert names(Path(record["videos"])) == ["episode_0001.mp4"]


def test_a_missing_package_is_named(painted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install \"rl_training\[video\]\""):
        evaluate_checkpoint(painted, video=1)


# ---- in the course of training


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_training_records_an_episode_every_interval_and_changes_nothing(
    tmp_path: Path, vectorization: str
) -> None:
    env = {"vectorization": vectorization, "normalize_observation": True}
    settings: dict[str, Any] = {"total_timesteps": 320, "env": env, "algo": "ppg"}
    plain = trained(tmp_path, **settings)
    tracking = {"tensorboard": False, "video_interval": 100}
    result = trained(tmp_path, **settings, tracking=tracking)
    # Iterations end at 64, 128, 192, 256, 320.
    videos = result.run_dir / "videos"
    expected = [f"step_{step:012d}_0001.mp4" for step in (128, 256, 320)]
    assert names(videos) == expected
    assert len(brightness(videos / expected[0])) == LENGTH + 1
    assert result.digest == plain.digest
    assert not (plain.run_dir / "videos").exists()


def test_a_resumed_run_records_each_moment_once(tmp_path: Path) -> None:
    tracking = {"tensorboard": False, "video_interval": 64}
    result = trained(tmp_path, tracking=tracking)
    assert result.checkpoint_path is not None
    videos = result.run_dir / "videos"
    assert len(names(videos)) == 2
    resume_checkpoint(result.run_dir, total_timesteps=256)
    assert names(videos) == [f"step_{step:012d}_0001.mp4" for step in (64, 128, 192, 256)]


def test_training_that_is_to_be_recorded_and_cannot_be_does_not_begin(tmp_path: Path) -> None:
    tracking = {"tensorboard": False, "video_interval": 64}
    with pytest.raises(UserError, match="cannot render 'rgb_array'"):
        trained(tmp_path, "Drawing/Unseen-v0", tracking=tracking)
    assert not (tmp_path / "runs").exists()


def test_a_recording_that_fails_later_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tracking = {"tensorboard": False, "video_interval": 64}
        result = trained(tmp_path, "Drawing/Breaks-v0", tracking=tracking)
    assert result.status == "finished"
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "no video at step 64",
        "no video at step 128",
    ]
    assert "no space left on device" in caplog.text
    assert names(result.run_dir / "videos") == []


@pytest.mark.parametrize(
    "later",
    [None, [1, 2], np.zeros((65, 97), np.uint8), np.zeros((33, 97, 3), np.uint8)],
    ids=["none", "list", "grey", "another size"],
)
def test_a_picture_that_is_none_costs_the_video_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, later: Any
) -> None:
    monkeypatch.setattr(Fades, "later", later)
    tracking = {"tensorboard": False, "video_interval": 64}
    result = trained(tmp_path, "Drawing/Fades-v0", tracking=tracking)
    assert result.status == "finished"
    assert "no video at step 64" in caplog.text
    assert names(result.run_dir / "videos") == []


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Let the system refuse what is written beyond, as a full disk does, ffmpeg's too."""
    resource = pytest.importorskip("resource", reason="the limit is POSIX's")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("short", [1, 4000])
def test_a_file_that_the_disk_refuses_in_part_is_no_video(
    tmp_path: Path, short: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def episode(directory: Path) -> VideoRecorder:
        env = VideoRecorder(Noisy("rgb_array"), VideoRequest(directory, 1))
        env.reset(seed=0)
        for _ in range(LENGTH):
            env.step(0)
        return env

    episode(tmp_path / "whole").close()
    size = (tmp_path / "whole" / "episode_0001.mp4").stat().st_size
    assert size > 8000
    with no_file_larger_than(size - short), pytest.raises(VideoError) as refused:
        episode(tmp_path / "cut")
    assert str(refused.value).startswith(f"no video can be written in {tmp_path / 'cut'}: ")
    assert re.search("File too large|ffmpeg ended with status -", str(refused.value))
    assert names(tmp_path / "cut") == [], "closing the environment is not needed for that"
    assert capfd.readouterr().err == "", "ffmpeg's own words are in the message"


def test_a_full_disk_costs_the_video_and_is_not_the_environments_fault(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = trained(tmp_path / "whole", "Drawing/Noisy-v0")
    # A process keeps the limit that it began with.
    monkeypatch.setattr(VideoFile, "_start", no_file_larger_than(8000)(VideoFile._start))
    with caplog.at_level(logging.WARNING):
        tracking = {"tensorboard": False, "video_interval": 128}
        result = trained(tmp_path, "Drawing/Noisy-v0", tracking=tracking)
    assert "no video at step 128: no video can be written in" in caplog.text
    assert (result.status, result.digest) == ("finished", whole.digest)
    assert cli.main(["eval", str(result.run_dir), "--video", "1", "--episodes", "1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("rl-training: error: no video can be written in")
    assert told.count("\n") == 1
    assert names(result.run_dir / "videos") == []

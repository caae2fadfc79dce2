"""An environment that raises in the middle of a run: who, when, and what is left."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training import cli
from rl_training.config import config_from_dict
from rl_training.errors import EnvironmentFailedError
from rl_training.workflows import resume_checkpoint, train
from tests.reliability.runs import checkpoints, digest, metrics
from tests.reliability.settings import FRAMES, write_setting


class Failing(gymnasium.Env[Any, Any]):
    """Episodes of 5 to 20 steps; one of them raises at its third step, where ``armed`` exists.
    Tells something else in every ``info``, and is drawn as an image.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, armed: str, seed: int, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.armed, self.seed, self.render_mode = Path(armed), seed, render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.fails = seed == self.seed
        self.steps, self.length = 0, int(self.np_random.integers(5, 21))
        return self._observe(), {"length": self.length}

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.fails and self.steps == 3 and self.armed.exists():
            raise OSError("the simulator is gone")
        told: dict[str, Any] = {f"step_{self.steps}": self.steps, "text": "x" * self.steps}
        if self.steps % 2:
            told["odd"] = np.ones(self.steps)
        return self._observe(), float(action), self.steps >= self.length, False, told

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


gymnasium.register("Reliability/Failing-v0", entry_point=f"{__name__}:Failing")


def config_of(path: Path, vectorization: str, **changes: Any) -> Any:
    from rl_training.envs import episode_seed

    content = {
        "algo": "ppo",
        "env_id": "Reliability/Failing-v0",
        # Of environment 1, the episode that runs in the seventh iteration or so.
        "env_kwargs": {
            "armed": str(path / "armed"),
            "seed": episode_seed(3, 1, 15),
            "render_mode": "rgb_array",
        },
        "seed": 3,
        "num_envs": 4,
        "total_timesteps": 10 * FRAMES,
        "algorithm": {"minibatch_size": 32, "num_steps": 32, "num_epochs": 1},
        "model": {"hidden_sizes": [8]},
        "output_dir": str(path / "runs"),
        "env": {"vectorization": vectorization},
        "checkpoint": {"interval": FRAMES, "keep_last": 20, "keep_best": False},
        "evaluation": {"interval": None, "episodes": 2, "num_envs": 2},
        "tracking": {"tensorboard": False},
        **changes,
    }
    return config_from_dict(content, source="test")


@pytest.fixture(scope="module")
def digest_of_the_whole(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """Return how a run ends where nothing fails."""
    return train(config_of(tmp_path_factory.mktemp("whole"), "sync")).digest


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_run_goes_on_from_before_the_failure(
    vectorization: str, tmp_path: Path, digest_of_the_whole: str | None
) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    with pytest.raises(EnvironmentFailedError) as failure:
        train(config_of(tmp_path, vectorization))
    assert not multiprocessing.active_children(), "workers are closed"
    [run] = (tmp_path / "runs").iterdir()
    latest = max(each for each in (run / "checkpoints").iterdir() if each.is_dir())
    text = str(failure.value)
    assert "environment 1, step 3 of episode 15" in text
    assert "OSError: the simulator is gone" in text
    assert f"the latest checkpoint is still {latest}" in text or latest.name in text
    assert isinstance(failure.value.__cause__, OSError)
    assert json.loads((run / "metadata.json").read_text())["status"] == "failed"

    armed.unlink()
    assert resume_checkpoint(run).digest == digest_of_the_whole


def test_without_a_run_directory_the_error_says_no_more(tmp_path: Path) -> None:
    from rl_training import PPO

    (tmp_path / "armed").touch()
    config = config_of(tmp_path, "sync")
    with pytest.raises(EnvironmentFailedError, match=r"the simulator is gone$"):
        PPO(config=config).learn()


def test_a_failure_in_a_reset_is_named_too(tmp_path: Path) -> None:
    from rl_training import PPO

    class Refusing(Failing):
        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            if seed == self.seed:
                raise OSError("no world")
            return super().reset(seed=seed, options=options)

    config = config_of(tmp_path, "sync")
    algorithm = PPO(lambda: Refusing(**config.env_kwargs), config=config)
    with pytest.raises(EnvironmentFailedError, match=r"step 0 of episode 15 .*world"):
        algorithm.learn()


def test_a_vector_of_one_s_own_that_fails_half_way_is_closed(tmp_path: Path) -> None:
    """Gymnasium cannot join infos that change their shape, and is left waiting for its workers."""
    from rl_training import PPO

    kwargs = config_of(tmp_path, "sync").env_kwargs
    vector: Any = gymnasium.vector.AsyncVectorEnv(
        [lambda: Failing(**kwargs)] * 2,
        autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
        context="fork",
    )
    algorithm = PPO(vector, num_steps=32)
    with pytest.raises(EnvironmentFailedError, match="could not broadcast"):
        algorithm.learn()
    assert vector.closed
    assert not multiprocessing.active_children()


class Wanders(gymnasium.Env[Any, Any]):
    """Changes the process's working directory, as some simulators do: when it is made, and in the
    middle of an episode.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, places: list[str], render_mode: str | None = None) -> None:
        self.render_mode, self.places, self.taken = render_mode, places, 0
        os.chdir(places[0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        if self.taken == 100:
            os.chdir(self.places[1])
        return np.zeros(1, np.float32), 1.0, self.taken % 5 == 0, False, {}

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


gymnasium.register("Reliability/Wanders-v0", entry_point=f"{__name__}:Wanders")


def test_an_environment_that_changes_the_working_directory_moves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs the video extra")
    places = [tmp_path / "made", tmp_path / "stepped"]
    for place in (home := tmp_path / "home", *places):
        place.mkdir()
    monkeypatch.chdir(home)
    content = {
        "algo": "ppo",
        "env_id": "Reliability/Wanders-v0",
        "env_kwargs": {"places": list(map(str, places))},
        "num_envs": 2,
        "total_timesteps": 512,
        "algorithm": {"num_steps": 32, "minibatch_size": 32},
        "checkpoint": {"interval": 64, "keep_last": 99},
        "evaluation": {"interval": 128, "episodes": 2},
        "tracking": {"video_interval": 256},
    }
    config = write_setting(tmp_path / "config.yaml", content)
    assert cli.main(["train", "--config", str(config)]) == 0
    told = capsys.readouterr().out
    assert Path.cwd() in places
    os.chdir(home)
    [run] = Path("runs").iterdir()
    assert f"  run         {run}\n" in told
    steps = list(range(64, 513, 64))
    assert [path.name for path in checkpoints(run)] == [f"step_{step:012d}" for step in steps]
    assert [line["step"] for line in metrics(run)] == steps
    assert len(list((run / "videos").iterdir())) == 2
    whole = digest(run)
    assert cli.main(["resume", str(checkpoints(run)[1])]) == 0
    assert Path.cwd() in places
    os.chdir(home)
    assert digest(run) == whole
    assert cli.main(["eval", str(run), "--video", "1", "--episodes", "1"]) == 0
    os.chdir(home)
    assert len(list((run / "videos").iterdir())) == 3
    assert [list(place.iterdir()) for place in places] == [[], []]

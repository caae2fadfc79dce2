"""An exported policy on raw observations is `predict`."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.cli import main
from rl_training.errors import UserError
from rl_training.experiments.export import _ToEnvironment, export_policy, to_onnx
from rl_training.registry import ACTION_SPACES, algorithm_class
from rl_training.workflows import load_algorithm, predict_checkpoint
from tests.recipes.image_environments import Catch
from tests.recipes.masked_environments import Masked, draw_mask
from tests.recipes.runs import make
from tests.recipes.spaces import ACTIONS, OBSERVATIONS, Anything

SMALL: dict[str, Any] = {"num_envs": 2, "tensorboard": False, "evaluation.final": False}
ON_POLICY = {**SMALL, "num_steps": 32, "minibatch_size": 32, "normalize_observation": True}
REPLAY = {**SMALL, "warm_up": 32, "replay_capacity": 1000, "hidden_sizes": [16]}
SETTINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "Pendulum-v1", ON_POLICY),
    ("dqn", "CartPole-v1", {**REPLAY, "dueling": True}),
    ("td3", "Pendulum-v1", REPLAY),
    ("sac", "CartPole-v1", REPLAY),
    ("sac", "Pendulum-v1", REPLAY),
    ("ppg", "CartPole-v1", ON_POLICY),
]


def trained(algo: str, env_id: str, settings: dict[str, Any], output: Path) -> Path:
    algorithm = algorithm_class(algo)(env_id, output_dir=str(output), seed=3, **settings)
    algorithm.learn(128).close()
    [run] = output.iterdir()
    return run


def observations(run: Path, count: int) -> Any:
    algorithm, _ = load_algorithm(run)
    shape = algorithm.observation_space.shape
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


def session(path: Path) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    return runtime.InferenceSession(str(path))


@pytest.mark.parametrize(
    ("algo", "env_id", "settings"),
    [SETTINGS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in SETTINGS[1:])],
)
def test_onnx_gives_the_actions_of_predict(
    algo: str, env_id: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    run = trained(algo, env_id, settings, tmp_path / "runs")
    path = export_policy(run, tmp_path / "there" / "policy.onnx", format="onnx")
    model = session(path)
    for count in (1, 7):
        given = observations(run, count) * 3
        [action] = model.run(None, {"observation": given})
        expected = predict_checkpoint(run, given)
        assert action.dtype == expected.dtype and action.shape == expected.shape
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
    assert model.get_modelmeta().custom_metadata_map["env_id"] == env_id


@pytest.mark.slow
def test_onnx_takes_any_number_of_images(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    options: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "minibatch_size": 16}
    algorithm: Any = algorithm_class("ppo")(Catch, precision="bfloat16", **options)
    algorithm.learn(32)
    to_onnx(algorithm).save(str(tmp_path / "policy.onnx"))
    model = session(tmp_path / "policy.onnx")
    given = np.random.default_rng(0).integers(256, size=(37, 1, 12, 12), dtype=np.uint8)
    for count in (1, 37):
        [action] = model.run(None, {"observation": given[:count]})
        expected, _ = algorithm.predict(given[:count])
        # bfloat16 may choose otherwise where two are all but alike.
        assert (action == expected).mean() > 0.9


@pytest.mark.parametrize(
    ("algo", "kind"),
    [("dqn", "Discrete"), pytest.param("ppo", "MultiDiscrete", marks=pytest.mark.slow)],
)
def test_onnx_takes_the_best_legal_action(algo: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    options = {**SMALL, **(REPLAY if algo == "dqn" else {"num_steps": 32})}
    options = {key: each for key, each in options.items() if "." not in key}
    algorithm: Any = algorithm_class(algo)(
        lambda: Masked("info", kind), action_masks="info", **options
    )
    algorithm.learn(64)
    to_onnx(algorithm).save(str(tmp_path / "policy.onnx"))
    model = session(tmp_path / "policy.onnx")
    draws = np.random.default_rng(0)
    masks = np.stack([draw_mask(draws, kind) for _ in range(30)])
    place = draws.uniform(-1, 1, (30, 2)).astype(np.float32)
    first, last = model.get_modelmeta().custom_metadata_map["action_mask_columns"].split(":")
    assert (int(first), int(last)) == (0, masks.shape[1])
    [action] = model.run(None, {"observation": np.hstack([masks, place], dtype=np.float32)})
    expected, _ = algorithm.predict(place, action_masks=masks)
    np.testing.assert_array_equal(action, expected)
    assert action.dtype == expected.dtype
    algorithm.close()


@pytest.mark.slow
def test_onnx_with_memory_gives_the_actions_of_predict(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    settings = {**ON_POLICY, "previous_action": True}
    run = trained("recurrent_ppo", "Pendulum-v1", settings, tmp_path / "runs")
    model = session(export_policy(run, tmp_path / "policy.onnx", format="onnx"))
    algorithm: Any = load_algorithm(run)[0]
    state: Any = None
    carried = {k: np.full(v.shape, 7, np.float32) for k, v in _initial(algorithm, 4).items()}
    for step in range(4):
        given = observations(run, 4) * (step + 1)
        starts = np.asarray([step == 0] * 3 + [step in (0, 2)])
        expected, state = algorithm.predict(given, state=state, episode_start=starts)
        action, *after = model.run(None, {"observation": given, "episode_start": starts, **carried})
        carried = dict(zip(carried, after, strict=True))
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
    for key, value in state.items():
        np.testing.assert_allclose(carried[key], value, rtol=1e-4, atol=1e-5)


def _initial(algorithm: Any, count: int) -> Any:
    return algorithm.modules["model"].initial_carried(count)


def test_safetensors_is_a_policy_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("ppo", "Pendulum-v1", ON_POLICY, tmp_path / "runs")
    target = tmp_path / "policy"
    assert main(["export", str(run), "--format", "safetensors", "--output", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    given = observations(run, 5)
    np.testing.assert_array_equal(predict_checkpoint(target, given), predict_checkpoint(run, given))
    assert main(["export", str(run), "--format", "safetensors", "--output", str(target)]) == 2
    assert f"{target} exists already" in capsys.readouterr().err


def test_without_an_output_the_policy_goes_into_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained("ppo", "Pendulum-v1", ON_POLICY, tmp_path / "runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["export", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'policy'}\n"
    given = observations(run, 5)
    exported = predict_checkpoint(run / "policy", given)
    np.testing.assert_array_equal(exported, predict_checkpoint(run, given))
    assert main(["export", str(run)]) == 2
    assert "exists already: give another --output" in capsys.readouterr().err
    [checkpoint] = (run / "checkpoints").glob("step_*")
    own = run / f"{checkpoint.name}_policy"  # one checkpoint's is not taken for the run's
    for path in (checkpoint / "policy", checkpoint, run / "checkpoints" / "latest"):
        assert main(["export", str(path)]) == 0
        assert capsys.readouterr().out == f"{own}\n"
        shutil.rmtree(own)
    (run / "policy").rename(tmp_path / "lone")
    (run / "checkpoints" / "best").write_text(checkpoint.name, encoding="utf-8")
    assert main(["export", str(run), "--best"]) == 0
    assert capsys.readouterr().out == f"{own}\n"
    assert main(["export", str(tmp_path / "lone")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'lone_policy'}\n"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_a_run_that_is_only_to_be_read_is_refused_with_what_helps(
    format: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = trained("ppo", "Pendulum-v1", ON_POLICY, tmp_path / "runs")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    class Program:
        save = refuse

    monkeypatch.setattr("rl_training.runtime.checkpoint.temporary_directory", refuse)
    monkeypatch.setattr("rl_training.experiments.export._require_onnx", lambda: None)
    monkeypatch.setattr("rl_training.experiments.export.to_onnx", lambda _: Program())
    assert main(["export", str(run), "--format", format]) == 2
    err = capsys.readouterr().err
    assert str(run / "policy") in err and "Read-only file system" in err
    assert err.endswith(". --output PATH writes it elsewhere.\n")


def test_without_the_extra_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    assert main(["export", str(tmp_path), "--format", "onnx"]) == 2
    assert 'pip install "rl_training[export]"' in capsys.readouterr().err


@pytest.mark.parametrize("kind", [kind for kind in ACTIONS if kind not in ("Dict", "Tuple")])
@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_exported_actions_are_converted_as_predicted_ones(name: str, kind: str) -> None:
    if kind not in ACTION_SPACES[name]:
        return
    algorithm = make(name, lambda: Anything(OBSERVATIONS["Box"], ACTIONS[kind]))
    shape = algorithm.environment.action_map.shape
    action = torch.linspace(-3, 3, 40).reshape(-1, *[1] * len(shape)).expand(40, *shape)
    if kind in ("Discrete", "MultiDiscrete", "MultiBinary"):
        action = torch.zeros(4, *shape, dtype=torch.int64)
    converted = _ToEnvironment(algorithm)(action).numpy()
    expected = algorithm._action_map.to_env(action.numpy())
    np.testing.assert_allclose(converted, expected, rtol=1e-12)
    assert converted.dtype == expected.dtype
    algorithm.close()


def test_actions_with_parts_are_not_exported() -> None:
    algorithm = make("ppo", lambda: Anything(OBSERVATIONS["Box"], ACTIONS["Tuple"]))
    with pytest.raises(UserError, match="ONNX has no actions with parts"):
        _ToEnvironment(algorithm)
    algorithm.close()

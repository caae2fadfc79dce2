from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import registry
from rl_training.config import (
    ModelConfig,
    TrainConfig,
    config_from_dict,
    config_hash,
    config_to_dict,
    dump_yaml,
    load_config,
    replace_config,
    validate,
)
from rl_training.errors import UserError
from tests import stand_in

MINIMAL = "algo: ppo\nenv_id: CartPole-v1\nseed: 1\n"


@pytest.fixture(autouse=True, scope="module")
def _stand_in_algorithms() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name, place in stand_in.ALGORITHMS.items():
            patch.setitem(registry.ALGORITHMS, name, place)
        yield


def write(directory: Path, text: str, name: str = "config.yaml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def make(**data: Any) -> TrainConfig:
    return config_from_dict({"algo": "ppo", "env_id": "CartPole-v1"} | data, source="test.yaml")


def refusal(**data: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(**data)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- what a file may hold


def test_three_lines_are_a_complete_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL))
    assert config == TrainConfig(algo="ppo", env_id="CartPole-v1", seed=1)
    assert config.total_timesteps == 100_000
    assert config.algorithm == stand_in.PPOConfig()
    assert config.model.hidden_sizes == [64, 64]


def test_the_group_of_the_algorithm_is_its_own_dataclass() -> None:
    assert isinstance(make(algorithm={"num_epochs": 2}).algorithm, stand_in.PPOConfig)
    assert isinstance(make(algo="ppg").algorithm, stand_in.PPGConfig)


def test_exponents_without_a_point_are_numbers(tmp_path: Path) -> None:
    text = f"{MINIMAL}total_timesteps: 1e6\nalgorithm: {{learning_rate: 3e-4, target_kl: '2e-2'}}\n"
    config = load_config(write(tmp_path, text))
    assert config.algorithm.learning_rate == 3e-4
    assert config.algorithm.target_kl == 0.02
    assert config.total_timesteps == 1_000_000
    assert type(config.total_timesteps) is int


def test_whole_numbers_become_floats_where_floats_are_meant() -> None:
    rate = make(algorithm={"learning_rate": 1}).algorithm.learning_rate
    assert rate == 1.0
    assert type(rate) is float


def test_off_is_a_word_and_not_false(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, f"{MINIMAL}tracking: {{wandb: off}}\ntags: [no, 2026-01-02]")
    )
    assert config.tracking.wandb == "off"
    assert config.tags == ["no", "2026-01-02"]


def test_a_union_takes_each_of_its_types() -> None:
    assert make(algorithm={"temperature": 0.5}).algorithm.temperature == 0.5
    assert make(algorithm={"temperature": "auto"}).algorithm.temperature == "auto"
    assert make(algorithm={"betas": [0.5, "9e-1"]}).algorithm.betas == (0.5, 0.9)
    assert make(algorithm={"weights": {"a": 1}}).algorithm.weights == {"a": 1.0}


def test_a_section_without_lines_keeps_the_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, f"{MINIMAL}model:\n  # hidden_sizes: [8]\nenv_kwargs:\n"))
    assert config.model == ModelConfig()
    assert config.env_kwargs == {}


def test_values_from_python_may_be_paths_and_numpy_numbers(tmp_path: Path) -> None:
    config = make(
        output_dir=tmp_path, seed=np.int64(3), algorithm={"learning_rate": np.float32(0.5)}
    )
    assert (config.output_dir, config.seed) == (str(tmp_path), 3)
    assert type(config.seed) is int
    assert config.algorithm.learning_rate == 0.5


# ---- what is refused


@pytest.mark.parametrize(
    ("data", "key", "suggestion"),
    [
        ({"total_timestep": 1}, "'total_timestep'", "'total_timesteps'"),
        ({"learning_rate": 1e-3}, "'learning_rate'", "'algorithm.learning_rate'"),
        ({"algorithm": {"num_epoch": 1}}, "'algorithm.num_epoch'", "'algorithm.num_epochs'"),
        ({"model": {"num_epochs": 1}}, "'model.num_epochs'", "'algorithm.num_epochs'"),
        ({"evaluation": {"episode": 1}}, "'evaluation.episode'", "'evaluation.episodes'"),
        ({"zzzzzz": 1}, "'zzzzzz'", "env_id"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(
    data: dict[str, Any], key: str, suggestion: str
) -> None:
    message = refusal(**data)
    assert message.startswith("test.yaml: unknown key ")
    assert key in message
    assert suggestion in message.partition(key)[2]


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"num_envs": True}, "num_envs"),
        ({"num_envs": 2.5}, "num_envs"),
        ({"num_envs": "eight"}, "num_envs"),
        ({"num_envs": None}, "num_envs"),
        ({"num_envs": [8]}, "num_envs"),
        ({"compile": 1}, "compile"),
        ({"compile": "yes"}, "compile"),
        ({"env_id": 3}, "env_id"),
        ({"tags": "fast"}, "tags"),
        ({"tags": [1]}, "tags[0]"),
        ({"env_kwargs": [1]}, "env_kwargs"),
        ({"env_kwargs": {1: 2}}, "env_kwargs"),
        ({"env_kwargs": {"f": object()}}, "env_kwargs.f"),
        ({"model": 3}, "model"),
        ({"model": {"hidden_sizes": 64}}, "model.hidden_sizes"),
        ({"model": {"hidden_sizes": [64, "x"]}}, "model.hidden_sizes[1]"),
        ({"model": {"activation": "tahn"}}, "model.activation"),
        ({"algorithm": {"learning_rate": True}}, "algorithm.learning_rate"),
        ({"algorithm": {"learning_rate": "fast"}}, "algorithm.learning_rate"),
        ({"algorithm": {"learning_rate": math.nan}}, "algorithm.learning_rate"),
        ({"algorithm": {"learning_rate": math.inf}}, "algorithm.learning_rate"),
        ({"algorithm": {"target_kl": "none"}}, "algorithm.target_kl"),
        ({"algorithm": {"temperature": "hot"}}, "algorithm.temperature"),
        ({"algorithm": {"betas": [1.0]}}, "algorithm.betas"),
        ({"algorithm": {"weights": {"a": "b"}}}, "algorithm.weights.a"),
        ({"seed": "__import__('os')"}, "seed"),
    ],
)
def test_a_wrong_type_is_refused_by_key(data: dict[str, Any], key: str) -> None:
    assert refusal(**data).startswith(f"test.yaml: {key}: expected ")


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"seed": -1}, "seed"),
        ({"total_timesteps": 0}, "total_timesteps"),
        ({"num_envs": -2}, "num_envs"),
        ({"torch_threads": 0}, "torch_threads"),
        ({"env_id": " "}, "env_id"),
        ({"model": {"hidden_sizes": [64, 0]}}, "model.hidden_sizes[1]"),
        ({"model": {"encoder": "mpl"}}, "model.encoder"),
        ({"model": {"network": "mine"}}, "model.network"),
        ({"env": {"clip_observation": 0}}, "env.clip_observation"),
        ({"env": {"clip_reward": -1}}, "env.clip_reward"),
        ({"evaluation": {"interval": 0}}, "evaluation.interval"),
        ({"evaluation": {"episodes": 0}}, "evaluation.episodes"),
        ({"evaluation": {"patience": 2}}, "evaluation.patience"),
        ({"evaluation": {"stop_on_return": 2}}, "evaluation.stop_on_return"),
        ({"checkpoint": {"keep_last": 0}}, "checkpoint.keep_last"),
        ({"checkpoint": {"interval": -5}}, "checkpoint.interval"),
        ({"tracking": {"log_interval": 0}}, "tracking.log_interval"),
        ({"tracking": {"video_interval": 0}}, "tracking.video_interval"),
    ],
)
def test_an_impossible_value_is_refused_by_key(data: dict[str, Any], key: str) -> None:
    assert refusal(**data).startswith(f"test.yaml: {key}")


def test_the_algorithm_refuses_what_does_not_fit_together() -> None:
    message = refusal(num_envs=1, algorithm={"num_steps": 8})
    assert message == "test.yaml: minibatch_size 64 is above the batch of 8."


def test_an_unknown_algorithm_is_refused_with_the_nearest() -> None:
    assert "Did you mean 'ppo'?" in refusal(algo="ppoo")
    assert refusal(algo=3).startswith("test.yaml: algo: ")


@pytest.mark.parametrize("missing", ["algo", "env_id"])
def test_a_missing_key_is_named(missing: str) -> None:
    data = {"algo": "ppo", "env_id": "CartPole-v1"}
    del data[missing]
    with pytest.raises(UserError, match=f"^here: missing key '{missing}'"):
        config_from_dict(data, source="here")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("algo: [", "line 1, column 8"),
        ("- algo\n", "expected keys and values"),
        ("algo: ppo\nalgo: ppg\n", "line 2, column 1: key 'algo' is given twice"),
        ("a: &x [1]\nb: *x\n", "anchors and aliases are not supported"),
        ("algo: !!python/object/apply:os.getcwd []", "python/object/apply"),
        ("", "missing key 'algo'"),
    ],
)
def test_a_file_that_is_not_plain_yaml_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read"):
        load_config(path)


def test_validate_refuses_wrong_types_set_from_python() -> None:
    config = make()
    config.num_envs = "8 or 9"  # type: ignore[assignment]
    with pytest.raises(UserError, match="num_envs: expected a whole number"):
        validate(config)


# ---- overlays


def test_later_files_override_earlier_ones_key_by_key(tmp_path: Path) -> None:
    base = write(
        tmp_path,
        f"{MINIMAL}algorithm: {{num_epochs: 9, num_steps: 99}}\nenv_kwargs: {{a: {{b: 1, c: 2}}}}",
    )
    tiny = write(
        tmp_path, "algorithm: {num_steps: 16}\nenv_kwargs: {a: {b: 3}}\ntags: [x]", "tiny.yaml"
    )
    config = load_config([base, tiny], {"algorithm": {"num_steps": 17}})
    assert (config.algorithm.num_epochs, config.algorithm.num_steps) == (9, 17)
    assert config.env_kwargs == {"a": {"b": 3, "c": 2}}
    assert config.tags == ["x"]


def test_an_error_names_the_file_that_set_the_key(tmp_path: Path) -> None:
    base = write(tmp_path, f"{MINIMAL}num_envs: 0\nmodel: {{hidden_sizes: [1, 2]}}", "base.yaml")
    overlay = write(tmp_path, "model: {hidden_sizes: [0]}", "overlay.yaml")
    with pytest.raises(UserError) as caught:
        load_config([base, overlay])
    assert str(caught.value) == f"{base}: num_envs must be at least 1, not 0."
    with pytest.raises(UserError) as caught:
        load_config([base, overlay], {"num_envs": 2})
    assert str(caught.value) == f"{overlay}: model.hidden_sizes[0] must be at least 1, not 0."
    with pytest.raises(
        UserError, match=r"^overrides: unknown key 'num_env'\. Did you mean 'num_envs'"
    ):
        load_config(base, {"num_env": 2})


# ---- back to plain data


def test_dumped_yaml_reads_back_equal(tmp_path: Path) -> None:
    config = make(
        tags=["off", "3e-4", "1:30", "010", "2026-01-02", "é\n\t", ""],
        env_kwargs={"yes": None, "a": [1, 1.0, 1e-7, 1e300, True, "null"], "b": {}},
        algorithm={"learning_rate": 1e-5, "betas": (0.1, 0.2)},
    )
    again = load_config(write(tmp_path, dump_yaml(config)))
    assert again == config
    assert config_hash(again) == config_hash(config)
    assert config_to_dict(again) == config_to_dict(config)


def test_the_hash_ignores_order_and_sees_every_value() -> None:
    first = make(env_kwargs={"a": 1, "b": 2})
    assert config_hash(first) == config_hash(make(env_kwargs={"b": 2, "a": 1}))
    assert config_hash(first) != config_hash(make(env_kwargs={"a": 1, "b": 3}))
    assert config_hash(first) != config_hash(replace_config(first, num_epochs=5))


# ---- changes from Python


def test_replace_finds_a_field_in_the_groups_and_leaves_the_original() -> None:
    config = make(env_kwargs={"a": 1})
    changed = replace_config(
        config, num_steps=64, total_timesteps="2e5", hidden_sizes=[8], env_kwargs={"b": 2}
    )
    assert changed.algorithm.num_steps == 64
    assert changed.total_timesteps == 200_000
    assert changed.model.hidden_sizes == [8]
    assert changed.env_kwargs == {"b": 2}
    assert config == make(env_kwargs={"a": 1})
    assert changed.model is not config.model


def test_replace_takes_dotted_names_and_groups() -> None:
    config = make(evaluation={"episodes": 3})
    changed = replace_config(
        config, **{"evaluation.seed": 5, "seed": 6, "evaluation": {"interval": 7}}
    )
    assert (changed.seed, changed.evaluation.seed) == (6, 5)
    assert (changed.evaluation.episodes, changed.evaluation.interval) == (3, 7)
    assert replace_config(config, model=ModelConfig(hidden_sizes=[5])).model.hidden_sizes == [5]


def test_replace_of_the_algorithm_starts_from_its_defaults() -> None:
    changed = replace_config(make(algorithm={"num_steps": 64}), algo="ppg", policy_iterations=2)
    assert changed.algorithm == stand_in.PPGConfig(policy_iterations=2)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_step": 3}, "unknown key 'num_step'. Did you mean 'num_steps'?"),
        ({"policy_iterations": 3}, "unknown key 'policy_iterations'"),
        ({"num_steps": "x"}, "algorithm.num_steps: expected a whole number, not 'x'."),
        ({"num_envs": 0}, "num_envs must be at least 1"),
        ({"num_envs": 1, "num_steps": 1}, "minibatch_size 64 is above the batch of 1"),
        ({"model": 3}, "model: expected a group of keys, not 3."),
    ],
)
def test_replace_refuses_as_strictly_as_a_file(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        replace_config(make(), **changes)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seed": 10**400}, "seed: expected a whole number below 2**63, not 1000"),
        ({"env": {"clip_reward": 10**400}}, "env.clip_reward: expected a finite number, not 1000"),
        ({"env": {"clip_reward": 10**5000}}, "env.clip_reward: expected a finite number"),
        ({"env": {"clip_reward": 1e308}}, "env.clip_reward: expected a number that float32"),
        ({"env": {"clip_reward": 1e9}}, "env.clip_reward must be above 0 and at most 1,000,000"),
        ({"env_kwargs": {"a": 10**400}}, "env_kwargs.a: expected a finite number"),
        ({"output_dir": "a\0b"}, "output_dir: expected text without a null character"),
        ({"num_envs": 10**19}, "num_envs: expected a whole number below 2**63"),
        ({"num_envs": 10**9}, "num_envs must be at most 65,536, not 1000000000."),
        ({"torch_threads": 10**6}, "torch_threads must be at most 1,024"),
        ({"evaluation": {"num_envs": 10**9}}, "evaluation.num_envs must be at most 65,536"),
        ({"model": {"hidden_sizes": ["1e11"]}}, "model.hidden_sizes[0] must be at most 65,536"),
        ({"model": {"hidden_sizes": [1] * 1001}}, "model.hidden_sizes must be at most 1000 layers"),
    ],
)
def test_absurd_numbers_are_refused_in_one_line(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        make(**changes)
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 300


def test_configs_import_no_torch() -> None:
    code = (
        "import sys, rl_training.config, rl_training.registry, rl_training.cli.flags\n"
        "assert not {'torch', 'gymnasium', 'tensordict'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

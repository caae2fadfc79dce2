from __future__ import annotations

import os
import signal
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rl_training.envs import as_vector, episode_seed, make_batched_env, make_env, make_vector_env
from rl_training.envs.acceptance import require_usable_vector
from rl_training.errors import UserError
from tests.envs.scripted import Continuous, Counter, collect, generator, make_config, make_vector


def test_an_environment_is_built_as_the_config_says() -> None:
    config = make_config("Pendulum-v1")
    config.env_kwargs = {"g": 3.5}
    environment = make_env(config, 0)
    assert environment.unwrapped.g == 3.5  # type: ignore[attr-defined]
    names = str(environment)
    assert "RecordEpisodeStatistics" in names
    assert "RecordEpisodeStatistics" not in str(
        make_env(config, 0, record_episode_statistics=False)
    )


def test_statistics_are_reported_at_an_episodes_end() -> None:
    environment = make_env(make_config(), 0)
    environment.reset()
    ended, steps = False, 0
    while not ended:
        _, _, terminated, truncated, info = environment.step(0)
        ended, steps = terminated or truncated, steps + 1
    assert info["episode"]["l"] == steps


def test_an_unseeded_reset_takes_the_next_episodes_seed() -> None:
    environment = make_env(make_config(seed=4), 2)
    direct = gymnasium.make("CartPole-v1")
    for episode in range(3):
        expected, _ = direct.reset(seed=episode_seed(4, 2, episode))
        assert environment.reset()[0].tolist() == expected.tolist()


def test_a_reset_seeds_the_action_space() -> None:
    environment = make_env(make_config("Pendulum-v1"), 0)
    drawn = []
    for _ in range(2):
        environment.reset(seed=7)
        drawn.append(environment.action_space.sample().tolist())
        environment.action_space.sample()
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("kind", "vectorization"), [(SyncVectorEnv, "sync"), (AsyncVectorEnv, "async")]
)
def test_vectors_never_reset_on_their_own(kind: Any, vectorization: str) -> None:
    vector = make_vector_env(make_config(vectorization=vectorization), 2)
    assert type(vector) is kind
    assert vector.num_envs == 2
    assert vector.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    vector.close()
    assert make_vector_env(make_config(num_envs=3)).num_envs == 3


def test_a_package_is_imported_for_its_environments(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "toy_arena.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Arena-v0', "
        "entry_point='tests.envs.scripted:Counter', kwargs={'start': 2})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    environment = make_env(make_config("toy_arena:Arena-v0"), 0)
    assert environment.action_space.start == 2  # type: ignore[attr-defined]
    gymnasium.registry.pop("Arena-v0")


@pytest.mark.parametrize(
    ("env_id", "told"),
    [
        ("CartPol-v1", "unknown environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        ("CartPole-v9", "unknown environment 'CartPole-v9'. Did you mean 'CartPole-v"),
        ("no_such_package:Env-v0", "there is no module 'no_such_package'"),
        ("not an id", "unknown environment 'not an id'"),
        ("Nowhere/Thing-v0", "unknown environment 'Nowhere/Thing-v0'"),
        ("MlpPolicy", "The environment comes first, and there is no name of a policy"),
    ],
)
def test_an_unknown_id_is_told_with_the_nearest(env_id: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        make_env(make_config(env_id), 0)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_package_that_breaks_while_importing_shows_its_own_error(
    tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "broken_arena.py").write_text("import a_package_it_lacks\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_it_lacks"):
        make_env(make_config("broken_arena:Arena-v0"), 0)


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: Any, env_id: str, package: str, extra: str) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    for module in [
        name
        for name in sys.modules
        if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf'pip install "rl_training\[{extra}\]"'):
        make_env(make_config(env_id), 0)


def test_wrong_env_kwargs_are_named() -> None:
    config = make_config()
    config.env_kwargs = {"gravity_of_mars": True}
    with pytest.raises(UserError, match="gravity_of_mars"):
        make_env(config, 0)


@pytest.mark.filterwarnings("ignore")
def test_a_render_mode_that_is_not_offered_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot render 'hologram'; it offers: .*rgb_array"):
        make_env(make_config(), 0, render_mode="hologram")


def test_everything_a_user_passes_becomes_rows() -> None:
    config = make_config(num_envs=3)
    assert as_vector(None, config).num_envs == 3
    assert as_vector("Pendulum-v1", config).single_action_space.shape == (1,)
    assert as_vector(Counter, config, num_envs=2).num_envs == 2
    assert as_vector(Counter(), config).num_envs == 1
    vector = SyncVectorEnv([Counter] * 5, autoreset_mode=AutoresetMode.DISABLED)
    assert as_vector(vector, config) is vector


def test_an_instance_is_stepped_itself() -> None:
    instance = Counter()
    environment = make_vector(instance)
    root = environment.reset()
    environment.step_and_maybe_reset(root.set("action", torch.tensor([1])))
    assert instance.received == [1]


@pytest.mark.parametrize(
    ("env", "have"),
    [(Counter(), 1), (SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.DISABLED), 2)],
)
def test_another_number_of_environments_is_refused(env: Any, have: int) -> None:
    with pytest.raises(UserError, match=f"num_envs is 4, and .* has {have}"):
        make_batched_env(make_config(), env, num_envs=4)


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_environment_is_refused(count: int) -> None:
    with pytest.raises(UserError, match="at least 1"):
        make_vector_env(make_config(), count)


@pytest.mark.parametrize(
    ("env", "told"), [(42, "42 is not an environment"), (lambda: 42, "42 is not a gymnasium")]
)
def test_what_is_no_environment_is_refused(env: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_vector(env)


def test_an_environment_that_resets_itself_is_refused() -> None:
    wrapped = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.Autoreset(Counter()), 5)
    for env in (wrapped, lambda: wrapped):
        with pytest.raises(UserError, match="Autoreset"):
            make_vector(env)


def test_same_step_vectors_are_refused_with_the_remedy() -> None:
    vector = SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(UserError, match=r"SyncVectorEnv.*SAME_STEP.*AutoresetMode\.DISABLED"):
        make_vector(vector)


def test_a_vector_whose_masked_reset_reaches_other_rows_is_refused() -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
    with pytest.raises(UserError) as refused:
        require_usable_vector(vector)
    message = str(refused.value)
    assert message.startswith("CartPoleVectorEnv ")
    # Its constructor takes no autoreset_mode, so that is no advice.
    assert "autoreset_mode=" not in message
    assert "give the id 'CartPole-v1' and num_envs=2 instead" in message
    assert "options={'reset_mask': ...}" in message


def test_the_advice_for_a_vector_of_environments_is_right() -> None:
    with pytest.raises(UserError, match=r"gymnasium\.make_vec: in vector_kwargs"):
        require_usable_vector(
            gymnasium.make_vec(
                "CartPole-v1",
                num_envs=2,
                vectorization_mode="sync",
                vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            )
        )
    require_usable_vector(
        gymnasium.make_vec(
            "CartPole-v1",
            num_envs=2,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
        )
    )


def test_next_step_workers_without_shared_memory_are_refused() -> None:
    vector = AsyncVectorEnv([Counter] * 2, shared_memory=False, context="fork")
    with pytest.raises(UserError, match=r"AsyncVectorEnv.*DISABLED"):
        require_usable_vector(vector)
    vector.close()


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_accepted_vectors_give_no_ghost_step(kind: str, mode: AutoresetMode) -> None:
    makers: list[Any] = [Counter] * 2
    vector: Any = SyncVectorEnv(makers, autoreset_mode=mode)
    if kind == "async":
        vector = AsyncVectorEnv(makers, autoreset_mode=mode, context="fork")
    environment = make_batched_env(make_config(), vector)
    root = environment.reset()
    for _ in range(40):
        root["action"] = torch.ones(2, dtype=torch.int64)
        now = root["observation"].clone()
        transition, root = environment.step_and_maybe_reset(root)
        assert torch.equal(transition["next", "observation"], now + 1)
        done = transition["next", "done"].squeeze(-1)
        assert torch.equal(root["observation"][~done], (now + 1)[~done])
        assert bool((root["observation"][done][:, 1] == 0).all())
    environment.close()


def test_a_vector_that_reuses_its_arrays_gives_the_same_batch() -> None:
    class Reusing(SyncVectorEnv):
        """Not the class itself, so that it is stepped as a whole."""

    makers: list[Any] = [Counter] * 3
    vector = Reusing(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
    batches = [
        collect(environment, 40, generator())
        for environment in (make_batched_env(make_config(), vector), make_vector(Counter))
    ]
    assert (batches[0] == batches[1]).all()


def test_spaces_that_are_not_supported_are_named_with_the_environment() -> None:
    class Tuples(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Tuple([spaces.Text(3)])

    with pytest.raises(UserError, match=r"Tuples: action space Text.* part \[0\]"):
        make_vector(Tuples)


def test_squashing_needs_finite_bounds() -> None:
    def unbounded() -> Any:
        return Continuous(low=(0.0,), high=(np.inf,))

    with pytest.raises(UserError, match="finite bounds"):
        make_batched_env(make_config(), unbounded, squash_actions=True)
    environment = make_batched_env(make_config(num_envs=1), Continuous, squash_actions=True)
    root = environment.reset()
    transition, _ = environment.step_and_maybe_reset(root.set("action", torch.zeros(1, 2)))
    assert transition["next", "observation"].tolist() == [[0.5, 2.25]]


def test_workers_leave_signals_to_the_parent() -> None:
    environment = make_vector(Counter, num_envs=2, vectorization="async")
    for process in environment.vector.processes:
        os.kill(process.pid, signal.SIGINT)
    assert bool(environment.reset()["is_init"].all())
    environment.close()

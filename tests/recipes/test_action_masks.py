"""Masks of legal actions: in rollout, update, evaluation, predict and resume; or refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from rl_training import PPO
from rl_training.envs import episode_seed
from rl_training.errors import UserError
from rl_training.registry import ACTION_MASKS, ACTION_SPACES, ALGORITHMS, algorithm_class
from rl_training.runtime.state import digest
from tests.recipes.masked_environments import (
    IMAGE_SHAPE,
    MASKED_ACTIONS,
    SOURCES,
    Masked,
    all_legal,
    draw_mask,
    legal,
    start_of,
)
from tests.recipes.runs import CELL, make

COUNT = 5
SHORT: dict[str, Any] = {"num_envs": 2, "hidden_sizes": [16]}
IMAGE: dict[str, Any] = {"image": True, "feature_size": 8}
CELLS = [(name, kind) for name, kinds in ACTION_MASKS.items() for kind in kinds]
REFUSED = [
    (name, kind)
    for name in ALGORITHMS
    for kind in MASKED_ACTIONS
    if kind in ACTION_SPACES[name] and (name, kind) not in CELLS
]


def build(
    name: str = "ppo",
    source: str = "info",
    kind: str = "Discrete",
    *,
    image: bool = False,
    **options: Any,
) -> Any:
    maker = lambda: Masked(source, kind, image=image)  # noqa: E731  each environment a new one
    return make(name, maker, action_masks=source, **{**SHORT, **options})


def given(
    source: str, count: int = 1, kind: str = "Discrete", *, image: bool = False
) -> tuple[Any, Any, Any]:
    """Return an observation batch, masks beside it (None where they are in it) and the masks."""
    draws = np.random.default_rng(3)
    mask = np.stack([draw_mask(draws, kind) for _ in range(count)])
    place: Any = draws.uniform(-1, 1, (count, 2))
    if image:
        place = draws.integers(256, size=(count, *IMAGE_SHAPE), dtype=np.uint8)
    if source == "observation":
        return {"place": place, "action_mask": mask}, None, mask
    return place, mask, mask


def check_cell(
    name: str, source: str, kind: str, path: Path, *, image: bool = False, **options: Any
) -> Any:
    """Train, save, load, predict alike, evaluate alike and go on alike, all by legal actions: the
    environment insists.
    """
    sizes = {**CELL[name], **options}
    algorithm = build(name, source, kind, image=image, **sizes).learn(32)
    algorithm.save(path / "saved")
    loaded = algorithm_class(name).load(path / "saved")
    loaded._source = algorithm._source
    observation, beside, mask = given(source, 100, kind, image=image)
    for deterministic in (True, False):
        action, _ = algorithm.predict(observation, action_masks=beside, deterministic=deterministic)
        assert all_legal(mask, action, kind)
        again, _ = loaded.predict(observation, action_masks=beside, deterministic=deterministic)
        np.testing.assert_array_equal(action, again)
    scores = algorithm.evaluate(episodes=4, seed=1, deterministic=False)
    assert loaded.evaluate(episodes=4, seed=1, deterministic=False) == scores
    assert digest(loaded.learn(32).state_dict()) == digest(algorithm.learn(32).state_dict())
    return algorithm


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_only_legal_actions_are_ever_taken(name: str, kind: str, tmp_path: Path) -> None:
    check_cell(name, "info", kind, tmp_path).close()


@pytest.mark.parametrize("source", SOURCES[1:])
@pytest.mark.parametrize("name", ["ppo", "dqn", "recurrent_ppg"])
def test_masks_come_from_elsewhere_as_well(name: str, source: str, tmp_path: Path) -> None:
    check_cell(name, source, "Discrete", tmp_path).close()


def image_cells() -> list[tuple[str, str]]:
    """Return every source with PPO, which has the least of its own, and DQN, whose replay stores
    the masks; the other algorithms with one source each, in turn: what the environment gives is the
    same columns whichever it is.
    """
    cells = [(name, source) for name in ("ppo", "dqn") for source in SOURCES]
    others = sorted(set(ACTION_MASKS) - {"ppo", "dqn"})
    return cells + [(name, SOURCES[number % 3]) for number, name in enumerate(others)]


@pytest.mark.parametrize(("name", "source"), image_cells())
def test_masks_stand_beside_images(name: str, source: str, tmp_path: Path) -> None:
    algorithm = check_cell(name, source, "Discrete", tmp_path, **IMAGE)
    batch = next(iter(copy.copy(algorithm).collector()))
    assert batch["observation"].dtype == torch.uint8
    algorithm.close()


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("source", ["info", "observation"])
def test_normalisation_leaves_masks_as_they_are(source: str, image: bool, tmp_path: Path) -> None:
    options = IMAGE if image else {}
    algorithm = check_cell(
        "ppo", source, "Discrete", tmp_path, normalize_observation=True, **options
    )
    batch = next(iter(copy.copy(algorithm).collector()))
    mask = algorithm.model.encoder.columns.of(batch["observation"])
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    if not image:
        rest = set(range(batch["observation"].shape[-1])) - set(range(mask.shape[-1]))
        place = batch["observation"][..., sorted(rest)]
        assert place.abs().max() > 1.2  # of a deviation of 1, not 0.58
    algorithm.close()


@pytest.mark.parametrize("kind", ["MultiDiscrete", "MultiBinary"])
def test_masks_of_several_actions_stand_beside_images(kind: str, tmp_path: Path) -> None:
    check_cell("ppo", "info", kind, tmp_path, **IMAGE).close()


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_masks_of_other_actions_are_refused_by_name(name: str, kind: str) -> None:
    with pytest.raises(UserError, match=rf"env\.action_masks.* {name}"):
        build(name, kind=kind)


def test_the_info_may_call_them_action_masks() -> None:
    algorithm = make(
        "ppo", lambda: Masked("info", key="action_masks"), action_masks="info", **SHORT
    )
    algorithm.learn(128).close()


@pytest.mark.parametrize("kind", ["Discrete", "MultiDiscrete"])
def test_worker_processes_give_the_same_masks(kind: str) -> None:
    digests = []
    for vectorization in ("sync", "async"):
        algorithm = build(kind=kind, vectorization=vectorization).learn(128)
        digests.append(digest(algorithm.model.state_dict()))
        algorithm.close()
    assert digests[0] == digests[1]


def test_batches_are_evaluated_as_by_a_categorical_of_the_legal_actions() -> None:
    algorithm = build()
    batch = next(iter(algorithm.collector()))
    mask = algorithm.model.encoder.columns.of(batch["observation"]).bool()
    assert mask.gather(-1, batch["action"].unsqueeze(-1)).all()
    (logits,) = algorithm.model.distribution(batch["observation"])
    raw = algorithm.model.action_head.layer(algorithm.model.encoder.encoder(batch["observation"]))
    legal_ones: Any = Categorical(logits=raw.masked_fill(~mask, -torch.inf), validate_args=False)
    torch.testing.assert_close(batch["action_log_prob"], legal_ones.log_prob(batch["action"]))
    _, entropy = algorithm.model.action_head.evaluate((logits,), batch["action"])
    chances = legal_ones.probs
    torch.testing.assert_close(entropy, -torch.xlogy(chances, chances).sum(-1))
    algorithm.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [("Discrete", "no action is legal"), ("MultiDiscrete", "no action is legal in component 2")],
)
def test_no_legal_action_names_the_environment(kind: str, message: str, vectorization: str) -> None:
    algorithm = PPO(
        lambda: Masked("info", kind, dead_end=2, only=episode_seed(1, 1, 0)),
        action_masks="info",
        vectorization=vectorization,
        num_envs=2,
        num_steps=64,
    )
    with pytest.raises(RuntimeError, match=rf"environment 1, step 2 .*{message}"):
        next(iter(algorithm.collector()))


def vector_of(*dead_ends: int | None) -> Any:
    return gymnasium.vector.SyncVectorEnv(
        [lambda end=end: Masked("observation", dead_end=end) for end in dead_ends],  # type: ignore[misc]
        autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
    )


def test_masks_of_a_vector_environment_of_ones_own_are_looked_at() -> None:
    options: dict[str, Any] = {"action_masks": "observation", "num_steps": 64}
    PPO(vector_of(None, None), **options).learn(128).close()
    with pytest.raises(RuntimeError, match=r"environment 1, step 0 .*no action is legal"):
        PPO(vector_of(None, 0), **options).learn(128)
    with pytest.raises(RuntimeError, match=r"environment 1, step 2 .*no action is legal"):
        PPO(vector_of(None, 2), **options).learn(128)


def test_a_vector_environment_is_tried_out_by_legal_actions() -> None:
    vector = gymnasium.vector.SyncVectorEnv([lambda: Masked("observation")] * 2)
    PPO(vector, action_masks="observation", num_steps=64).learn(128).close()


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ACTION_MASKS])
def test_algorithms_without_masks_refuse_them(name: str) -> None:
    with pytest.raises(UserError, match=rf"env\.action_masks: {name} takes none"):
        make(name, "CartPole-v1" if name != "td3" else "Pendulum-v1", action_masks="observation")


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("Pendulum-v1", {"action_masks": "info"}, "needs Discrete"),
        ("CartPole-v1", {"action_masks": "info"}, "info has no 'action_mask'"),
        ("CartPole-v1", {"action_masks": "method"}, r"has no action_masks\(\)"),
        ("CartPole-v1", {"action_masks": "observation"}, "need a key 'action_mask'"),
        ("CartPole-v1", {"action_masks": "always"}, "action_masks"),
        (
            "PongNoFrameskip-v4",
            {"action_masks": "info", "atari": {"enabled": True}, "vectorization": "native"},
            "must be off with vectorization native",
        ),
    ],
)
def test_masks_that_are_not_there_are_named(env: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make("ppo", env, **options).learn(128)


@pytest.mark.parametrize("mask", [[np.nan, 0, 0, 0, 0], [0, -np.inf, 0, 0, 0], ["a"] * COUNT])
def test_masks_that_are_no_numbers_are_refused(mask: Any) -> None:
    class Strange(Masked):
        def _observe(self) -> tuple[Any, dict[str, Any]]:
            observation, information = super()._observe()
            if self.steps == 2:
                information = {"action_mask": np.array(mask)}
            return observation, information

    algorithm = make("ppo", lambda: Strange("info"), action_masks="info", **SHORT)
    with pytest.raises(UserError, match="an action mask is of numbers, 0 where"):
        algorithm.learn(128)


class Slips(Masked):
    """Gives another mask, or none, at step 2 of the episode of seed ``only``."""

    def __init__(self, source: str, mask: Any, only: int) -> None:
        super().__init__(source, only=only)
        self.slip = mask

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        observation, information = super()._observe()
        if self.is_dead_end and self.steps == 2:
            if self.source == "observation":
                del observation["action_mask"]
            self.mask = self.slip
            information = {} if self.slip is None else {"action_mask": self.slip}
        return observation, information

    def action_masks(self) -> Any:
        return self.mask


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("source", "mask", "message"),
    [
        ("info", None, "env.action_masks is 'info', and the info has no 'action_mask'"),
        ("info", np.ones(3), r"an action mask of shape \(3,\), where 5 numbers belong"),
        ("method", np.ones(3), r"an action mask of shape \(3,\), where 5 numbers belong"),
        ("observation", None, r"an observation without its part \['action_mask'\]"),
    ],
)
def test_a_mask_that_slips_later_names_environment_step_and_seed(
    source: str, mask: Any, message: str, vectorization: str
) -> None:
    seed = episode_seed(1, 1, 0)
    algorithm = PPO(
        lambda: Slips(source, mask, seed),
        action_masks=source,
        vectorization=vectorization,
        num_envs=2,
        num_steps=64,
    )
    where = rf"^Slips (failed )?in environment 1, step 2 of episode 0 \(reset seed {seed}\): "
    with pytest.raises((UserError, RuntimeError), match=f"{where}.*{message}"):
        next(iter(algorithm.collector()))


def test_predict_needs_masks_that_fit() -> None:
    algorithm = build()
    place = np.zeros((2, 2))
    with pytest.raises(UserError, match="needs action_masks"):
        algorithm.predict(place)
    with pytest.raises(UserError, match="of observation 0 no action is legal"):
        algorithm.predict(place, action_masks=np.eye(COUNT)[:2] * [[0.0], [1.0]])
    with pytest.raises(UserError, match="shape"):
        algorithm.predict(place, action_masks=np.ones((2, 3)))
    single, _ = algorithm.predict(place[0], action_masks=np.eye(COUNT)[4])
    assert single == 3
    algorithm.close()
    with pytest.raises(UserError, match="takes none"):
        make("ppo", "CartPole-v1").predict(np.zeros(4), action_masks=np.ones(2))
    inside = build(source="observation")
    with pytest.raises(UserError, match="of observation 0 no action is legal"):
        inside.predict({"place": np.zeros(2), "action_mask": np.zeros(COUNT)})


@pytest.mark.parametrize(
    ("count", "mask", "message"),
    [
        (3, None, r"needs action_masks, .*: 3 observations were given, so it is \[3, 5\]"),
        (0, None, r"needs action_masks, .*: one observation was given, so it is \[5\]"),
        (3, np.ones(5), r"the shape is \[5\], and 3 observations were given, so it is \[3, 5\]"),
        (3, np.ones((2, 5)), r"the shape is \[2, 5\], and 3 observations .* it is \[3, 5\]"),
        (3, np.ones((3, 4)), r"the shape is \[3, 4\], and 3 observations .* it is \[3, 5\]"),
        (0, np.ones((1, 5)), r"the shape is \[1, 5\], and one observation .* it is \[5\]"),
        (0, 1, r"the shape is \[\], and one observation was given, so it is \[5\]"),
        (2, [[1] * 5, [1]], r"the masks have different lengths; 2 observations .* it is \[2, 5\]"),
        (2, np.full((2, 5), np.nan), "a mask is of numbers"),
    ],
)
@pytest.mark.parametrize("source", ["info", "observation"])
def test_predict_says_which_shape_masks_have(
    source: str, count: int, mask: Any, message: str
) -> None:
    algorithm = build(source=source)
    place: Any = np.zeros((count, 2) if count else 2)
    beside = mask
    if source == "observation":
        place = {"place": place} if mask is None else {"place": place, "action_mask": mask}
        message = message.replace("action_masks", r"the observation's part \['action_mask'\]")
        beside = None
    with pytest.raises(UserError, match=message):
        algorithm.predict(place, action_masks=beside)
    algorithm.close()


def test_another_environment_is_refused_by_its_own_spaces(tmp_path: Path) -> None:
    build().save(tmp_path / "saved")
    message = r"Taxi-v4: its observation space is Discrete\(500\), and .* made for Box\(-1.0, 1.0"
    with pytest.raises(UserError, match=message):
        PPO.load(tmp_path / "saved", "Taxi-v4")
    with pytest.raises(UserError, match=r"is Discrete.* for Box") as refused:
        PPO.load(tmp_path / "saved", lambda: gymnasium.make("Taxi-v4"))
    assert "env.wrappers" not in str(refused.value)
    options: dict[str, Any] = {"wrappers": ["gymnasium.wrappers:FlattenObservation"]}
    make("ppo", "Taxi-v4", **options).save(tmp_path / "flat")
    with pytest.raises(
        UserError, match=r"is Discrete\(500\).*saw what env\.wrappers made; it goes"
    ):
        PPO.load(tmp_path / "flat", lambda: gymnasium.make("Taxi-v4"))


def test_a_memory_keeps_to_the_masks_of_every_step() -> None:
    algorithm = build("recurrent_ppo", kind="MultiDiscrete")
    policy = algorithm.stateful_policy(deterministic=False)
    observation, beside, mask = given("info", 20, "MultiDiscrete")
    for place, own in zip(observation, beside, strict=True):
        assert legal(own, policy.predict(place, action_masks=own), "MultiDiscrete")
    several = algorithm.stateful_policy().predict(observation, action_masks=beside)
    assert all_legal(mask, several, "MultiDiscrete")
    algorithm.close()


@pytest.mark.parametrize("name", ["ppo", "dqn", "recurrent_ppo"])
def test_the_best_legal_action_is_learnt(name: str) -> None:
    options: dict[str, Any] = {"learning_rate": 0.01, "discount": 0.5, "num_envs": 4}
    if name == "dqn":
        options.update(discount=0.0, gradient_steps_per_step=0.5, exploration_final=1.0)
    algorithm = build(name, **options)
    algorithm.learn(128 * 8)
    observation, beside, mask = given("info", 100)
    action, _ = algorithm.predict(observation, action_masks=beside)
    best = COUNT - 1 - mask[:, ::-1].argmax(-1)
    assert (action + 1 == best).mean() > 0.9
    algorithm.close()


def test_actions_are_chosen_by_the_choices_of_each_alone() -> None:
    """A mask with one choice left of every action says which action it is."""
    algorithm = build(kind="MultiDiscrete")
    mask = np.zeros((12, 8))
    chosen = np.array([[a, 0, c] for a in range(3) for c in range(4)])
    mask[np.arange(12)[:, None], chosen + np.array([0, 3, 4])] = 1
    action, _ = algorithm.predict(np.zeros((12, 2)), action_masks=mask)
    np.testing.assert_array_equal(action - start_of("MultiDiscrete"), chosen)
    algorithm.close()


def test_a_gymnasium_id_with_masks_in_its_info() -> None:
    algorithm = make("ppo", "Taxi-v4", action_masks="info", **SHORT)
    batch = next(iter(copy.copy(algorithm).collector()))
    mask = batch["observation"][..., :6].bool()
    assert not mask.all()
    assert mask.gather(-1, batch["action"].unsqueeze(-1)).all()
    algorithm.close()

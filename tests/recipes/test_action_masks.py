"""Masks of legal actions: in rollout, update, evaluation, predict and resume; or refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, kl_divergence

from rl_training import PPO
from rl_training.errors import UserError
from rl_training.models.masked import MaskedCategoricalHead
from rl_training.registry import ACTION_MASKS, ALGORITHMS, algorithm_class
from rl_training.runtime.state import digest
from tests.recipes.runs import make

COUNT = 5
SOURCES = ("info", "method", "observation")
SHORT: dict[str, Any] = {"num_envs": 2, "hidden_sizes": [16]}


class Masked(gymnasium.Env[Any, Any]):
    """Random legal actions at every step; insists on them, and pays their number. Episodes end or
    are cut after ten steps, with no action legal.
    """

    def __init__(self, source: str, *, dead_end: bool = False) -> None:
        self.source, self.dead_end = source, dead_end
        vector: Any = spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.observation_space = (
            spaces.Dict({"place": vector, "action_mask": spaces.MultiBinary(COUNT)})
            if source == "observation"
            else vector
        )
        self.action_space = spaces.Discrete(COUNT, start=-1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe()

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self.mask = np.zeros(COUNT, np.int8)
        if self.steps < 10 and not (self.dead_end and self.steps == 3):
            self.mask[self.np_random.permutation(COUNT)[: self.np_random.integers(1, COUNT)]] = 1
        place = self.np_random.uniform(-1, 1, 2)
        if self.source == "observation":
            return {"place": place, "action_mask": self.mask}, {}
        return place, {"action_mask": self.mask} if self.source == "info" else {}

    def action_masks(self) -> Any:
        return self.mask.astype(bool)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.mask[action + 1], f"{action} is illegal, {self.mask}"
        self.steps += 1
        over = self.steps == 10
        cut = bool(self.np_random.random() < 0.5)
        observation, information = self._observe()
        return observation, float(action), over and not cut, over and cut, information


def build(name: str = "ppo", source: str = "info", **options: Any) -> Any:
    return make(name, lambda: Masked(source), action_masks=source, **{**SHORT, **options})


def given(source: str, count: int = 1) -> tuple[Any, Any, np.ndarray[Any, Any]]:
    """Return an observation batch, masks beside it (None where they are in it) and the masks."""
    draws = np.random.default_rng(3)
    mask = draws.random((count, COUNT)) < 0.4
    mask[:, 2] |= ~mask.any(-1)
    place = draws.uniform(-1, 1, (count, 2))
    if source == "observation":
        return {"place": place, "action_mask": mask}, None, mask
    return place, mask, mask


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ACTION_MASKS)
def test_only_legal_actions_are_ever_taken(name: str, source: str, tmp_path: Path) -> None:
    algorithm = build(name, source).learn(128)
    algorithm.save(tmp_path / "saved")
    loaded = algorithm_class(name).load(tmp_path / "saved")
    loaded._source = algorithm._source
    observation, beside, mask = given(source, 200)
    for deterministic in (True, False):
        action, _ = algorithm.predict(observation, action_masks=beside, deterministic=deterministic)
        assert mask[np.arange(200), action + 1].all()
        again, _ = loaded.predict(observation, action_masks=beside, deterministic=deterministic)
        np.testing.assert_array_equal(action, again)
    scores = algorithm.evaluate(episodes=4, seed=1, deterministic=False)
    assert loaded.evaluate(episodes=4, seed=1, deterministic=False) == scores
    assert digest(loaded.learn(256).state_dict()) == digest(algorithm.learn(256).state_dict())
    algorithm.close()


def test_worker_processes_give_the_same_masks() -> None:
    digests = []
    for vectorization in ("sync", "async"):
        algorithm = build(source="info", vectorization=vectorization).learn(128)
        digests.append(digest(algorithm.model.state_dict()))
        algorithm.close()
    assert digests[0] == digests[1]


def test_batches_are_evaluated_as_by_a_categorical_of_the_legal_actions() -> None:
    algorithm = build()
    batch = next(iter(algorithm.collector()))
    mask = batch["observation"][..., algorithm.model.encoder.columns].bool()
    assert mask.gather(-1, batch["action"].unsqueeze(-1)).all()
    (logits,) = algorithm.model.distribution(batch["observation"])
    raw = algorithm.model.action_head.layer(algorithm.model.encoder.encoder(batch["observation"]))
    legal: Any = Categorical(logits=raw.masked_fill(~mask, -torch.inf), validate_args=False)
    torch.testing.assert_close(batch["action_log_prob"], legal.log_prob(batch["action"]))
    _, entropy = algorithm.model.action_head.evaluate((logits,), batch["action"])
    chances = legal.probs
    torch.testing.assert_close(entropy, -torch.xlogy(chances, chances).sum(-1))
    algorithm.close()


@pytest.mark.parametrize("count", [3, 5000])
def test_one_legal_action_among_many_is_certain(count: int) -> None:
    head = MaskedCategoricalHead(num_features=4 + count, num_actions=count)
    mask = torch.zeros(6, count)
    mask[:, 1] = 1
    features = torch.cat([torch.randn(6, 4) * 100, mask], -1)
    parameters = head(features)
    generator = torch.Generator().manual_seed(0)
    (noise,) = head.draw_noise(1, 6, generator)
    for action in (head.mode(parameters), head.sample(features, noise)):
        assert (action == 1).all()
    log_probability, entropy = head.evaluate(parameters, head.draw(parameters, generator))
    assert not log_probability.any()
    assert not entropy.any()
    (log_probability.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in head.parameters())


def test_the_divergence_is_that_of_the_legal_actions() -> None:
    old, new = (MaskedCategoricalHead(num_features=4 + 3, num_actions=3) for _ in range(2))
    mask = torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 0]])
    features = torch.cat([torch.randn(3, 4), mask], -1)
    divergence = old.kl_divergence(old(features), new(features))
    pairs = [
        [Categorical(logits=head(features)[0][row][mask[row] > 0]) for head in (old, new)]
        for row in range(3)
    ]
    torch.testing.assert_close(divergence, torch.stack([kl_divergence(*pair) for pair in pairs]))


def test_no_legal_action_names_the_environment() -> None:
    makers = iter([False, True])
    algorithm = PPO(
        lambda: Masked("info", dead_end=next(makers)), action_masks="info", num_envs=2, num_steps=64
    )
    with pytest.raises(RuntimeError, match=r"environment 1, step 3 .*no action is legal"):
        next(iter(algorithm.collector()))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ACTION_MASKS])
def test_algorithms_without_masks_refuse_them(name: str) -> None:
    with pytest.raises(UserError, match=rf"env\.action_masks: {name} takes none"):
        make(name, "CartPole-v1" if name != "td3" else "Pendulum-v1", action_masks="observation")


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("Pendulum-v1", {"action_masks": "info"}, "needs Discrete actions"),
        ("CartPole-v1", {"action_masks": "info"}, "info has no 'action_mask'"),
        ("CartPole-v1", {"action_masks": "method"}, r"has no action_masks\(\)"),
        ("CartPole-v1", {"action_masks": "observation"}, "need a key 'action_mask'"),
        ("CartPole-v1", {"action_masks": "always"}, "action_masks"),
        (
            lambda: Masked("info"),
            {"action_masks": "info", "normalize_observation": True},
            "cannot be normalised",
        ),
    ],
)
def test_masks_that_are_not_there_are_named(env: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make("ppo", env, **options).learn(128)


def test_predict_needs_masks_that_fit() -> None:
    algorithm = build()
    place = np.zeros((2, 2))
    with pytest.raises(UserError, match="needs action_masks"):
        algorithm.predict(place)
    with pytest.raises(UserError, match="at least must be legal"):
        algorithm.predict(place, action_masks=np.eye(COUNT)[:2] * [[0.0], [1.0]])
    with pytest.raises(UserError, match="shape"):
        algorithm.predict(place, action_masks=np.ones((2, 3)))
    single, _ = algorithm.predict(place[0], action_masks=np.eye(COUNT)[4])
    assert single == 3
    algorithm.close()
    with pytest.raises(UserError, match="takes none"):
        make("ppo", "CartPole-v1").predict(np.zeros(4), action_masks=np.ones(2))


def test_the_best_legal_action_is_learnt() -> None:
    algorithm = build(learning_rate=0.01, discount=0.5, num_envs=4)
    algorithm.learn(128 * 15)
    observation, beside, mask = given("info", 100)
    action, _ = algorithm.predict(observation, action_masks=beside)
    best = COUNT - 1 - mask[:, ::-1].argmax(-1)
    assert (action + 1 == best).mean() > 0.9
    algorithm.close()


def test_a_gymnasium_id_with_masks_in_its_info() -> None:
    algorithm = make("ppo", "Taxi-v4", action_masks="info", **SHORT)
    batch = next(iter(copy.copy(algorithm).collector()))
    mask = batch["observation"][..., :6].bool()
    assert not mask.all()
    assert mask.gather(-1, batch["action"].unsqueeze(-1)).all()
    algorithm.close()

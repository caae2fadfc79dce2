"""The reference scripts on Breakout: they run, and the library computes what they do."""

from __future__ import annotations

import ast
import math
import re
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from rl_training.config.groups import AtariConfig
from rl_training.envs.atari import make_atari
from rl_training.recipes.dqn import DQN
from rl_training.recipes.ppo import PPO
from tests.processes import Process, run_script
from tests.test_reference_scripts import SCRIPTS, load_script

NAMES = ("ppo_breakout", "dqn_breakout")
PARAMETERS: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
"""After some steps of Adam, each of which moves a parameter by up to the learning rate:
convolutions over the same numbers are rounded alike, but losses and Adam are not."""


@pytest.mark.parametrize("name", NAMES)
def test_script_imports_nothing_of_the_library(name: str) -> None:
    tree = ast.parse((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    external = imported - set(sys.stdlib_module_names)
    assert external <= {"torch", "torchrl", "tensordict", "gymnasium", "numpy", "ale_py"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_script_trains_and_prints_a_finite_evaluation(name: str) -> None:
    words = ["--total-timesteps", "1024", "--seed", "2"]
    with Process(run_script, SCRIPTS / f"{name}.py", *words, cwd=SCRIPTS) as process:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert "Warning" not in err
    pattern = r"^evaluation: mean return (\S+), std (\S+), 5 episodes$"
    match = re.search(pattern, out, re.MULTILINE)
    assert match is not None, out
    assert all(math.isfinite(float(value)) for value in match.groups())


@pytest.mark.parametrize("training", [True, False])
def test_the_script_s_game_is_the_pipeline_s(training: bool) -> None:
    """But for the number of first frames without action: the script's wrapper draws it anew."""
    script = load_script("ppo_breakout")
    theirs = script.make_game(training)
    theirs.env.env.noop_max = 0
    ours = make_atari(script.ENV_ID, {}, AtariConfig(enabled=True, noop_max=0), training=training)
    actions = np.random.default_rng(0).integers(4, size=400)
    assert (theirs.reset(seed=1)[0] == ours.reset(seed=1)[0]).all()
    ends = 0
    for action in actions:
        one, two = theirs.step(action), ours.step(action)
        over = two[2] or two[3]
        assert over == (one[2] or one[3])
        if not over or ours._continues:
            assert (one[0][-1] == two[0][-1]).all()
        if over:
            ends += 1
            assert (theirs.reset()[0][-1] == ours.reset()[0][-1]).all()
    assert ends > (5 if training else 0)


def layers(encoder: nn.Module, *heads: nn.Module) -> list[Tensor]:
    found = [m for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return [p for layer in (*found, *heads) for p in layer.parameters()]


@torch.no_grad()
def copy_(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def assert_learnt_alike(found: list[Tensor], expected: list[Tensor], before: list[Tensor]) -> None:
    for one, other, first in zip(found, expected, before, strict=True):
        assert (one - first).abs().max() > 1e-5, "something has to have been learnt"
        torch.testing.assert_close(one, other, **PARAMETERS)


def atari(script: ModuleType) -> dict[str, Any]:
    return {
        "seed": 3,
        "num_envs": 2,
        "atari": {"enabled": True},
        "channels_last": False,
        "learning_rate": script.LEARNING_RATE,
        "discount": script.DISCOUNT,
        "max_gradient_norm": script.MAX_GRADIENT_NORM,
    }


def test_ppo_learns_what_the_script_does() -> None:
    script: Any = load_script("ppo_breakout")
    script.MINIBATCH_SIZE, script.NUM_EPOCHS, script.ADAM_EPSILON = 16, 2, 1e-3
    agent = PPO(
        script.ENV_ID,
        **atari(script),
        num_steps=24,
        minibatch_size=script.MINIBATCH_SIZE,
        num_epochs=script.NUM_EPOCHS,
        clip_epsilon=script.CLIP_EPSILON,
        gae_lambda=script.GAE_LAMBDA,
        value_coefficient=script.VALUE_COEFFICIENT,
        entropy_coefficient=script.ENTROPY_COEFFICIENT,
        adam_epsilon=script.ADAM_EPSILON,
        shared_trunk=True,
    )
    env = script.make_env(1)
    actor, critic = script.make_networks(env)
    env.close()
    own = layers(agent.model.encoder, agent.model.action_head, agent.model.value_head)
    encoder, head = actor.module[0].module
    their = layers(encoder, head, critic.module[1])
    copy_(their, own)
    loss_module = script.make_loss(actor, critic)
    optimizer = script.make_optimizer(loss_module)
    batch = next(iter(agent.collector()))
    assert batch["next", "done"].any()
    rollout = batch.select("observation", "action", "action_log_prob", "next").clone()
    with torch.no_grad():
        script.compute_advantages(rollout, critic)
    draws = torch.Generator().set_state(agent.generators["minibatch"].get_state())
    script.update(rollout, loss_module, optimizer, draws)
    before = [p.detach().clone() for p in own]
    agent.update(batch)
    torch.testing.assert_close(batch["advantage"], rollout["advantage"], rtol=1e-4, atol=1e-5)
    assert_learnt_alike(own, their, before)


def test_dqn_learns_what_the_script_does() -> None:
    script: Any = load_script("dqn_breakout")
    agent = DQN(
        script.ENV_ID,
        **atari(script),
        minibatch_size=script.MINIBATCH_SIZE,
        adam_epsilon=1e-3,
        warm_up=200,
        train_every=100,
        replay_capacity=400,
    )
    env = script.make_env(1)
    actor = script.make_actor(env)
    env.close()
    own = layers(agent.model.encoder, agent.model.head)
    convolutions, head = actor.module[0].module
    copy_(layers(convolutions, head), own)
    loss_module = script.make_loss(actor)
    updater = script.make_target_updater(loss_module)
    updater.step()
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=script.LEARNING_RATE, eps=1e-3)
    agent.update(next(iter(agent.collector())))
    before = [p.detach().clone() for p in own]
    for _ in range(3):
        sample = agent.replay.sample(script.MINIBATCH_SIZE, agent.generators["replay"])
        following = {
            "observation": sample["next_observation"],
            "reward": sample["reward"].unsqueeze(-1),
            "terminated": sample["terminated"].unsqueeze(-1),
            "done": sample["terminated"].unsqueeze(-1),
        }
        samples = TensorDict(
            {
                "observation": sample["observation"],
                "action": sample["action"],
                "next": TensorDict(following, [script.MINIBATCH_SIZE]),
            },
            [script.MINIBATCH_SIZE],
        )
        script.gradient_step(samples, loss_module, optimizer)
        agent._take(sample)
    their = [p for p in loss_module.parameters() if p.requires_grad]
    assert_learnt_alike(own, their, before)

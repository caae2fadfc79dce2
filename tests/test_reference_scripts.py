"""The reference scripts run on their own, stand on TorchRL alone, and compute what they say."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import ExplorationType
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import ProbabilisticActor

from tests.processes import Process, run_script
from tests.reference_ppg import auxiliary_loss, categorical_kl

SCRIPTS = Path(__file__).resolve().parent.parent / "recipes"
# Enough steps for more than one update each, and for a whole phase of PPG ...
STEPS = {
    "ppo_cartpole": 512,
    "ppg_cartpole": 1024,
    "ppo_pendulum": 1024,  # an episode, too
    "dqn_cartpole": 384,
    "sac_pendulum": 110,
    "td3_pendulum": 110,
    "recurrent_ppo_cartpole": 512,
}
# ... by copies with smaller constants: they run the same lines, fewer times.
SMALLER = {
    "ppo_cartpole": {"NUM_EPOCHS": 2, "MAX_EPISODE_STEPS": 50},
    "ppg_cartpole": {"NUM_STEPS": 32, "NUM_AUXILIARY_EPOCHS": 2, "MAX_EPISODE_STEPS": 50},
    "ppo_pendulum": {"NUM_STEPS": 64, "NUM_EPOCHS": 2, "MAX_EPISODE_STEPS": 50},
    "dqn_cartpole": {
        "WARM_UP": 128,
        "TRAIN_EVERY": 32,
        "GRADIENT_STEPS": 8,
        "MAX_EPISODE_STEPS": 50,
    },
    "sac_pendulum": {"MAX_EPISODE_STEPS": 50},
    "td3_pendulum": {"WARM_UP": 100, "MAX_EPISODE_STEPS": 50},
    "recurrent_ppo_cartpole": {"NUM_EPOCHS": 2, "MAX_EPISODE_STEPS": 50},
}
ON_POLICY = ["ppo_cartpole", "ppg_cartpole", "ppo_pendulum"]


def load_script(name: str) -> ModuleType:
    """Import a reference script as a module, without running it."""
    spec = importlib.util.spec_from_file_location(f"reference_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def collect(
    script: ModuleType, num_envs: int, num_steps: int
) -> tuple[TensorDict, ProbabilisticActor]:
    """Return a rollout ``[num_envs, num_steps]`` of a fresh sampling actor, and the actor."""
    torch.manual_seed(0)
    env = script.make_env(num_envs, seed=5)
    actor = script.make_actor(env)
    policy = actor
    if hasattr(script, "make_policy"):  # with a critic's memory beside it
        policy = script.make_policy(actor, script.make_critic(env))
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(num_steps, policy, break_when_any_done=False)
    env.close()
    return batch, actor


def make_critic(script: ModuleType) -> torch.nn.Module:
    """Return a fresh critic of a script."""
    env = script.make_env(1, seed=0)
    critic: torch.nn.Module = script.make_critic(env)
    env.close()
    return critic


def test_every_reference_script_is_tested() -> None:
    of_images = {"ppo_breakout", "dqn_breakout"}  # tests/test_image_reference_scripts.py
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(STEPS) | of_images


@pytest.mark.parametrize("name", STEPS)
def test_script_imports_nothing_of_the_library(name: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse((SCRIPTS / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a script is not part of a package"
            imported.add((node.module or "").split(".")[0])
    external = imported - set(sys.stdlib_module_names)
    assert external <= {"torch", "torchrl", "tensordict", "gymnasium", "numpy"}


def smaller_copy(name: str, directory: Path) -> Path:
    """Write a script with other numbers for some of its constants."""
    code = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    for constant, value in SMALLER[name].items():
        code, count = re.subn(rf"^{constant} = \S+", f"{constant} = {value}", code, flags=re.M)
        assert count == 1, f"{name} has no {constant}"
    path = directory / f"{name}.py"
    path.write_text(code, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", STEPS)
def test_script_trains_and_prints_a_finite_evaluation(name: str, tmp_path: Path) -> None:
    words = ["--total-timesteps", str(STEPS[name]), "--seed", "2"]
    with Process(run_script, smaller_copy(name, tmp_path), *words, cwd=tmp_path) as process:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert "Warning" not in err
    pattern = r"^evaluation: mean return (\S+), std (\S+), 20 episodes$"
    match = re.search(pattern, out, re.MULTILINE)
    assert match is not None, out
    assert all(math.isfinite(float(value)) for value in match.groups())


def test_environments_of_one_script_do_not_share_a_random_stream() -> None:
    script = load_script("ppo_cartpole")
    starts = torch.cat([script.make_env(4, seed=seed).reset()["observation"] for seed in (1, 2)])
    assert len(torch.unique(starts, dim=0)) == 8


def test_advantages_follow_the_recursion_through_terminations_and_truncations() -> None:
    script = load_script("ppo_cartpole")
    batch, _ = collect(script, num_envs=3, num_steps=64)
    # CartPole's time limit is far away: relabel the ends of the first environment as truncations.
    batch["next", "truncated"][0] = batch["next", "terminated"][0]
    batch["next", "terminated"][0] = False
    critic = make_critic(script)
    script.compute_advantages(batch, critic)
    with torch.no_grad():
        value = critic(batch.select("observation"))["state_value"]
        next_value = critic(batch["next"].select("observation"))["state_value"]
    terminated, done = batch["next", "terminated"].float(), batch["next", "done"].float()
    assert (done.sum(dim=1) > 0).all(), "each row must cross an episode's end to test anything"
    expected, advantage = torch.zeros_like(value), torch.zeros(3, 1)
    for step in reversed(range(64)):
        future = script.DISCOUNT * next_value[:, step] * (1.0 - terminated[:, step])
        delta = batch["next", "reward"][:, step] + future - value[:, step]
        decay = script.DISCOUNT * script.GAE_LAMBDA * (1.0 - done[:, step])
        advantage = delta + decay * advantage
        expected[:, step] = advantage
    torch.testing.assert_close(batch["advantage"], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batch["value_target"], expected + value, rtol=1e-4, atol=1e-4)


def test_pendulum_stores_the_sampled_action_and_bounds_it_only_in_the_environment() -> None:
    script = load_script("ppo_pendulum")
    batch, actor = collect(script, num_envs=4, num_steps=64)
    assert batch["action"].abs().max() > 2.0
    log_probability = actor.get_dist(batch.select("observation")).log_prob(batch["action"])
    torch.testing.assert_close(batch["action_log_prob"], log_probability)


@pytest.mark.parametrize("name", ON_POLICY)
def test_update_is_a_function_of_the_batch_and_the_generator(name: str) -> None:
    script = load_script(name)
    finals = []
    for _ in range(2):
        batch, actor = collect(script, num_envs=2, num_steps=128)
        critic = make_critic(script)
        loss_module = script.make_loss(actor, critic)
        optimizer = script.make_optimizer(loss_module)
        script.compute_advantages(batch, critic)
        generator = torch.Generator().manual_seed(3)
        losses = script.update(batch, loss_module, optimizer, generator=generator)
        assert all(value.isfinite().all() for value in losses.values())
        finals.append(torch.nn.utils.parameters_to_vector(loss_module.parameters()))
    assert torch.equal(finals[0], finals[1])


class TestPPGAuxiliaryPhase:
    """The auxiliary phase of the PPG script."""

    def test_loss_and_gradients_equal_the_independent_reference(self) -> None:
        script = load_script("ppg_cartpole")
        batch, actor = collect(script, num_envs=2, num_steps=32)
        critic, auxiliary_head = make_critic(script), script.make_auxiliary_head()
        samples = batch.reshape(-1).select("observation")
        samples["value_target"] = torch.randn(64, 1)
        samples["old_logits"] = torch.randn(64, 2)
        modules = torch.nn.ModuleList([actor, auxiliary_head, critic])

        losses = script.auxiliary_loss(samples, actor, auxiliary_head, critic)
        total = losses["value_loss"] + losses["true_value_loss"] + 10.0 * losses["kl"]
        gradients = torch.autograd.grad(total, list(modules.parameters()))

        inputs = auxiliary_head(actor.get_dist_params(critic(samples.select("observation"))))
        reference = auxiliary_loss(
            categorical_kl(samples["old_logits"], inputs["logits"]),
            inputs["auxiliary_value"].squeeze(-1),
            inputs["state_value"].squeeze(-1),
            samples["value_target"].squeeze(-1),
            beta_clone=10.0,
        )
        torch.testing.assert_close(total, reference)
        expected = torch.autograd.grad(reference, list(modules.parameters()))
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)

    def test_first_minibatch_has_no_kl_and_targets_stay_fixed(self) -> None:
        script = load_script("ppg_cartpole")
        batch, actor = collect(script, num_envs=2, num_steps=128)
        critic, auxiliary_head = make_critic(script), script.make_auxiliary_head()
        script.compute_advantages(batch, critic)
        targets = batch["value_target"].clone()
        optimizer = script.make_optimizer(actor, auxiliary_head, critic)
        before = [parameter.clone() for parameter in auxiliary_head.parameters()]

        history = script.auxiliary_update([batch, batch], actor, auxiliary_head, critic, optimizer)

        assert len(history) == script.NUM_AUXILIARY_EPOCHS * script.NUM_AUXILIARY_MINIBATCHES
        assert abs(history[0]["kl"].item()) < 1e-6
        assert history[-1]["value_loss"] < history[0]["value_loss"]
        assert history[-1]["true_value_loss"] < history[0]["true_value_loss"]
        assert torch.equal(batch["value_target"], targets)
        pairs = zip(before, auxiliary_head.parameters(), strict=True)
        assert all(not torch.equal(old, new) for old, new in pairs)

    def test_stale_gradients_of_the_policy_phase_do_not_reach_it(self) -> None:
        script = load_script("ppg_cartpole")
        finals = []
        for stale in (False, True):
            batch, actor = collect(script, num_envs=2, num_steps=64)
            critic, auxiliary_head = make_critic(script), script.make_auxiliary_head()
            script.compute_advantages(batch, critic)
            parameters = [*actor.parameters(), *auxiliary_head.parameters(), *critic.parameters()]
            if stale:
                for parameter in parameters:
                    parameter.grad = torch.ones_like(parameter)
            optimizer = script.make_optimizer(actor, auxiliary_head, critic)
            generator = torch.Generator().manual_seed(3)
            script.auxiliary_update([batch], actor, auxiliary_head, critic, optimizer, generator)
            finals.append(torch.nn.utils.parameters_to_vector(parameters))
        assert torch.equal(finals[0], finals[1])

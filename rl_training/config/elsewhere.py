"""What users of other libraries write in a config, and what it is here."""

from __future__ import annotations

from typing import Any

NAMES_ELSEWHERE = {
    "action_noise": "exploration_noise",
    "batch_size": "minibatch_size",
    "buffer_size": "replay_capacity",
    "callback": "learn(callbacks=[...])",
    "clip_range": "clip_epsilon",
    "clip_range_vf": "value_clip_epsilon",
    "ent_coef": "entropy_coefficient",
    "exploration_final_eps": "exploration_final",
    "exploration_initial_eps": "exploration_initial",
    "gamma": "discount",
    "gradient_steps": "gradient_steps_per_step",
    "learning_starts": "warm_up",
    "lr": "learning_rate",
    "max_grad_norm": "max_gradient_norm",
    "n_envs": "num_envs",
    "n_epochs": "num_epochs",
    "n_steps": "num_steps",
    "net_arch": "hidden_sizes and critic_hidden_sizes",
    "policy_kwargs": "hidden_sizes, critic_hidden_sizes, activation, encoder or network",
    "progress_bar": "learn(progress=True)",
    "sde_sample_freq": "gsde_resample_interval",
    "tensorboard_log": "output_dir, with tracking.tensorboard",
    "train_freq": "train_every",
    "use_sde": "gsde",
    "verbose": "learn(progress=True)",
    "vf_coef": "value_coefficient",
}
"""What users of Stable-Baselines3 try first, and its name here."""


SCHEDULES = {"learning_rate": "learning_rate_schedule", "clip_epsilon": "clip_schedule"}
"""Numbers that other libraries take a schedule for, and the fields that hold it here."""


def schedule_hint(key: str, value: Any) -> str:
    """Return a hint where a number's schedule is given in its place, as other libraries take it."""
    field = SCHEDULES.get(key.rpartition(".")[2])
    is_one = callable(value) or (isinstance(value, str) and value.startswith("lin_"))
    if field is None or not is_one:
        return ""
    return f" Its schedule is a field of its own, beside the number: {field}, constant or linear."

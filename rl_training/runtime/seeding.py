"""Random streams with names, and the process-wide generators as plain data."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def derive_seed(seed: int, stream: str) -> int:
    """Return a seed of 63 bits for a named stream.

    It is another one for every seed and every name, and the same on every machine.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:8], "little") >> 1


def generator(seed: int, stream: str) -> torch.Generator:
    """Return a generator on the CPU for a named stream, such as ``"minibatches"``.

    Streams do not disturb one another.
    """
    return torch.Generator().manual_seed(derive_seed(seed, stream))


def seed_everything(seed: int) -> None:
    """Seed the process-wide generators of Python, numpy and torch, each from its own stream."""
    random.seed(derive_seed(seed, "python"))
    # The legacy generator takes 32 bits.
    np.random.seed(derive_seed(seed, "numpy") % 2**32)
    torch.manual_seed(derive_seed(seed, "torch"))


def global_rng_state() -> dict[str, Any]:
    """Return the state of the process-wide generators of Python, numpy and torch as plain data.

    CUDA's are included once they are in use.
    """
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": {
            "key": np.array(legacy["state"]["key"], dtype=np.uint32),
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
    }
    if _cuda_in_use():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _cuda_in_use() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def set_global_rng_state(state: dict[str, Any]) -> None:
    """Put the process-wide generators where `global_rng_state` found them."""
    python, legacy = state["python"], state["numpy"]
    random.setstate(
        (python["version"], tuple(int(word) for word in python["words"]), python["gauss"])
    )
    np.random.set_state(
        ("MT19937", legacy["key"], legacy["position"], legacy["has_gauss"], legacy["gauss"])
    )
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])


@contextlib.contextmanager
def preserve_global_rng() -> Iterator[None]:
    """Leave the process-wide generators as they were, whatever the block draws.

    Evaluation and logging so change no run.
    """
    state = global_rng_state()
    try:
        yield
    finally:
        set_global_rng_state(state)

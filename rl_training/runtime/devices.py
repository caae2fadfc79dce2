"""Where tensors live and how many threads work on them."""

from __future__ import annotations

import torch

from rl_training.errors import UserError, nearest

_KNOWN = ("auto", "cpu", "cuda", "mps")


class DeviceMissingError(UserError):
    """A device that this machine does not have."""


def resolve_device(name: str | torch.device) -> torch.device:
    """Return the device a config names: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.

    ``auto`` is the CPU, which serves small networks best.

    Raises:
        UserError: an unknown name, or a device this machine does not have.
    """
    text = str(name)
    if text == "auto":
        return torch.device("cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in _KNOWN:
        raise UserError(
            f"unknown device {text!r}.{nearest(text, _KNOWN)} "
            "Allowed: auto, cpu, cuda, cuda:<index>, mps."
        )
    if device.type == "cuda":
        _require_cuda(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceMissingError("device 'mps' is not available on this machine. Use 'cpu'.")
    return device


def device_here(name: str) -> str:
    """Return a device's name, or ``cpu`` where this machine has no such device.

    Raises:
        UserError: an unknown name.
    """
    try:
        return str(resolve_device(name))
    except DeviceMissingError:
        return "cpu"


def set_torch_threads(count: int) -> None:
    """Let torch compute with ``count`` threads; results can differ in the last bit between counts.

    Raises:
        UserError: fewer than one.
    """
    if count < 1:
        raise UserError(f"torch_threads must be at least 1, not {count}.")
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _require_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise DeviceMissingError(
            f"device {str(device)!r} is not available: torch finds no CUDA device here. Use 'cpu'."
        )
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise DeviceMissingError(
            f"device {str(device)!r} does not exist: "
            f"this machine has {torch.cuda.device_count()} CUDA device(s), from cuda:0."
        )

"""A device that is only pretended: tensors that are said to be on ``cuda:0`` and lie in the CPU's
memory, so that where tensors are put can be tested without an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda:0")
_CPU = torch.device("cpu")
_MIXED = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)
_GENERATOR = "Expected a 'cuda' device type for generator but found 'cpu'"
_INDICES = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"

# Beside tensors of a device, a 0-dim tensor of the CPU may stand in arithmetic of two operands, and
# where a number is taken; nowhere else, as in stack or clamp.
_TAKES_NUMBERS = frozenset(
    name
    for each in (
        *("add", "sub", "mul", "div", "rsub", "true_divide", "floordiv", "pow", "remainder"),
        *("eq", "ne", "lt", "le", "gt", "ge", "where", "fill", "masked_fill", "maximum", "minimum"),
        *("radd", "rmul", "rtruediv", "truediv", "rpow", "iadd", "isub", "imul", "itruediv"),
    )
    for name in (each, f"{each}_", f"__{each}__")
)
# ``__set__``: of a parameter's data, which may come from anywhere.
_TAKES_BOTH = frozenset({"copy_", "__set__", "_has_compatible_shallow_copy_type", "is_same_size"})
_TO_NUMPY = frozenset({"numpy", "__array__"})
_GETTERS: dict[Any, Callable[[bool], Any]] = {
    torch.Tensor.device.__get__: lambda there: DEVICE if there else _CPU,
    torch.Tensor.is_cuda.__get__: lambda there: there,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda there: not there,  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda there: 0 if there else -1,
}


class PretendedDevice(TorchFunctionMode):
    """While it is entered, ``device="cuda"`` gives tensors that count as a GPU's.

    What counts is the memory: a view of a tensor there is there, whatever its Python object. What
    PyTorch refuses raises the same errors: tensors of two devices in one operation, a generator of
    the CPU that is to fill a tensor of the device, NumPy arrays of it. All is computed by the CPU,
    and so bit for bit as there.

    It sees what Python calls, and not what one call does inside. Streams, graphs, autocast and
    `torch.compile` are no part of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._there: dict[int, StorageWeakRef] = {}
        """By address: a weak reference keeps it from being used again."""
        self._most = 4096
        self.copies_to_device = 0
        """How many tensors of the CPU were moved there."""

    # ---- what is where

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor counts as the device's."""
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()._cdata in self._there

    def _put(self, results: Any) -> Any:
        """Let every tensor among ``results`` count as the device's."""
        for each in _tensors(results):
            reference = StorageWeakRef(each.untyped_storage())  # type: ignore[no-untyped-call]
            self._there.setdefault(reference.cdata, reference)
        if len(self._there) > self._most:
            kept = {
                place: each
                for place, each in self._there.items()
                if not each.expired()  # type: ignore[no-untyped-call]
            }
            self._there, self._most = kept, 2 * len(kept) + 4096
        return results

    # ---- what is called

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        for each in types:
            if not issubclass(each, Tensor) and hasattr(each, "__torch_function__"):
                with self:  # a TensorDict's own, which asks of its tensors one by one
                    return each.__torch_function__(func, types, args, kwargs)
        if func in _GETTERS:
            return _GETTERS[func](self.holds(args[0]))
        name = getattr(func, "__name__", "")
        if name in _TO_NUMPY and self.holds(args[0]):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        if name in ("to", "cpu", "cuda"):
            return self._moved(func, name, args, kwargs)
        if name in _TAKES_BOTH:
            return func(*args, **kwargs)
        if name in ("__getitem__", "__setitem__"):
            return self._indexed(func, args)
        if kwargs.get("device") is not None:
            return self._made(func, args, kwargs)
        there = self._together(name, args, kwargs)
        result = func(*args, **kwargs)
        return self._put(result) if there else result

    def _together(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call's tensors are the device's; raise where they are of both."""
        tensors = list(_tensors((args, kwargs)))
        here = [each for each in tensors if not self.holds(each)]
        if len(here) == len(tensors):
            return False
        if any(each.ndim or name not in _TAKES_NUMBERS for each in here):
            raise RuntimeError(f"{_MIXED} (when calling {name})")
        _refuse_generator(args, kwargs)
        return True

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call what is told a device: a factory, or a copy of its argument."""
        there = torch.device(kwargs["device"]).type == DEVICE.type
        if there:
            _refuse_generator(args, kwargs)
        result = func(*args, **{**kwargs, "device": _CPU})
        if any(self.holds(each) != there for each in _tensors((args, kwargs))):
            result = _own(result, args)
        return self._put(result) if there else result

    def _moved(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        source = args[0]
        before = self.holds(source)
        there, rest = {"cpu": False, "cuda": True}.get(name), [*args[1:]]
        if name == "to":
            for place, each in enumerate(rest):
                if isinstance(each, Tensor):
                    there, rest[place] = self.holds(each), each
                elif isinstance(each, torch.device | str):
                    there, rest[place] = torch.device(each).type == DEVICE.type, _CPU
            if kwargs.get("device") is not None:
                there = torch.device(kwargs["device"]).type == DEVICE.type
                kwargs["device"] = _CPU
        there = before if there is None else there
        result = source if name == "cuda" else func(source, *rest, **kwargs)
        if there != before:
            result = _own(result, source)
            self.copies_to_device += there
        return self._put(result) if there else result

    def _indexed(self, func: Any, args: Any) -> Any:
        """Read or write a part: places may be the CPU's; what is written at places may not."""
        target, index, *value = args
        there = self.holds(target)
        places = [each for each in _tensors(index) if each.ndim]
        if not there and any(self.holds(each) for each in places):
            raise RuntimeError(_INDICES)
        written = [each for each in _tensors(value) if each.ndim and self.holds(each) != there]
        if places and written:
            raise RuntimeError(f"{_MIXED} (when calling index_put_)")
        result = func(*args)
        return self._put(result) if there else result


def _tensors(values: Any) -> Iterable[Tensor]:
    """Yield the tensors in nested lists, tuples and mappings."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for each in values.values():
            yield from _tensors(each)
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _tensors(each)


def _own(result: Tensor, sources: Any) -> Tensor:
    """Return ``result`` in memory of its own: it may be what it was made from."""
    memories = {each.untyped_storage()._cdata for each in _tensors(sources)}
    return result.clone() if result.untyped_storage()._cdata in memories else result


def _refuse_generator(args: Any, kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(each, torch.Generator) for each in (*args, *kwargs.values())):
        raise RuntimeError(_GENERATOR)

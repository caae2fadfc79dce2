"""Nested state to tensors and JSON, back again without a bit lost, and its digest.

A state is a dict, list or tuple, nested, whose leaves are ``torch.Tensor``, ``numpy.ndarray``,
numpy scalars, ``int``, ``float``, ``bool``, ``str``, ``None`` or, for what is large and grows by
appending, ``Sharded``. Keys are text or, as in the state of a torch optimiser, whole numbers; one
dict has one kind.

In the JSON part a plain value and a list stand for themselves; everything else is an object with
one tag: ``dict``, ``int_dict``, ``tuple``, ``float`` (bits of NaN and the infinities, which JSON
lacks), ``tensor``, ``array`` and ``scalar`` (a name among the tensors) and ``sharded`` (files; see
`rl_training.runtime.shards`). Names are JSON pointers
(RFC 6901), so that a key with ``/`` or ``.`` collides with nothing.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_training.runtime.sharded import Sharded

DTYPES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
}
"""What a state may hold. The names enter the digest, so they never change."""

NUMPY_DTYPES = frozenset(DTYPES.values()) - {"bfloat16"}


class StateError(TypeError):
    """A state holds something that cannot be saved exactly; the message names the place.

    It is a mistake of the code, not of the user.
    """


def encode_state(
    state: Any, write_shards: Callable[[Sharded], Any] | None = None
) -> tuple[dict[str, torch.Tensor], Any]:
    """Split ``state`` into named tensors and a JSON value.

    Args:
        state: what to split.
        write_shards: writes a `Sharded` leaf and returns the JSON value that finds it again; None:
            there is no place for one.

    Returns:
        Tensors on the CPU, contiguous, none sharing memory with another or with the state, and the
        JSON value that names them.

    Raises:
        StateError: a value, key or dtype outside the list above; it names the place.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _Encoder(tensors, write_shards).encode(state, "")


def decode_state(
    tensors: Mapping[str, torch.Tensor],
    structure: Any,
    read_shards: Callable[[Any], Sharded] | None = None,
) -> Any:
    """Rebuild what `encode_state` split. Tensors lie on the CPU; none shares memory with another.

    Args:
        tensors: the first part.
        structure: the second part.
        read_shards: the opposite of ``write_shards``.

    Raises:
        ValueError: the two parts do not belong together.
    """
    return _Decoder(tensors, read_shards).decode(structure)


def digest(state: Any) -> str:
    """Return the SHA-256 of the content of ``state`` as 64 hexadecimal digits.

    It depends on every key, type, dtype, shape and bit, and not on the order of a dict, on memory
    layout or on the device.

    Raises:
        StateError: as `encode_state`.
    """
    hasher = hashlib.sha256()
    _hash(state, "", hasher.update)
    return hasher.hexdigest()


@dataclass(frozen=True)
class _Encoder:
    tensors: dict[str, torch.Tensor]
    write_shards: Callable[[Sharded], Any] | None

    def encode(self, value: Any, place: str) -> Any:
        kind = _kind(value, place)
        if kind in ("none", "bool", "int", "str"):
            return value
        if kind == "float":
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind in ("tensor", "array", "scalar"):
            # The copy also cuts ties: safetensors refuses tensors that share memory.
            tensor = _as_tensor(value, place)
            self.tensors[place] = tensor.clone(memory_format=torch.contiguous_format)
            return {kind: place}
        if kind == "sharded":
            return {kind: self._shards(value, place)}
        if kind in ("list", "tuple"):
            items = [self.encode(item, f"{place}/{index}") for index, item in enumerate(value)]
            return items if kind == "list" else {"tuple": items}
        return {
            kind: {
                str(key): self.encode(item, f"{place}/{_escape(key)}")
                for key, item in value.items()
            }
        }

    def _shards(self, value: Sharded, place: str) -> Any:
        if self.write_shards is None or value.dtype not in DTYPES:
            raise StateError(
                f"the rows at {place or '/'} ({value.dtype}) cannot be saved here: they need files "
                "of their own, and one of the dtypes of tensors."
            )
        return self.write_shards(value)


def _hash(value: Any, place: str, update: Callable[[bytes | memoryview], None]) -> None:
    kind = _kind(value, place)
    if kind in ("dict", "int_dict"):
        _head(update, kind, len(value))
        for key in sorted(value):
            _text(update, str(key))
            _hash(value[key], f"{place}/{_escape(key)}", update)
    elif kind in ("list", "tuple"):
        _head(update, kind, len(value))
        for index, item in enumerate(value):
            _hash(item, f"{place}/{index}", update)
    elif kind in ("tensor", "array", "scalar"):
        tensor = _as_tensor(value, place).clone(memory_format=torch.contiguous_format)
        _head(update, kind, tensor.dim())
        _text(update, DTYPES[tensor.dtype])
        update(struct.pack(f"<{tensor.dim()}q", *tensor.shape))
        update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    elif kind == "sharded":
        _hash_rows(value, update)
    elif kind == "float":
        _head(update, kind, 8)
        update(struct.pack("<d", value))
    else:
        _head(update, kind, 0)
        _text(update, str(value))


def _hash_rows(value: Sharded, update: Callable[[bytes | memoryview], None]) -> None:
    """Cover the rows and their numbers, and not how they are cut into files."""
    _head(update, "sharded", len(value.row_shape))
    _text(update, DTYPES[value.dtype])
    update(struct.pack(f"<{len(value.row_shape)}q", *value.row_shape))
    update(struct.pack("<2q", value.start, value.stop))
    for piece in value.pieces():
        update(piece.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _head(update: Callable[[bytes | memoryview], None], kind: str, size: int) -> None:
    """Every part starts with its kind and its length, so that no two states give the same bytes."""
    _text(update, kind)
    update(struct.pack("<q", size))


def _text(update: Callable[[bytes | memoryview], None], text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    update(struct.pack("<q", len(data)) + data)


_PLAIN_KINDS = {
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    tuple: "tuple",
    Sharded: "sharded",
}


def _kind(value: Any, place: str) -> str:
    # Exact types: an IntEnum or a named tuple would come back as something else. (An OrderedDict
    # may come back as a dict.)
    kind = _PLAIN_KINDS.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, dict):
        return _dict_kind(value, place)
    if isinstance(value, torch.Tensor):
        return "tensor"
    if type(value) in (np.ndarray, np.memmap):
        return "array"
    if isinstance(value, np.generic):
        return "scalar"
    raise StateError(
        f"the state at {place or '/'} is a {type(value).__name__}, which cannot be saved."
    )


def _dict_kind(value: dict[Any, Any], place: str) -> str:
    kinds = {type(key) for key in value}
    if kinds <= {str}:
        return "dict"
    if kinds == {int}:
        return "int_dict"
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise StateError(
        f"the state at {place or '/'} has keys of type {names}; "
        "allowed: all text, or all whole numbers."
    )


def _as_tensor(value: Any, place: str) -> torch.Tensor:
    """Return a leaf as a plain CPU tensor, sharing memory where it can."""
    if isinstance(value, torch.Tensor):
        if (
            value.layout != torch.strided
            or value.device.type == "meta"
            or value.dtype not in DTYPES
        ):
            raise StateError(
                f"the tensor at {place or '/'} ({value.dtype}, {value.layout}, {value.device}) "
                "cannot be saved."
            )
        return value.detach().cpu().resolve_conj().resolve_neg()
    if value.dtype.name not in NUMPY_DTYPES or not value.dtype.isnative:
        raise StateError(
            f"the array at {place or '/'} has dtype {value.dtype}, which cannot be saved."
        )
    # numpy allows negative strides and read-only memory, torch neither.
    return torch.from_numpy(np.array(value, copy=True, order="C"))


def _escape(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True)
class _Decoder:
    tensors: Mapping[str, torch.Tensor]
    read_shards: Callable[[Any], Sharded] | None

    def decode(self, structure: Any) -> Any:
        if structure is None or isinstance(structure, bool | int | float | str):
            return structure
        if isinstance(structure, list):
            return [self.decode(item) for item in structure]
        if not isinstance(structure, dict) or len(structure) != 1:
            raise ValueError(
                "a node of the structure is neither a value, a list nor an object with one tag"
            )
        ((tag, content),) = structure.items()
        if tag not in _DECODERS:
            raise ValueError(f"the structure has an unknown tag {tag!r}")
        return _DECODERS[tag](self, content)

    def take(self, name: Any) -> torch.Tensor:
        if not isinstance(name, str) or name not in self.tensors:
            raise ValueError(f"there is no tensor {name!r}")
        # A copy lies where torch's allocator puts it, aligned as in the run that saved it, and
        # shares memory with nothing.
        return self.tensors[name].clone()

    def shards(self, content: Any) -> Sharded:
        if self.read_shards is None:
            raise ValueError("there are no files for rows here")
        return self.read_shards(content)


def _decode_float(_: _Decoder, content: Any) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(content))[0]
    return value


_DECODERS: dict[str, Callable[[_Decoder, Any], Any]] = {
    "dict": lambda decoder, content: {key: decoder.decode(item) for key, item in content.items()},
    "int_dict": lambda decoder, content: {
        int(key): decoder.decode(item) for key, item in content.items()
    },
    "tuple": lambda decoder, content: tuple(decoder.decode(item) for item in content),
    "float": _decode_float,
    "tensor": _Decoder.take,
    "array": lambda decoder, content: decoder.take(content).numpy(),
    "scalar": lambda decoder, content: decoder.take(content).numpy()[()],
    "sharded": _Decoder.shards,
}

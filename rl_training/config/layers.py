"""Config files laid one over the other, remembering which file each key came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from rl_training.config.coercion import ConfigKeyError
from rl_training.config.presets import find_preset, overlay_mistake
from rl_training.config.yaml_text import parse_yaml
from rl_training.errors import UserError
from rl_training.registry import ALGORITHMS, algorithm_class


@dataclass(kw_only=True)
class Layers:
    """Nested plain data and, for every dotted key in it, the source that set it last."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    def add(self, data: Mapping[str, Any], source: str) -> None:
        """Lay ``data`` over what is there: mappings merge at any depth, the rest is replaced."""
        if source not in self.sources:
            self.sources.append(source)
        self._merge(self.data, data, source, prefix="")

    def claim(self, keys: Iterable[str], source: str) -> None:
        """Note that another source has set some keys since."""
        for key in keys:
            self.origins[key] = source
            if source not in self.sources:
                self.sources.append(source)

    def add_file(self, name_or_path: str | PathLike[str]) -> None:
        """Lay a YAML file or a preset over what is there.

        Raises:
            UserError: it does not exist, cannot be read, is not YAML, or is not a mapping.
        """
        path = find_preset(name_or_path)
        try:
            data = parse_yaml(path.read_text(encoding="utf-8"), source=str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}.") from error
        if not isinstance(data, Mapping | None):
            raise UserError(f"{path}: expected keys and values, not {type(data).__name__}.")
        self.add(data or {}, str(path))

    def located(self, error: UserError) -> UserError:
        """Return ``error`` with the source of its key in front; an overlay of the zoo that is for
        other algorithms is said to be the mistake, whatever it led to.
        """
        key = getattr(error, "key", "")
        message = self._overlay_mistake() or f"{self.source_of(key)}: {error}"
        return ConfigKeyError(key, message) if key else UserError(message)

    def _overlay_mistake(self) -> str:
        algo = self.data.get("algo")
        if not isinstance(algo, str) or algo not in ALGORITHMS:
            return ""
        fields = [each.name for each in dataclasses.fields(algorithm_class(algo).Config)]
        for source in self.sources:
            mistake = overlay_mistake(source, self.data, fields)
            if mistake:
                return f"{source}: {mistake}"
        return ""

    def source_of(self, key: str) -> str:
        """Return the source that set a dotted key, or the group around it; else all sources."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = re.sub(r"(^|\.)[^.\[]*$|\[\d+\]$", "", key)
        return ", ".join(self.sources)

    def _merge(
        self, base: dict[str, Any], overlay: Mapping[str, Any], source: str, prefix: str
    ) -> None:
        for key, value in overlay.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                if not isinstance(base.get(key), dict):
                    base[key] = {}
                self._merge(base[key], value, source, prefix=f"{name}.")
            elif value is None and isinstance(base.get(key), dict):
                continue  # a section whose lines are all commented out changes nothing
            else:
                base[key] = value
            self.origins[name] = source

"""The package's public names exist, and naming them imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rl_training import runtime


def test_every_public_name_can_be_had() -> None:
    for name in runtime.__all__:
        assert getattr(runtime, name).__name__ == name
    assert set(runtime.__all__) == set(runtime._MODULES)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = runtime.nothing


def test_importing_the_package_imports_no_torch() -> None:
    program = "import sys, rl_training.runtime; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)

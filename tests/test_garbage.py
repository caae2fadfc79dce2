from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rl_training.garbage import import_module

COUNTED = """
import gc
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
import rl_training.recipes.ppg
import rl_training.experiments.worker
assert gc.isenabled() and not gc.get_freeze_count()
# What the interpreter starts with is small; going through torch would be a collection of all.
print(collections.count(2))
"""
PROGRAM = """
import gc, sys
from rl_training import registry
from rl_training.garbage import freeze_imports, frozen_garbage
with frozen_garbage():
    assert gc.get_freeze_count() > 0
    with frozen_garbage():
        pass
    assert gc.get_freeze_count() > 0
assert not gc.get_freeze_count()
freeze_imports()
registry.algorithm_class("ppo")
imported = gc.get_freeze_count()
class Resource:
    def __del__(self, write=sys.stdout.write):
        write("finalised")
resource = Resource()
resource.itself = resource
registry.algorithm_class("ppo")  # asked for again, after a training
with frozen_garbage():
    assert gc.get_freeze_count() == imported > 500_000
assert gc.get_freeze_count() == imported
"""


def answer(code: str) -> str:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_no_collection_goes_through_what_is_imported() -> None:
    assert int(answer(COUNTED)) == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_an_import_leaves_collection_as_it_was(enabled: bool) -> None:
    try:
        if not enabled:
            gc.disable()
        with pytest.raises(ModuleNotFoundError):
            import_module("no_such_module_anywhere")
        assert import_module("json").__name__ == "json"
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_only_a_program_freezes_its_imports_for_good_and_it_finalises_what_it_makes_later() -> None:
    assert answer(PROGRAM) == "finalised"

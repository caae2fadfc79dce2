"""What is read from a run is data: eval and resume never unpickle it, nor compile or execute it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.processes import Process, run_source
from tests.reliability.conftest import Reference
from tests.reliability.runs import PATIENCE, assert_same_training, checkpoints, environment

NAME = "ppg_cartpole_normalized"

# What libraries execute of their own (imports, dataclasses, named tuples) happens in the warm-up,
# but for annotations, which `typing` compiles whenever the flags of a command are read.
GUARDED = """
import io, pickle, sys
from rl_training import cli

warm, run, test = sys.argv[1:]
for words in (["eval", warm, "--episodes", "1"], ["resume", warm]):
    assert cli.main(words) == 0
armed = True
FORBIDDEN = {"pickle.find_class", "marshal.loads", "marshal.load", "exec", "compile", "os.system",
             "os.exec", "os.fork", "code.__new__", "function.__new__"}

def refuse(event, arguments):
    if armed and event in FORBIDDEN and sys._getframe(1).f_globals.get("__name__") != "typing":
        raise SystemExit(f"refused {event} {str(arguments)[:200]}")

class Planted:
    def __reduce__(self):
        return print, ("unpickled",)

poison = pickle.dumps(Planted())
sys.addaudithook(refuse)
if test == "control":
    pickle.loads(poison)
for words in (["eval", run, "--episodes", "2", "--json"], ["resume", run]):
    assert cli.main(words) == 0
armed = False
print("guarded to the end")
"""


def guarded(tmp_path: Path, reference: Path, test: str) -> tuple[Path, str]:
    """Eval and resume a copy of the run, from its last checkpoint but one, under an audit hook."""
    copies = [shutil.copytree(reference, tmp_path / name) for name in ("warm", "run")]
    for run in copies:
        shutil.rmtree(checkpoints(run)[-1])
    words = [GUARDED, *map(str, copies), test]
    with Process(run_source, *words, environment=environment()) as process:
        return copies[1], "".join(process.communicate(timeout=3 * PATIENCE))


def test_eval_and_resume_execute_nothing_they_read(tmp_path: Path, reference: Reference) -> None:
    run, said = guarded(tmp_path, reference(NAME), "test")
    assert "refused" not in said
    assert said.count("guarded to the end") == 1, said
    assert_same_training(run, reference(NAME))


@pytest.mark.slow
def test_the_guard_would_notice(tmp_path: Path, reference: Reference) -> None:
    _, said = guarded(tmp_path, reference(NAME), "control")
    assert "refused pickle.find_class" in said
    assert "guarded to the end" not in said

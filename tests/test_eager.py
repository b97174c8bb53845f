"""The stand-in for torch's compiler: nothing is imported until something is compiled."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOADED = "print('torch._dynamo.utils' in sys.modules)"


def said(code: str) -> list[str]:
    """Return what `code` prints in a process where the stand-in stands."""
    before = (
        "import inspect, sys\nfrom grader.worker.eager import leave_compiler\nleave_compiler()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{before}import torch\n{code}\n"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_every_optimiser_steps_without_the_compiler():
    code = """
for name, kind in vars(torch.optim).items():
    if not isinstance(kind, type) or name in ("Optimizer", "SparseAdam"):
        continue
    weight = torch.nn.Parameter(torch.ones(2, 2))
    made = kind([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1.0)
    def closure():
        made.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss
    made.step(closure)
    schedule.step()
    made.load_state_dict(made.state_dict())
    print(name if bool((weight != 1).any()) else f"{name}-stands-still")
"""
    *names, loaded = said(code + LOADED)
    assert {"AdamW", "SGD", "LBFGS", "Muon"} <= set(names)
    assert loaded == "False"


def test_whoever_walks_through_the_modules_does_not_load_it():
    assert said(f"inspect.getmodule(inspect.currentframe())\n{LOADED}") == ["False"]


# What holds with the real module whoever touches it first, and in which way.
SAME = [
    "import torch._dynamo.config as c; from torch._dynamo import eval_frame\n"
    "print(eval_frame.config is c)",
    "from torch._dynamo.exc import Unsupported as found\n"
    "print(found is torch._dynamo.exc.Unsupported)",
    "import torch._dynamo.eval_frame as e\n"
    "print(isinstance(torch.compile(torch.nn.Linear(1, 1)), e.OptimizedModule))",
    "import torch._dynamo.backends.registry as r; from torch._dynamo import register_backend\n"
    "print(r.register_backend is register_backend and r.__spec__.name == r.__name__)",
    "from importlib.util import find_spec\n"
    "print(torch._dynamo.__file__ == find_spec('torch._dynamo').origin)",
    "from torch._dynamo import *\nprint(callable(disable))",
    "print('OptimizedModule' in dir(torch._dynamo))",
    "print(type(torch._dynamo.disable(torch.nn.Linear(1, 1))) is not torch.nn.Linear)",
    "torch.compile\nmark = torch.optim.Optimizer.zero_grad.__wrapped__\n"
    "torch._dynamo.reset(); torch.optim.SGD([torch.ones(1)]).zero_grad()\n"
    "print(getattr(mark, '__dynamo_disable') is not mark)",
]


@pytest.mark.slow  # each imports the compiler, which takes seconds
@pytest.mark.parametrize("code", SAME)
def test_the_compiler_is_one_module_however_it_is_reached(code):
    step = "torch.optim.SGD([torch.ones(1)]).zero_grad()\n"
    assert said(step + code) == ["True"]


@pytest.mark.parametrize(
    "wish",
    [
        "torch.compile(torch.sin, backend='eager')(torch.ones(1))",
        "import torch._dynamo.config",
        "from torch._dynamo.utils import counters",
        "torch._dynamo.reset()",
    ],
)
def test_whoever_wants_the_compiler_gets_it(wish):
    step = (
        "p = torch.nn.Parameter(torch.ones(1))\np.grad = torch.ones(1)\n"
        "torch.optim.AdamW([p]).step()"
    )
    assert said(f"{step}\n{wish}\n{LOADED}\n{step}\nprint(torch._dynamo.__file__ is None)") == [
        "True",
        "False",
    ]

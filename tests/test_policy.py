"""Which names are a breach and of which part, and what is flagged; honest oddities are neither."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from grader.intake import policy
from grader.intake.policy import Breach, Inspected
from grader.intake.staging import Staged

TASKS = ("masks.py", "attention.py", "residual.py", "encoder.py", "decoder.py", "training.py")
SDPA = "torch.nn.functional.scaled_dot_product_attention"
MHA = "torch.nn.MultiheadAttention"


def inspected(weights: tuple[str, ...] = (), given: str = "", **files: str) -> Inspected:
    """Inspect sources that are named by module: `attention="..."`."""
    staged = {f"transformer/{n.replace('__', '/')}.py": t.encode() for n, t in files.items()}
    return policy.inspect(
        Staged(
            "name", Path(), staged, "", [], {}, TASKS,
            stretch=("positions.py",), given=frozenset({f"transformer/{given}.py"}),
            weights=weights,
        )
    )  # fmt: skip


def breaches(**files: str) -> list[tuple[str, str, str]]:
    return [(b.part, f"{b.file}:{b.line}", b.name) for b in inspected(**files).breaches]


def codes(**files: str) -> list[str]:
    return [flag.code for flag in inspected(**files).flags]


# Spelling: what it is made of, the line it is judged on, the name it is judged as.
SPELLINGS = {
    "import torch.nn.functional as F\nF.scaled_dot_product_attention(1)": (2, SDPA),
    "import torch\ntorch.nn.functional.scaled_dot_product_attention(1)": (2, SDPA),
    "from torch.nn.functional import scaled_dot_product_attention": (1, SDPA),
    "from torch.nn import functional as G\nx = G.scaled_dot_product_attention": (2, SDPA),
    "from torch.nn.functional import *\nscaled_dot_product_attention(1)": (2, SDPA),
    "import torch.nn as x\nx.MultiheadAttention(2, 1)": (2, MHA),
    "from torch import nn\ny = nn\nz = y\nz.MultiheadAttention": (4, MHA),
    "from torch import nn\nclass A(nn.MultiheadAttention): pass": (2, MHA),
    "from torch import nn\ngetattr(nn, 'MultiheadAttention')": (2, MHA),
    "import importlib\nimportlib.import_module('torch.nn').MultiheadAttention": (2, MHA),
    "__import__('torch').nn.MultiheadAttention": (1, MHA),
    "def f():\n    global m\n    import torch.nn as m\n"
    "def g(): return m.MultiheadAttention": (4, MHA),
    "import functools\nfrom torch import nn\nfunctools.partial(nn.MultiheadAttention, 2)": (3, MHA),
    "try:\n    from torch.nn import MultiheadAttention as M\nexcept ImportError:\n"
    "    class M: pass": (2, MHA),
    "import torch\ntorch._C._nn.scaled_dot_product_attention": (
        2, "torch._C._nn.scaled_dot_product_attention"),
    "import torch\ntorch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default": (
        2, "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default"),
    "import torch\ntorch._native_multi_head_attention": (2, "torch._native_multi_head_attention"),
    "import torch\ntorch._transformer_encoder_layer_fwd": (
        2, "torch._transformer_encoder_layer_fwd"),
    "from torch.nn.functional import multi_head_attention_forward": (
        1, "torch.nn.functional.multi_head_attention_forward"),
    "from torch.nn.attention.flex_attention import flex_attention": (
        1, "torch.nn.attention.flex_attention.flex_attention"),
    "from torch.nn.modules.activation import MultiheadAttention": (
        1, "torch.nn.modules.activation.MultiheadAttention"),
    "from torch.nn.modules import transformer\ntransformer.TransformerEncoderLayer": (
        2, "torch.nn.modules.transformer.TransformerEncoderLayer"),
    "from torch.nn import Transformer": (1, "torch.nn.Transformer"),
    "from torch.nn import TransformerDecoder as D\nD": (1, "torch.nn.TransformerDecoder"),
    "import torch.nn.functional as F\nF.torch.nn.MultiheadAttention": (2, MHA),
}  # fmt: skip


@pytest.mark.parametrize("source", SPELLINGS)
def test_every_spelling_is_a_breach(source: str) -> None:
    line, name = SPELLINGS[source]
    found = breaches(attention=source)
    assert found[0] == ("attention", f"attention.py:{line}", name)
    assert {(part, named) for part, _, named in found} == {("attention", name)}


def test_cause_is_a_sentence() -> None:
    (breach,) = inspected(decoder="\nfrom torch.nn import MultiheadAttention").breaches
    expected = f"decoder.py, line 2 uses {MHA}, which the lab asks you to write."
    assert breach.cause == expected


# Own names that sound alike, and everything else that a right submission may well contain.
HONEST = """
'''A docstring about nn.MultiheadAttention and F.scaled_dot_product_attention.'''
from __future__ import annotations
import copy, functools, itertools, logging, math, random, sys, time, typing, warnings
import os  # left over
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.activation import GELU
from torch.nn.modules.transformer import _get_clones
from torch.types import Device
from torch.utils.data import DataLoader
from . import masks
from .masks import *
torch.manual_seed(7)
torch.backends.cudnn.deterministic = True
NAMES = {"relu": F.relu, "gelu": F.gelu}
# nn.TransformerEncoder would be forbidden

@dataclass(frozen=True)
class Settings:
    width: int = 32
    names: list = field(default_factory=list)
    def __post_init__(self):
        object.__setattr__(self, "half", self.width // 2)

def scaled_dot_product_attention(query, key, value, mask=None):
    scores = torch.einsum("bhtk,bhsk->bhts", query, key) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ value

class MultiheadAttention(nn.Module):
    attend = staticmethod(scaled_dot_product_attention)
    def __init__(self, width):
        super().__init__()
        self.scaled_dot_product_attention = scaled_dot_product_attention
        self.fused = nn.Linear(width, 3 * width)
        self.fused.weight.data.normal_(0, 0.02)
        nn.init.xavier_uniform_(self.fused.weight)
    def forward(self, x):
        q, k, v = self.fused(x).chunk(3, dim=-1)
        return self.scaled_dot_product_attention(q, k, v)

class TransformerEncoder(nn.Module):
    def __init__(self, count):
        super().__init__()
        layer = MultiheadAttention(32)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(count))
        for name, parameter in self.named_parameters():
            parameter.requires_grad = True
    def multi_head_attention_forward(self, x, name="forward"):
        return getattr(self, name)(x) if hasattr(self, name) else getattr(x, "T", x)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad

def train(model, batches, recipe):
    model.train()
    losses = []
    optimizer = getattr(torch.optim, "AdamW")(model.parameters(), lr=recipe.learning_rate)
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", enabled=False):
            loss = model(*batch)
        loss.backward()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            print("not finite", file=sys.stderr)
    model.eval()
    table = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    return losses, sys.maxsize, table

if __name__ == "__main__":
    import subprocess
    assert torch.allclose(MultiheadAttention(2)(1), nn.MultiheadAttention(2, 1)(1))
    print(open("notes.txt").read())
"""


def test_honest_oddities_are_neither_breach_nor_flag() -> None:
    found = inspected(attention=HONEST, training=HONEST, masks="import torch\n", __init__="")
    assert (found.breaches, found.flags) == ([], [])


QUIET = {
    "import torch.nn as nn\nx = torch = 1\nx = x.view(1)\n" + "x = x.T\n" * 50: "reassigned",
    "if TYPE_CHECKING:\n    from torch.nn import Transformer\nx: Transformer": "types only",
    "if typing.TYPE_CHECKING:\n    import torch\n    torch.nn.Transformer": "types only",
    "from torch import nn\ndef f(x: nn.Transformer = None) -> nn.MultiheadAttention: ...": "types",
    "from torch import nn\nx: nn.Transformer = None": "types",
    "from .tools import Transformer, MultiheadAttention\nTransformer()": "own",
    "from torch.nn import *\nclass Transformer: pass\nTransformer()": "own beside a star",
    "def f(scaled_dot_product_attention): return scaled_dot_product_attention": "parameter",
    "import numpy as np\nnp.MultiheadAttention": "not of torch",
    "self.attention.scaled_dot_product_attention(1)": "attribute of something else",
    "x = 'nn.Transformer'  # F.scaled_dot_product_attention": "words",
}


@pytest.mark.parametrize("source", QUIET, ids=QUIET.values())
def test_what_only_sounds_forbidden_is_neither_breach_nor_flag(source: str) -> None:
    found = inspected(attention=source)
    assert (found.breaches, found.flags) == ([], [])


def test_trials_below_the_main_guard_count_when_the_guard_is_bent() -> None:
    guarded = "from torch import nn\nif __name__ == '__main__':\n    nn.MultiheadAttention"
    assert breaches(encoder=guarded) == []
    bent = "__name__ = '__main__'\n" + guarded
    assert breaches(encoder=bent) == [("encoder", "encoder.py:4", MHA)]


def test_solution_and_starter_show_nothing() -> None:
    root = Path(__file__).resolve().parent.parent
    for tree in ("solution", "starter"):
        folder = root / tree / "transformer"
        files = {p.stem: p.read_text("utf-8") for p in folder.glob("*.py") if p.name in TASKS}
        found = inspected(**files)
        assert (found.breaches, found.flags) == ([], [])


# Whose breach it is ------------------------------------------------------------------------------

TOOLS = """
from torch import nn
Core = nn.MultiheadAttention
class Fast:
    def __init__(self): self.core = Core(2, 1)
def harmless(x): return x
"""


def test_names_in_an_own_file_are_flagged_and_left_to_the_watch() -> None:
    found = inspected(tools=TOOLS, encoder="from .tools import Fast\nx = Fast()")
    assert found.breaches == []
    assert {flag.code for flag in found.flags} == {"forbidden_name"}
    text = f"tools.py, line 3 names {MHA}; whether a part uses it shows when it runs"
    assert text in [flag.message for flag in found.flags]


def test_breach_in_a_stretch_file_is_its_own() -> None:
    source = "from torch import nn\nclass Scheme(nn.TransformerEncoderLayer): pass"
    name = "torch.nn.TransformerEncoderLayer"
    found = breaches(positions=source, encoder="from .positions import Scheme")
    assert found == [("positions", "positions.py:2", name)]


def test_original_given_files_are_not_judged() -> None:
    source = "import os, torch\nos.environ\ntorch.nn.Transformer"
    found = inspected(checkpoint=source, masks="from . import checkpoint", given="checkpoint")
    assert (found.breaches, found.flags) == ([], [])


# Flags -------------------------------------------------------------------------------------------

NUMBERS = ", ".join(f"0.{i}" for i in range(211))
FLAGGED = {
    "import torch\ngetattr(torch, input_name())": "dynamic_name",
    "from torch import nn\nn = 'Multi'\nn += 'headAttention'\ngetattr(nn, n)": "dynamic_name",
    "from torch import nn\ngetattr(nn, 'noitnettAdaehitluM'[::-1])": "dynamic_name",
    "from torch import nn\nvars(nn)[chr(77)]": "dynamic_name",
    "import torch.nn as nn\n[k for k in dir(nn)]": "dynamic_name",
    "import importlib\nimportlib.import_module(chr(116))": "dynamic_name",
    "__import__(chr(116))": "dynamic_name",
    "exec('x = 1')": "code_execution",
    "e = eval\ne('1')": "code_execution",
    "compile('x', 'y', 'exec')": "code_execution",
    "import marshal": "code_execution",
    "import pickle": "code_execution",
    "import ctypes": "code_execution",
    "import socket": "network",
    "from urllib import request\nrequest.urlopen": "network",
    "import torch\ntorch.hub.load('a', 'b')": "network",
    "open('weights')": "file_access",
    "import torch\ntorch.load('weights.pt')": "file_access",
    "import numpy as np\nnp.load('x')": "file_access",
    "from pathlib import Path\nPath('x').read_bytes()": "file_access",
    "import os\nos.environ": "system_access",
    "from os import getcwd\ngetcwd()": "system_access",
    "import sys\nsys.argv": "system_access",
    "import torch\ntorch.os.environ": "system_access",
    "import subprocess": "system_access",
    "import threading\nthreading.Thread": "system_access",
    "import sys\nsys._getframe(1)": "frame_inspection",
    "import gc\ngc.get_objects()": "frame_inspection",
    "import inspect\ninspect.stack()": "frame_inspection",
    "try: x\nexcept Exception as e: e.__traceback__.tb_frame": "frame_inspection",
    "object.__subclasses__()": "frame_inspection",
    "import torch\ntorch.allclose = lambda *a: True": "patched_library",
    "import torch\ntorch.Tensor.__eq__ = None": "patched_library",
    "import torch\nsetattr(torch, 'equal', None)": "patched_library",
    "import builtins\nbuiltins.isinstance = None": "patched_library",
    "import torch\ntorch.__dict__['equal'] = None": "patched_library",
    "import math\ndel math.sqrt": "patched_library",
    "import torch\ntorch.ops.aten.add": "torch_internals",
    "import torch\ntorch._C._foo": "torch_internals",
    "class T:\n    def __torch_function__(cls): pass": "torch_internals",
    "import transformers\ntransformers.AutoModel": "foreign_library",
    f"W = [{NUMBERS}]": "large_literal",
    f"W = {10**90}": "large_literal",
    f"W = '{'QUJD' * 120}'": "large_literal",
    f"W = {bytes(range(128)) * 4!r}": "large_literal",
}


@pytest.mark.parametrize("source", FLAGGED)
def test_flagged(source: str) -> None:
    found = inspected(training=source)
    assert FLAGGED[source] in {flag.code for flag in found.flags}
    assert found.breaches == []
    assert all(flag.message.startswith("training.py") for flag in found.flags)


def test_flag_says_where_and_what() -> None:
    (flag,) = inspected(training="import torch\n\ntorch.equal = all").flags
    assert flag.message == "training.py, line 3 changes torch"
    (flag,) = inspected(training="import torch\ntorch.load('x')").flags
    assert flag.message == "training.py, line 2 reads files: torch.load"


def test_shipped_weights_are_flagged() -> None:
    found = inspected(weights=("transformer/w.pt",), masks="")
    expected = [("weights_shipped", "transformer/w.pt came with the code")]
    assert [(f.code, f.message) for f in found.flags] == expected


def test_syntax_error_is_left_to_the_import() -> None:
    found = inspected(masks="def f(:\n", attention="x = '\\d'\n")
    assert (found.breaches, found.flags) == ([], [])


@pytest.mark.parametrize(
    "source",
    [
        "x = " + "-" * 20_000 + "1",
        "x = " + "(" * 500 + "1" + ")" * 500,
        "x = " + " + ".join("a" * 1 for _ in range(20_000)),
        "x = " + "a" + ".b" * 20_000,
        "x = '" + "\0" * 100 + "'",
        "\0",
        "a0 = 'x'\n" + "\n".join(f"a{i} = a{i - 1} + a{i - 1}" for i in range(1, 400)),
        "\n".join(f"b{i} = b{i + 1}[0], b{(i * 7) % 90}, b{(i * 11) % 90}" for i in range(90)),
        "a = b\nb = a\na.MultiheadAttention",
    ],
    ids=[
        "minus",
        "brackets",
        "sum",
        "attributes",
        "null",
        "only null",
        "doubling",
        "knot",
        "circle",
    ],
)
def test_hostile_source_neither_stops_nor_delays(source: str) -> None:
    begun = time.process_time()
    found = inspected(masks=source)
    assert found.breaches == []
    assert {flag.code for flag in found.flags} <= {"unreadable_source"}
    assert time.process_time() - begun < 5


# Each grows with its size; the look at ten times as much may take ten times as long, not more.
GROWING = {
    "helpers": lambda n: {
        "helper": "from torch import nn\n"
        + "".join(f"def f{i}():\n    return nn.Transformer\n" for i in range(n)),
        **{
            name.removesuffix(".py"): "from . import helper\n"
            + "".join(f"helper.f{i}\n" for i in range(n))
            for name in TASKS
        },
    },
    "aliases": lambda n: {
        "masks": "import torch as a0\n" + "".join(f"a{i + 1} = a{i}\n" for i in range(n))
    },
    "one name": lambda n: {
        "masks": "".join(f"import torch.a{i} as x\nx = x.nn\n" for i in range(n))
    },
    "stars": lambda n: {"masks": "".join(f"from torch.a{i} import *\nb{i}\n" for i in range(n))},
    "types only": lambda n: {"masks": "if TYPE_CHECKING:\n" + "    x\n" * 20 * n},
    "tables": lambda n: {"masks": "x = " + "[" * 80 + "1," * 20 * n + "]" * 80},
    "calls": lambda n: {"masks": "import torch\n" + "getattr(torch, x)\n" * n},
}


@pytest.mark.parametrize("kind", GROWING)
def test_time_grows_with_the_source_and_no_faster(kind: str) -> None:
    def seconds(size: int) -> float:
        files = GROWING[kind](size)
        begun = time.process_time()
        inspected(**files)
        return time.process_time() - begun

    seconds(10)
    small = min(seconds(300 + extra) for extra in range(3))
    assert seconds(3000) < 40 * small + 0.2


# What a worker says it saw ------------------------------------------------------------------------

FLASH = "torch.ops.aten._scaled_dot_product_flash_attention"


def sighted(**sightings: Any) -> Inspected:
    names = ("attention", "encoder", "positions", "tools", "models")
    files = {f"transformer/{name}.py": b"" for name in names}
    staged = Staged(
        "name", Path(), files, "", [], {}, TASKS, stretch=("positions.py",),
        given=frozenset({"transformer/models.py"}),
    )  # fmt: skip
    return policy.sighted(sightings, staged)


def lines(*places: str) -> list[dict[str, Any]]:
    pairs = [place.split(":") for place in places]
    return [{"file": f"transformer/{file}.py", "line": int(line)} for file, line in pairs]


@pytest.mark.parametrize(
    ("frames", "file", "line", "part"),
    [
        (lines("attention:3", "encoder:4"), "attention.py", 3, "attention"),
        (lines("tools:5", "encoder:4", "attention:1"), "tools.py", 5, "encoder"),
        (lines("models:7", "encoder:4"), "models.py", 7, "encoder"),
        (lines("positions:2", "attention:4"), "positions.py", 2, "positions"),
        (lines("models:7"), "models.py", 7, ""),
        (lines("oracle:1"), "", 0, ""),
        ([], "", 0, ""),
    ],
)
def test_breach_belongs_to_the_innermost_line_of_a_task(
    frames: list[dict[str, Any]], file: str, line: int, part: str
) -> None:
    found = sighted(calls=[{"name": FLASH, "frames": frames}])
    assert found.breaches == [Breach(file, line, FLASH, part)]


def test_watch_that_was_undone_is_flagged() -> None:
    found = sighted(
        oddities=[
            {"event": "gc.get_objects", "file": "transformer/tools.py", "line": 3},
            {"event": "watch", "file": "", "line": 0},
            {"event": "made up", "file": "transformer/tools.py", "line": 3},
            {"event": "gc.get_objects", "file": "/etc/passwd", "line": 3},
        ]
    )
    assert [(flag.code, flag.message) for flag in found.flags] == [
        ("frame_inspection", "tools.py, line 3 looks into running code: gc.get_objects"),
        ("patched_library", "functions of torch that are watched were replaced while the code ran"),
    ]


@pytest.mark.parametrize(
    "sightings",
    [
        None, 3, [], {"calls": 3}, {"calls": [3]}, {"oddities": [[]]},
        {"oddities": [{"event": {}, "file": [], "line": "x"}]}, {"more": True},
    ],
)  # fmt: skip
def test_sightings_of_another_form_are_nothing(sightings: Any) -> None:
    staged = Staged("name", Path(), {"transformer/masks.py": b""}, "", [], {}, TASKS)
    assert policy.sighted(sightings, staged) == Inspected([], [])


def test_call_of_another_form_still_is_a_breach() -> None:
    found = sighted(calls=[{"name": "<b>x</b>", "frames": [{"file": 3}, {"line": []}, 5]}])
    assert found.breaches == [Breach("", 0, "ready-made attention", "")]
    words = "your code uses ready-made attention, which the lab asks you to write."
    assert found.breaches[0].cause == words

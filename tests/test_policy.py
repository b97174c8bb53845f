"""Which names are a breach and of which part, and what is flagged; honest oddities are neither."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from grader.intake import policy
from grader.intake.policy import Inspected
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
    "from torch import nn\ngetattr(nn, 'Multi' + 'head' + 'Attention')(2, 1)": (2, MHA),
    "from torch import nn\nn = 'head'\ngetattr(nn, f'Multi{n}Attention')": (3, MHA),
    "from torch import nn\ngetattr(nn, ''.join(['Multihead', 'Attention']))": (2, MHA),
    "import importlib\nimportlib.import_module('torch.nn').MultiheadAttention": (2, MHA),
    "__import__('torch').nn.MultiheadAttention": (1, MHA),
    "import sys\nsys.modules['torch.nn'].MultiheadAttention": (2, MHA),
    "import sys\nsys.modules.get('torch.nn').MultiheadAttention": (2, MHA),
    "from torch import nn\nnn.__dict__['MultiheadAttention']": (2, MHA),
    "from torch import nn\nvars(nn)['MultiheadAttention']": (2, MHA),
    "from torch import nn\nvars(nn).get('MultiheadAttention')": (2, MHA),
    "from torch import nn\nnn.__getattribute__('MultiheadAttention')": (2, MHA),
    "from torch import nn\nglobals()['nn'].MultiheadAttention": (2, MHA),
    "import operator, torch\noperator.attrgetter('nn.MultiheadAttention')(torch)": (2, MHA),
    "import pkgutil\npkgutil.resolve_name('torch.nn:MultiheadAttention')": (2, MHA),
    "from torch import nn\nfor m in (nn,):\n    m.MultiheadAttention": (3, MHA),
    "from torch import nn\n[m.MultiheadAttention for m in [nn]]": (2, MHA),
    "from torch import nn\nd = {'a': nn}\nd['a'].MultiheadAttention": (3, MHA),
    "from torch import nn\nd = {}\nd['a'] = nn\nd.get('a').MultiheadAttention": (4, MHA),
    "from torch import nn\na, b = 1, nn\nb.MultiheadAttention": (3, MHA),
    "from torch import nn\nif (m := nn):\n    m.MultiheadAttention": (3, MHA),
    "from torch import nn\ndef f(m=nn): return m.MultiheadAttention": (2, MHA),
    "def f():\n    global m\n    import torch.nn as m\n"
    "def g(): return m.MultiheadAttention": (4, MHA),
    "from torch import nn\nclass A:\n    lib = nn\n"
    "    def f(self): self.lib.MultiheadAttention": (4, MHA),
    "from torch import nn\nclass A:\n    def f(self): self.x = nn\n"
    "    def g(self): self.x.MultiheadAttention": (4, MHA),
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


def test_breach_in_an_own_module_belongs_to_the_parts_that_use_it() -> None:
    found = breaches(
        tools=TOOLS,
        encoder="from .tools import Fast\nx = Fast()",
        decoder="from transformer import tools\ntools.Fast()",
        masks="from .tools import harmless",
        training="from .encoder import x",
    )
    assert [(part, place) for part, place, _ in found if place.startswith("tools.py:5")] == [
        ("decoder", "tools.py:5"),
        ("encoder", "tools.py:5"),
    ]


def test_breach_in_a_stretch_file_is_its_own_and_of_the_parts_that_use_it() -> None:
    source = "from torch import nn\nclass Scheme(nn.TransformerEncoderLayer): pass"
    name = "torch.nn.TransformerEncoderLayer"
    alone = breaches(positions=source, encoder="x = 1")
    assert alone == [("positions", "positions.py:2", name)]
    used = breaches(positions=source, encoder="from .positions import Scheme")
    assert used == [("encoder", "positions.py:2", name), ("positions", "positions.py:2", name)]


def test_alias_of_an_own_module_is_followed() -> None:
    found = breaches(tools="import torch.nn as q", attention="from .tools import q\nq.Transformer")
    assert found == [("attention", "attention.py:2", "torch.nn.Transformer")]
    stars = breaches(tools="from torch.nn import *", attention="from .tools import *\nTransformer")
    assert stars == [("attention", "attention.py:2", "torch.nn.Transformer")]
    deep = breaches(
        a__b="from torch import nn as m", residual="from .a import b\ngetattr(b.m, 'Transformer')"
    )
    assert deep == [("residual", "residual.py:2", "torch.nn.Transformer")]


def test_breach_that_no_part_uses_is_a_flag() -> None:
    found = inspected(tools=TOOLS, masks="x = 1")
    assert found.breaches == []
    assert {flag.code for flag in found.flags} == {"forbidden_name"}
    text = f"tools.py, line 3 uses {MHA}, but no part was seen to"
    assert text in [flag.message for flag in found.flags]


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
        "a0 = 'x'\n" + "\n".join(f"a{i} = a{i - 1} + a{i - 1}" for i in range(1, 400)),
        "\n".join(f"b{i} = b{i + 1}[0], b{(i * 7) % 90}, b{(i * 11) % 90}" for i in range(90)),
        "a = b\nb = a\na.MultiheadAttention",
    ],
    ids=["minus", "brackets", "sum", "attributes", "doubling", "knot", "circle"],
)
def test_hostile_source_neither_stops_nor_delays(source: str) -> None:
    begun = time.process_time()
    found = inspected(masks=source)
    assert found.breaches == []
    assert time.process_time() - begun < 10

"""However forbidden code is reached, its part earns nothing and is told the line; odd code may be.

Each spelling stands in a tree that is right otherwise, and runs in a worker of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.base import settings
from grader.run.engine import Referee, Request

ROOT = Path(__file__).resolve().parent.parent
SOURCE = (ROOT / "solution/transformer/attention.py").read_text(encoding="utf-8")
START, END = "    # BEGIN SOLUTION 2.1\n", "    # END SOLUTION\n"
MADE = "        self.num_heads = config.num_heads\n"
# Attention by a function that takes query, key, value and attn_mask.
BODY = """
    check_attention_inputs(query, key, value, mask)
    if mask is not None and not mask.any(dim=-1).all():
        raise ValueError("a query has no key")
    added = torch.zeros(()).to(query) if score_bias is None else score_bias
    if mask is not None:
        added = added + torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
    added = added.expand(*query.shape[:-1], key.shape[-2])
    one_hot = torch.eye(key.shape[-2]).to(query).expand(*key.shape[:-1], -1).contiguous()
    weights = ATTEND(query, key, one_hot, attn_mask=added)
    dropped = weights if dropout is None else dropout(weights)
    return Attended(dropped @ value, weights)
"""
NAME = '"_".join(["scaled", "dot", "product", "attention"])'


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    with Referee(settings.load()) as made:
        yield made


def tree(
    folder: Path, *, top: str = "", attend: str = "", make: str = "", helper: str = ""
) -> Path:
    """Write a tree that calls `attend`, or runs `make` in a constructor; `top` goes before it."""
    package = folder / "transformer"
    package.mkdir(parents=True)
    for path in (ROOT / "solution/transformer").glob("*.py"):
        (package / path.name).write_bytes(path.read_bytes())
    text = SOURCE
    if attend:
        before, _, rest = text.partition(START)
        text = before + BODY.replace("ATTEND", attend) + rest.partition(END)[2]
    place = "\n\ndef scaled_dot_product_attention("
    text = text.replace(place, f"\n\n{top}\n{place}", 1)
    if make:
        lines = "".join(f"        {line}\n" for line in make.splitlines())
        text = text.replace(MADE, MADE + lines, 1)
    (package / "attention.py").write_text(text, encoding="utf-8")
    if helper:
        (package / "helper.py").write_text(helper, encoding="utf-8")
    return folder


def graded(referee: Referee, path: Path, tasks: str = "2") -> dict[str, Any]:
    request = Request(path=path, tasks=frozenset(tasks.split()), gates=0, seed=7)
    return json.loads(json.dumps(referee.grade(request, lambda event: None)))


def part(result: dict[str, Any], task: str) -> dict[str, Any]:
    return next(p for p in result["parts"] if p["task"] == task)


MHA = "nn.MultiheadAttention(config.d_model, config.num_heads)"
LAYER = "(config.d_model, 2, 8)"
WIDTH = "config.d_model, config.num_heads"
BACKEND = "import torch\nattend = torch.nn.functional.scaled_dot_product_attention\n"
SPELLINGS: dict[str, dict[str, str]] = {
    # reached by name
    "plainly": {"attend": "nn.functional.scaled_dot_product_attention"},
    "by_getattr": {"attend": f"getattr(nn.functional, {NAME})"},
    "by_getattr_in_own_helper": {
        "top": "def pick(owner, name):\n    return getattr(owner, name)",
        "attend": 'pick(nn.functional, "scaled_dot_product_attention")',
    },
    "by_getattribute": {"attend": f"object.__getattribute__(nn.functional, {NAME})"},
    "by_vars": {"attend": f"vars(nn.functional)[{NAME}]"},
    "by_dictionary": {"attend": f"nn.functional.__dict__.get({NAME})"},
    "by_listing": {
        "attend": "[f for n, f in vars(nn.functional).items() if n.startswith('scaled')][0]"},
    "by_globals": {"attend": f"getattr(globals()['nn'].functional, {NAME})"},
    "by_attrgetter": {
        "top": "import operator", "attend": f"operator.attrgetter('functional.' + {NAME})(nn)"},
    "by_methodcaller": {
        "top": "import operator\ndef attend(*a, **n):\n"
        f"    return operator.methodcaller({NAME}, *a, **n)(nn.functional)",
        "attend": "attend"},
    "by_partial": {
        "top": "import functools",
        "attend": f"functools.partial(getattr(nn.functional, {NAME}), dropout_p=0.0)"},
    "by_importlib": {
        "top": "import importlib",
        "attend": f"getattr(importlib.import_module('torch.nn.' + 'functional'), {NAME})"},
    "by_import_function": {"attend": f"getattr(__import__('torch').nn.functional, {NAME})"},
    "by_resolve_name": {
        "top": "import pkgutil",
        "attend": f"pkgutil.resolve_name('torch.nn.functional:' + {NAME})"},
    "by_sys_modules": {
        "top": "import sys", "attend": f"getattr(sys.modules['torch.nn.functional'], {NAME})"},
    "by_eval": {"attend": f"eval('nn.functional.' + {NAME})"},
    "by_exec": {
        "top": f"exec('attend = nn.functional.' + {NAME}, globals())", "attend": "attend"},
    "by_star": {
        "top": "from torch.nn import functional as f\nfrom torch.nn.functional import *",
        "attend": "[v for n, v in vars(f).items() if 'dot_product' in n][0]"},
    "by_parameter_default": {
        "top": "def attend(*a, owner=nn.functional, **n):\n"
        f"    return getattr(owner, {NAME})(*a, **n)",
        "attend": "attend"},
    "by_reassigned_name": {
        "top": "x = torch\n" + "x = x\n" * 8, "attend": f"getattr(x.nn.functional, {NAME})"},
    "in_own_file": {"helper": BACKEND, "top": "from .helper import attend", "attend": "attend"},
    "called_in_own_file": {
        "helper": BACKEND + "def run(*a, **n):\n    return attend(*a, **n)\n",
        "top": "from .helper import run", "attend": "run"},
    # below the public name
    "in_c_module": {"attend": f"getattr(torch._C._nn, {NAME})"},
    "as_operator": {"attend": f"getattr(torch.ops.aten, {NAME})"},
    "as_overload": {"attend": f"getattr(torch.ops.aten, {NAME}).default"},
    "as_composite_kernel": {"attend": f"getattr(torch.ops.aten, {NAME}).default.decompose"},
    "as_operator_by_schema": {"attend": f"torch._C._jit_get_operation('aten::' + {NAME})[0]"},
    "as_math_kernel": {
        "top": f"def attend(*a, **n):\n    name = '_' + {NAME} + '_math'\n"
        "    return getattr(torch.ops.aten, name)(*a, **n)[0]",
        "attend": "attend"},
    "as_math_kernel_decomposed": {
        "top": f"def attend(*a, **n):\n    name = '_' + {NAME} + '_math'\n"
        "    return getattr(torch.ops.aten, name).default.decompose(*a, **n)[0]",
        "attend": "attend"},
    "as_flash_kernel": {
        "make": "q = torch.zeros(1, 1, 2, 4)\n"
        "getattr(torch.ops.aten, '_scaled_dot_product_' + 'flash_attention_for_cpu')(q, q, q)"},
    "as_native_attention": {
        "make": "q, w, b = torch.zeros(1, 2, 4), torch.zeros(12, 4), torch.zeros(12)\n"
        "getattr(torch, '_native_multi_' + 'head_attention')"
        "(q, q, q, 4, 2, w, b, w[:4], b[:4])"},
    # wrapped
    "decorated": {
        "top": f"def other(f):\n    return getattr(nn.functional, {NAME})\n"
        "@other\ndef attend(*a, **n): ...",
        "attend": "attend"},
    "in_own_module": {
        "top": "class Core(nn.Module):\n"
        f"    forward = staticmethod(getattr(nn.functional, {NAME}))",
        "attend": "Core()"},
    "vectorised": {
        "top": f"def attend(q, k, v, attn_mask):\n    f = getattr(nn.functional, {NAME})\n"
        "    return torch.func.vmap(f)(q, k, v, attn_mask)",
        "attend": "attend"},
    "scripted": {
        "top": "def plain(q, k, v, attn_mask: Tensor):\n"
        "    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask)\n"
        "scripted = torch.jit.script(plain)",
        "attend": "scripted"},
    "traced_by_fx": {
        "top": "import torch.fx\nclass Core(nn.Module):\n"
        "    def forward(self, q, k, v, attn_mask):\n"
        f"        return getattr(nn.functional, {NAME})(q, k, v, attn_mask)\n"
        "core = torch.fx.symbolic_trace(Core())",
        "attend": "core"},
    "compiled": {
        "top": "def plain(q, k, v, attn_mask):\n"
        f"    return getattr(nn.functional, {NAME})(q, k, v, attn_mask)\n"
        "def attend(*a, **n):\n    return torch.compile(plain, backend='eager')(*a, **n)",
        "attend": "attend"},
    "in_a_thread": {
        "top": "import threading\ndef attend(*a, **n):\n    found = []\n"
        f"    run = lambda: found.append(getattr(nn.functional, {NAME})(*a, **n))\n"
        "    one = threading.Thread(target=run)\n    one.start()\n    one.join()\n"
        "    return found[0]",
        "attend": "attend"},
    "in_a_thread_without_own_lines": {
        "top": "from concurrent.futures import ThreadPoolExecutor\n"
        f"def attend(*a, **n):\n    f = getattr(nn.functional, {NAME})\n"
        "    with ThreadPoolExecutor(1) as pool:\n        return pool.submit(f, *a, **n).result()",
        "attend": "attend"},
    "in_a_forward_hook": {
        "top": f"core = nn.Identity()\nf = getattr(nn.functional, {NAME})\n"
        "core.register_forward_hook(lambda m, a, out: f(*a[0]))\n"
        "def attend(q, k, v, attn_mask):\n    return core((q, k, v, attn_mask))",
        "attend": "attend"},
    "monkeypatched": {
        "top": f"torch.softmin_ = getattr(nn.functional, {NAME})", "attend": "torch.softmin_"},
    "with_a_way_out": {
        "top": "def attend(q, k, v, attn_mask):\n    try:\n"
        f"        return getattr(nn.functional, {NAME})(q, k, v, attn_mask)\n"
        "    except Exception:\n"
        "        return (q @ k.mT / q.shape[-1] ** 0.5 + attn_mask).softmax(-1) @ v",
        "attend": "attend"},
    "as_math_of_flex_attention": {
        "top": "import torch._higher_order_ops.flex_attention as tools",
        "make": "q = torch.zeros(1, 1, 2, 4)\n"
        "score = (lambda score, b, h, i, j: score)\n"
        "try:\n    vars(tools)['math_' + 'attention'](q, q, q, score, (), 1.0)\n"
        "except Exception:\n    pass"},
    "by_a_method_of_a_quantizable_class": {
        "top": "import importlib\nname = 'torch.ao.nn.quantizable.modules.activation'\n"
        "kind = vars(importlib.import_module(name))['Multihead' + 'Attention']\n"
        "def attend(query, key, value, attn_mask):\n"
        "    inner = object.__new__(kind)\n    nn.Module.__init__(inner)\n"
        "    return kind._forward_impl(inner, query, key, value)",
        "attend": "attend"},
    "as_operator_of_onnx": {
        "top": "import importlib\ntools = importlib.import_module('torch.onnx.ops')",
        "make": "q = torch.zeros(1, 1, 2, 4)\n"
        "vars(tools)['atten' + 'tion'](q, q, q, softcap=1.0)"},
    # with an eye on the watch
    "after_a_hunt_through_modules": {
        "top": "def pick(owner, name):\n    return getattr(owner, name)\n"
        "def attend(*a, **n):\n    found = pick(nn.functional, 'scaled_dot_product_attention')\n"
        "    out = found(*a, **n)\n"
        "    for module in list(pick(pick(torch, 'sys'), 'modules').values()):\n"
        "        if module.__name__.startswith('grader.'):\n"
        "            for value in list(module.__dict__.values()):\n"
        "                if isinstance(value, (dict, list)) and not value is module.__dict__:\n"
        "                    if module.__name__.endswith('calls'):\n"
        "                        value.clear()\n"
        "    return out",
        "attend": "attend"},
    "while_python_is_bent": {
        "top": "def pick(owner, name):\n    return getattr(owner, name)\n"
        "def attend(q, k, v, attn_mask):\n    found = pick(nn.functional, 'scaled_dot_' + "
        "'product_attention')\n"
        "    python = pick(pick(torch, 'sys'), 'modules')['builtins']\n"
        "    kept = python.filter\n    python.filter = None\n    try:\n"
        "        out = found(q, k, v, attn_mask)\n    except TypeError:\n"
        "        out = (q @ k.mT / q.shape[-1] ** 0.5 + attn_mask).softmax(-1) @ v\n"
        "    python.filter = kept\n    return out",
        "attend": "attend"},
    # classes
    "made_plainly": {"make": f"self.inner = {MHA}"},
    "made_by_getattr": {"make": f"self.inner = getattr(nn, 'Multihead' + 'Attention')({WIDTH})"},
    "made_when_imported": {"top": "inner = getattr(nn, 'Multihead' + 'Attention')(8, 2)"},
    "made_and_copied": {
        "top": "import copy\ninner = getattr(nn, 'Multihead' + 'Attention')(8, 2)",
        "make": "self.inner = copy.deepcopy(inner)"},
    "made_without_constructor": {
        "make": "kind = getattr(nn, 'Multihead' + 'Attention')\nself.inner = kind.__new__(kind)\n"
        "try:\n    self.inner.forward(torch.zeros(1, 1, 4), None, None)\n"
        "except Exception:\n    pass"},
    "as_base_class": {
        "top": "class Core(getattr(nn, 'Multihead' + 'Attention')): pass",
        "make": f"self.inner = Core({WIDTH})"},
    "as_transformer": {
        "make": f"self.inner = getattr(nn, 'Trans' + 'former')({WIDTH}, 1, 1, 8)"},
    "as_encoder_layer": {
        "make": f"self.inner = vars(nn)['Transformer' + 'EncoderLayer']{LAYER}"},
    "as_decoder_layer_by_module": {
        "top": "import torch.nn.modules.transformer as tools",
        "make": f"self.inner = getattr(tools, 'Transformer' + 'DecoderLayer'){LAYER}"},
    "as_long_function": {
        "make": "try:\n    getattr(nn.functional, 'multi_head_' + 'attention_forward')()\n"
        "except TypeError:\n    pass"},
    "as_quantizable": {
        "make": "import torch.ao.nn.quantizable as tools\n"
        f"self.inner = getattr(tools, 'Multihead' + 'Attention')({WIDTH})"},
    "as_flex_attention": {
        "make": "import importlib\nq = torch.zeros(1, 1, 2, 4)\n"
        "tools = importlib.import_module('torch.nn.atten' + 'tion.flex_atten' + 'tion')\n"
        "try:\n    getattr(tools, 'flex_' + 'attention')(q, q, q)\nexcept Exception:\n    pass"},
}  # fmt: skip


PLACELESS = ("in_a_thread_without_own_lines", "while_python_is_bent")
SLOW = ("compiled", "as_flex_attention", "as_operator_of_onnx")  # they import torch's compiler


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SPELLINGS]
)
def test_no_spelling_of_a_forbidden_call_earns_points(
    name: str, referee: Referee, tmp_path: Path
) -> None:
    found = part(graded(referee, tree(tmp_path / "tree", **SPELLINGS[name])), "2")
    diagnosis = found["diagnosis"] or {}
    assert (found["status"], found["score"]) == ("failed", 0), found["summary"]
    assert (diagnosis["part"], diagnosis["code"]) == ("attention", "forbidden_name")
    assert {check["status"] for check in found["checks"]} == {"failed"}
    file = "helper.py" if name == "called_in_own_file" else "attention.py"
    where = "your code" if name in PLACELESS else f"{file}, line "
    assert diagnosis["cause"].startswith(where)


HONEST: dict[str, dict[str, str]] = {
    "own_name_beside": {"top": "class MultiheadAttention(nn.Module):\n    '''Mine.'''"},
    "own_function_in_own_file": {
        "helper": "import torch\ndef scaled_dot_product_attention(q, k, v, attn_mask):\n"
        "    return (q @ k.mT / q.shape[-1] ** 0.5 + attn_mask).softmax(-1) @ v\n",
        "top": "from .helper import scaled_dot_product_attention as own", "attend": "own"},
    "own_function_under_getattr": {
        "helper": "def attend(q, k, v, attn_mask):\n"
        "    return (q @ k.mT / q.shape[-1] ** 0.5 + attn_mask).softmax(-1) @ v\n",
        "top": "from . import helper\ndef pick(owner, name):\n    return getattr(owner, name)",
        "attend": "pick(helper, 'attend')"},
    "named_for_types_only": {
        "top": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from torch.nn import Transformer\ndef unused(model: Transformer) -> None: ..."},
    "named_in_an_annotation": {
        "top": "def unused(model: nn.Transformer) -> nn.MultiheadAttention: ..."},
    "named_in_words": {
        "top": "'''nn.MultiheadAttention'''\nWORDS = 'F.scaled_dot_product_attention'  # nn.Trans"},
    "own_trials_below_the_guard": {
        "top": "if __name__ == '__main__':\n    print(nn.MultiheadAttention(8, 2))"},
    "name_reassigned_often": {"top": "x = torch.zeros(2, 2)\n" + "x = x.transpose(0, 1)\n" * 12},
    "dataclass_and_named_tuple": {
        "top": "import collections\nimport dataclasses\n@dataclasses.dataclass\nclass Sizes:\n"
        "    heads: int = 4\nPair = collections.namedtuple('Pair', 'a b')\nPair(1, Sizes())"},
    "logging_and_warnings": {
        "top": "import logging\nimport warnings\nlogging.getLogger('lab').debug('x')\n"
        "warnings.warn('x')"},
    "enumeration_and_protocol": {
        "top": "import enum\nfrom typing import Protocol\nclass Kind(enum.Enum):\n    A = 1\n"
        "class Callable_(Protocol):\n    def forward(self) -> None: ..."},
    "cached_and_partial": {
        "top": "import functools\n@functools.lru_cache\ndef size(n):\n    return n\n"
        "half = functools.partial(size, 2)\nhalf()"},
    "patterns_and_templates": {
        "top": "import re\nimport string\nre.compile('a+').match('aa')\nstring.Template('$a')"},
    "own_layers_copied": {
        "top": "import copy\nfrom torch.nn.modules.transformer import _get_clones\n"
        "layers = _get_clones(nn.Linear(2, 2), 2)\nagain = copy.deepcopy(layers)"},
    "own_autograd_function": {
        "top": "class Same(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x.clone()\n    @staticmethod\n    def backward(ctx, g):\n        return g\n"
        "Same.apply(torch.ones(2, requires_grad=True)).sum().backward()"},
    "own_function_vectorised": {
        "top": "torch.func.vmap(lambda row: row.softmax(-1))(torch.ones(2, 2))"},
    "own_attention_scripted": {
        "top": "@torch.jit.script\ndef one(q, k, v, attn_mask: Tensor):\n"
        "    return (q @ k.mT / q.shape[-1] ** 0.5 + attn_mask).softmax(-1) @ v",
        "attend": "one"},
    "own_hook": {
        "top": "layer = nn.Linear(2, 2)\nlayer.register_forward_hook(lambda m, a, out: out * 1)\n"
        "layer(torch.ones(1, 2)).sum().backward()"},
    "harmless_tools_of_torch": {
        "top": "from torch.utils.data import DataLoader\nnn.LSTM(2, 2)(torch.ones(1, 1, 2))\n"
        "torch.nn.utils.clip_grad_norm_([torch.ones(1, requires_grad=True)], 1.0)"},
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_oddities_pass_without_a_flag(name: str, referee: Referee, tmp_path: Path) -> None:
    result = graded(referee, tree(tmp_path / "tree", **HONEST[name]))
    found = part(result, "2")
    assert found["status"] == "passed", found["summary"]
    assert result["integrity"]["flags"] == []


# Code of the flag, and what the tree does besides being right.
TAMPERING = {
    "gc": ("frame_inspection", "import gc\nlook = vars(gc)['get_' + 'objects']\nlook()"),
    "frame": ("frame_inspection", "import sys\nlook = vars(sys)['_get' + 'frame']\nlook()"),
    "code": ("frame_inspection", "getattr(nn.Linear.forward, '__co' + 'de__')"),
    "ctypes": ("code_execution", "c = __import__('ctypes')\nc.string_at(c.c_char_p(b'x'))"),
    "exec": ("code_execution", "vars(__import__('builtins'))['ex' + 'ec']('1')"),
    "replaced": (
        "patched_library",
        "own = nn.functional\n"
        "def swap(owner, name):\n    setattr(owner, name, lambda *a, **n: None)\n"
        "swap(own, 'multi_head_' + 'attention_forward')",
    ),
    "grader": ("grader_access", "import grader"),
    "reload": ("code_execution", "import importlib\nimport math\nimportlib.reload(math)"),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_with_the_watch_is_flagged_and_costs_nothing(
    name: str, referee: Referee, tmp_path: Path
) -> None:
    code, top = TAMPERING[name]
    result = graded(referee, tree(tmp_path / "tree", top=top))
    assert part(result, "2")["status"] == "passed"
    assert code in {flag["code"] for flag in result["integrity"]["flags"]}


def test_breach_fails_what_had_passed_before_and_no_other_part(
    referee: Referee, tmp_path: Path
) -> None:
    late = "torch.nn.Linear.late"
    path = tree(
        tmp_path / "tree",
        top=f"{late} = 0\ndef later():\n    {late} += 1\n    if {late} > 5:\n"
        "        getattr(nn, 'Multihead' + 'Attention')(4, 2)",
    )
    source = path / "transformer/attention.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("    if x.dim() != 4:", "    later()\n    if x.dim() != 4:"))
    result = graded(referee, path, "1 2 3 4")
    found = [part(result, task)["status"] for task in "1234"]
    assert found == ["passed", "failed", "passed", "passed"]
    assert {check["status"] for check in part(result, "2")["checks"]} == {"failed"}

"""Integrity flags: what in the source is worth a person's look. A flag never costs a point."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from grader.intake.source import IMPORTERS, Source

# A table of so many numbers is an answer or a weight; honest code computes its tables.
_MANY_NUMBERS, _VERY_MANY_NUMBERS = 200, 1500
_LONG_INTEGER_BITS = 256
_OPAQUE_RUN, _OPAQUE_TOTAL = 40, 400


@dataclass(frozen=True)
class Flag:
    """A stable code and one sentence that says where and what."""

    code: str
    message: str


# Code, what it says of the source, and the names it is about with all that lies below them; "*"
# ends a name that is given in part. The first rule that fits counts.
_RULES = (
    (
        "frame_inspection",
        "looks into running code",
        "gc.get_* inspect.stack inspect.currentframe inspect.trace inspect.get* sys._getframe "
        "sys._current_* sys.settrace sys.setprofile traceback.walk_* traceback.*_stack dis",
    ),
    (
        "code_execution",
        "runs code that is not in the source",
        "builtins.exec builtins.eval builtins.compile marshal pickle shelve code codeop runpy "
        "zipimport ctypes types.CodeType types.FunctionType torch.package torch.jit.load "
        "torch.jit.CompilationUnit torch.utils.cpp_extension importlib.reload importlib.util "
        "importlib.machinery",
    ),
    ("grader_access", "reaches for the grader", "grader"),
    (
        "network",
        "may reach the network",
        "socket socketserver ssl http urllib ftplib smtplib xmlrpc asyncio requests httpx aiohttp "
        "websockets torch.hub torch.distributed",
    ),
    (
        "file_access",
        "reads files",
        "builtins.open builtins.input io.open io.FileIO io.open_code codecs.open torch.load "
        "torch.from_file torch.serialization numpy.load* numpy.fromfile numpy.memmap "
        "numpy.genfromtxt fileinput linecache mmap sqlite3 dbm zipfile tarfile gzip bz2 lzma glob "
        "safetensors importlib.resources pkgutil.get_data",
    ),
    (
        "system_access",
        "reaches for the system",
        "os sys subprocess multiprocessing torch.multiprocessing concurrent threading _thread "
        "signal atexit shutil resource pty fcntl posix nt faulthandler tempfile platform pwd "
        "builtins.breakpoint",
    ),
    (
        "torch_internals",
        "uses the inside of torch",
        "torch._C torch._VF torch._ops torch.ops torch._dynamo torch._inductor "
        "torch._higher_order_ops torch.overrides torch.library torch.fx "
        "torch.utils._python_dispatch",
    ),
    (
        "foreign_library",
        "uses a ready-made library",
        "transformers x_transformers timm fairseq torchtune xformers flash_attn tensorflow keras "
        "jax flax lightning pytorch_lightning",
    ),
)


def _pattern(words: str) -> re.Pattern[str]:
    choices = "|".join(re.escape(word).replace(r"\*", r"\w*") for word in words.split())
    return re.compile(rf"({choices})(\..*)?")


_COMPILED = tuple((code, what, _pattern(words)) for code, what, words in _RULES)
_HARMLESS = _pattern("sys.float_info sys.maxsize sys.version_info sys.stdout sys.stderr os.path")
_SETTABLE = _pattern("torch.backends")  # settings, meant to be set
# Telling whether used or not; an import of anything else counts where it is used.
_TELLING_IMPORTS = frozenset({"subprocess", "ctypes", "marshal", "pickle", "socket", "grader"})
# Attributes and methods that tell, of whatever object.
_TELLING_WORDS = {
    **dict.fromkeys(
        ["__subclasses__", "__globals__", "__code__", "__closure__", "f_back", "f_locals"]
        + ["f_globals", "tb_frame", "gi_frame", "cr_frame"],
        ("frame_inspection", "looks into running code"),
    ),
    **dict.fromkeys(["read_text", "read_bytes"], ("file_access", "reads files")),
    **dict.fromkeys(
        ["__torch_function__", "__torch_dispatch__"],
        ("torch_internals", "uses the inside of torch"),
    ),
}
_BY_NAME = frozenset({"builtins.getattr", "builtins.setattr", "builtins.delattr"})
_LISTERS = frozenset({"builtins.dir", "builtins.vars", "inspect.getmembers"})
_DICTIONARY = ".__dict__"


def of_names(source: Source) -> Iterator[Flag]:
    """Yield what the file's names show."""
    seen: list[tuple[int, str, str]] = []
    for use in source.uses:
        for path in use.paths:
            if use.imported and path.partition(".")[0] not in _TELLING_IMPORTS:
                continue
            if path.startswith("torch.") and path.endswith(_DICTIONARY):
                seen.append((use.line, "dynamic_name", f"takes names out of {path}"))
            seen += ((use.line, *found) for found in _rule(path))
    for line, name, stars in source.unbound:
        seen += ((line, *found) for star in stars for found in _rule(f"{star}.{name}"))
    for node in source.nodes:
        if isinstance(node, ast.Call):
            seen += ((node.lineno, *found) for found in _of_call(source, node))
        word = getattr(node, "attr", None) or getattr(node, "name", None)
        if word in _TELLING_WORDS:
            code, what = _TELLING_WORDS[word]
            seen.append((getattr(node, "lineno", 1), code, f"{what}: {word}"))
    for node in source.stores:
        seen += ((node.lineno, "patched_library", f"changes {o}") for o in _owners(source, node))
    for line, code, what in seen:
        yield Flag(code, f"{source.file}, line {line} {what}")


@lru_cache(maxsize=4096)
def _rule(name: str) -> tuple[tuple[str, str], ...]:
    """Return the first rule that a name falls under, as code and words, or nothing."""
    for code, what, pattern in _COMPILED:
        if pattern.fullmatch(name) and not _HARMLESS.fullmatch(name):
            return ((code, f"{what}: {name}"),)
    return ()


def _of_call(source: Source, node: ast.Call) -> Iterator[tuple[str, str]]:
    first, second = [*node.args, None, None][:2]
    owners = _foreign(source, first) if first else []
    for name in source.paths(node.func):
        if name in _BY_NAME and second and owners:
            if not _is_text(second):
                yield "dynamic_name", f"computes a name of {owners[0]}"
            if name != "builtins.getattr":
                yield "patched_library", f"changes {owners[0]}"
        if name in IMPORTERS and not _is_text(first):
            yield "dynamic_name", "imports a module whose name is computed"
        if name in _LISTERS and owners:
            yield "dynamic_name", f"lists the names of {owners[0]}"


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _foreign(source: Source, node: ast.expr) -> list[str]:
    """Return the paths of libraries that an expression stands for, sorted."""
    return sorted(path for path in source.paths(node) if not source.is_own(path))


def _owners(source: Source, node: ast.Attribute | ast.Subscript) -> list[str]:
    """Return the libraries whose attribute or dictionary is set here."""
    owners = _foreign(source, node.value)
    if isinstance(node, ast.Subscript):
        owners = [o for o in owners if o == "sys.modules" or o.endswith(_DICTIONARY)]
    return [owner for owner in owners if not _SETTABLE.fullmatch(owner)]


def of_literals(source: Source) -> Iterator[Flag]:
    """Yield what looks like data shipped in the source."""
    prose = {id(node.value) for node in source.nodes if isinstance(node, ast.Expr)}  # docstrings
    constants = [n for n in source.nodes if isinstance(n, ast.Constant) and id(n) not in prose]
    numbers = sum(map(_is_number, constants))
    if numbers >= _MANY_NUMBERS:
        tables = [n for n in source.nodes if isinstance(n, ast.List | ast.Tuple | ast.Dict)]
        largest = max((sum(map(_is_number, ast.walk(table))) for table in tables), default=0)
        if largest >= _MANY_NUMBERS or numbers >= _VERY_MANY_NUMBERS:
            yield Flag("large_literal", f"{source.file} holds {numbers} numbers")
    for node in constants:
        if isinstance(node.value, int) and node.value.bit_length() > _LONG_INTEGER_BITS:
            digits = node.value.bit_length() * 3 // 10
            text = f"{source.file}, line {node.lineno} holds a number of some {digits} digits"
            yield Flag("large_literal", text)
    opaque = sum(map(_opaque_length, constants))
    if opaque >= _OPAQUE_TOTAL:
        yield Flag("large_literal", f"{source.file} holds {opaque} characters of encoded data")


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float | complex)


def _opaque_length(node: ast.Constant) -> int:
    """Return how much of a constant is no prose: bytes, or long runs without a blank."""
    if isinstance(node.value, str):
        return sum(len(run) for run in node.value.split() if len(run) >= _OPAQUE_RUN)
    return len(node.value) if isinstance(node.value, bytes) else 0

"""Models that others have published, built from the parts of this package (given).

A folder as Hugging Face's libraries write it holds config.json (sizes and choices),
model.safetensors (weights, in one file or in several with an index) and tokenizer.json (text to
ids and back). Three things differ between their models and ours: the names of the weights; the
rotation, which pairs element j of a head with j + K/2 there and neighbours here; and whatever
ModelConfig has a field for.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .config import ModelConfig
from .models import DecoderOnlyTransformer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Settings = dict[str, Any]
# One of their weights becomes one or more of ours: our name, and how it is made.
Targets = list[tuple[str, Callable[[Tensor], Tensor]]]

# Rotary angles computed in advance per layer; later ones are computed when they are met.
ROTARY_ROWS = 1024
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Published:
    """What a folder holds besides weights.

    Args:
        architecture: Its model_type.
        config: The same model in our words.
        context: Tokens that the model was made for.
        end_ids: Ids that end a text.
    """

    architecture: str
    config: ModelConfig
    context: int
    end_ids: frozenset[int]


def read_config(folder: Path) -> Published:
    """Read config.json, and the end ids of generation_config.json where there is one.

    Args:
        folder: The checkpoint folder.

    Raises:
        OSError: There is no config.json.
        ValueError: It is no configuration, or one of a model that cannot be built from our parts.
    """
    settings = _read_json(folder / "config.json")
    architecture = settings.get("model_type")
    if architecture not in FAMILIES:
        raise ValueError(
            f"{folder} holds the architecture {architecture!r}; known are {', '.join(FAMILIES)}"
        )
    if settings.get("quantization_config") is not None:
        raise ValueError(f"{folder} holds quantised weights, which are not supported")
    try:
        config, context = FAMILIES[architecture].configure(settings)
    except KeyError as missing:
        raise ValueError(f"config.json of {folder} lacks {missing}") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"config.json of {folder} cannot be used: {error}") from error
    ends = [settings.get("eos_token_id")]
    if (folder / "generation_config.json").exists():
        ends.append(_read_json(folder / "generation_config.json").get("eos_token_id"))
    end_ids: set[int] = set()
    for end in ends:
        ids = end if isinstance(end, list) else [] if end is None else [end]
        if not all(isinstance(i, int) for i in ids):
            raise ValueError(f"eos_token_id in {folder} must be an id or a list of ids, got {end}")
        end_ids.update(ids)
    return Published(architecture, config, context, frozenset(end_ids))


def _read_json(path: Path) -> Settings:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def _or_default(settings: Settings, name: str, default: Any) -> Any:
    """Return a setting; absent and null both mean the default."""
    value = settings.get(name)
    return default if value is None else value


def configure_llama(settings: Settings) -> tuple[ModelConfig, int]:
    """Translate the configuration of Llama, Mistral, Qwen2 or Qwen3.

    Raises:
        KeyError: A size is missing.
        ValueError: Something that no field of ModelConfig says.
    """
    if settings.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act must be 'silu', got {settings['hidden_act']!r}")
    architecture, heads = settings["model_type"], settings["num_attention_heads"]
    reads_biases = architecture in ("llama", "qwen3")  # the others ignore these fields
    attention_bias = reads_biases and bool(settings.get("attention_bias"))
    mlp_bias = architecture == "llama" and bool(settings.get("mlp_bias"))
    if attention_bias != mlp_bias:
        raise ValueError(
            f"attention_bias and mlp_bias must agree, got {attention_bias} and {mlp_bias}"
        )
    context = settings["max_position_embeddings"]
    config = ModelConfig(
        vocab_size=settings["vocab_size"],
        d_model=settings["hidden_size"],
        num_heads=heads,
        num_kv_heads=_or_default(settings, "num_key_value_heads", heads),
        head_width=_or_default(settings, "head_dim", settings["hidden_size"] // heads),
        num_layers=settings["num_hidden_layers"],
        d_ff=settings["intermediate_size"],
        ffn="swiglu",
        norm="rmsnorm",
        norm_eps=_or_default(settings, "rms_norm_eps", 1e-6),
        positions="rope",
        rope_base=rotary_base(settings),
        max_len=min(context, ROTARY_ROWS),
        bias=attention_bias,
        qkv_bias=True if architecture == "qwen2" else None,
        qk_norm=architecture == "qwen3",
        window=sliding_window(settings),
        scale_embedding=False,
        tied=bool(settings.get("tie_word_embeddings")),
        pad_id=None,
    )
    return config, context


def rotary_base(settings: Settings) -> float:
    """Find the base of the rotary angles, where transformers 5 writes it or where 4 did.

    Raises:
        ValueError: The angles are scaled in some way.
    """
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"rope_parameters must be an object, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope scaling of the kind {kind!r} is not supported, only 'default' is")
    share = _or_default(settings, "partial_rotary_factor", rope.get("partial_rotary_factor"))
    if share not in (None, 1.0):
        raise ValueError("a partial_rotary_factor is not supported for this architecture")
    return float(rope.get("rope_theta", _or_default(settings, "rope_theta", 10000.0)))


def sliding_window(settings: Settings) -> int | None:
    """Find how many tokens back attention reaches; None = to the first.

    Raises:
        ValueError: Some layers have a window and others have none.
    """
    window, num_layers = settings.get("sliding_window"), settings["num_hidden_layers"]
    if settings["model_type"] == "llama" or window is None:
        return None
    if settings["model_type"] == "mistral":
        limited = [True] * num_layers
    elif not settings.get("use_sliding_window"):
        return None
    elif settings.get("layer_types"):
        limited = [kind == "sliding_attention" for kind in settings["layer_types"]]
    else:
        limited = [i >= settings.get("max_window_layers", 28) for i in range(num_layers)]
    if any(limited) and not all(limited):
        raise ValueError("a sliding_window in some of the layers only is not supported")
    return int(window) if any(limited) else None


def configure_gpt2(settings: Settings) -> tuple[ModelConfig, int]:
    """Translate the configuration of GPT-2.

    Raises:
        KeyError: A size is missing.
        ValueError: Something that no field of ModelConfig says.
    """
    activations = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
        "relu": "relu",
    }
    activation = settings.get("activation_function", "gelu_new")
    if activation not in activations:
        raise ValueError(
            f"activation_function must be one of {', '.join(activations)}, got {activation!r}"
        )
    unusual = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    for name, usual in unusual.items():
        if settings.get(name, usual) is not usual:
            raise ValueError(f"{name} must be {usual}, got {settings[name]!r}")
    width = settings["n_embd"]
    config = ModelConfig(
        vocab_size=settings["vocab_size"],
        d_model=width,
        num_heads=settings["n_head"],
        num_layers=settings["n_layer"],
        d_ff=_or_default(settings, "n_inner", 4 * width),
        ffn=activations[activation],
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        max_len=settings["n_positions"],
        scale_embedding=False,
        tied=bool(settings.get("tie_word_embeddings", True)),
        pad_id=None,
    )
    return config, config.max_len


def as_it_is(weight: Tensor) -> Tensor:
    """Return a weight that is ours already."""
    return weight


def halves_to_pairs(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows within each head from rotation by halves to rotation by pairs.

    Their rotation turns elements j and j + K/2 of a head together, ours 2j and 2j + 1. Scores are
    sums over all elements, so they stay the same when those of queries and keys change places
    alike.

    Args:
        weight: (H * K, ...), the weight or bias of a projection to queries or keys.
        num_heads: Heads in it: for keys those that keys have.

    Returns:
        The same shape.
    """
    halves = weight.unflatten(0, (num_heads, 2, -1))  # (H, 2, K / 2, ...)
    return halves.transpose(1, 2).reshape(weight.shape)


def transposed(weight: Tensor) -> Tensor:
    """Turn (in, out) into the (out, in) of nn.Linear."""
    return weight.T.contiguous()


def third(weight: Tensor, index: int) -> Tensor:
    """Take queries (0), keys (1) or values (2) from weights that stand side by side.

    Args:
        weight: (D, 3 D) stored as (in, out), or a bias (3 D,).
        index: Which of the three.

    Returns:
        (D, D) as nn.Linear has it, or (D,).
    """
    return weight.chunk(3, dim=-1)[index].T.contiguous()


def llama_names(config: ModelConfig) -> dict[str, Targets]:
    """Map the names in files of the Llama family to ours.

    Args:
        config: The model in our words.
    """
    queries = partial(halves_to_pairs, num_heads=config.num_heads)
    keys = partial(halves_to_pairs, num_heads=config.kv_heads)
    norm = partial(halves_to_pairs, num_heads=1)
    inside: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "self_attn.q_proj": ("self_attention.q_proj", queries),
        "self_attn.k_proj": ("self_attention.k_proj", keys),
        "self_attn.v_proj": ("self_attention.v_proj", as_it_is),
        "self_attn.o_proj": ("self_attention.out_proj", as_it_is),
        "self_attn.q_norm": ("self_attention.query_norm", norm),
        "self_attn.k_norm": ("self_attention.key_norm", norm),
        "mlp.up_proj": ("feed_forward.input_projection", as_it_is),
        "mlp.gate_proj": ("feed_forward.gate_projection", as_it_is),
        "mlp.down_proj": ("feed_forward.output_projection", as_it_is),
        "input_layernorm": ("attention_branch.norm", as_it_is),
        "post_attention_layernorm": ("feed_forward_branch.norm", as_it_is),
    }
    names: dict[str, Targets] = {
        "model.embed_tokens.weight": [("token_embedding.weight", as_it_is)],
        "model.norm.weight": [("stack.final_norm.weight", as_it_is)],
        "lm_head.weight": [("output_projection.weight", as_it_is)],
    }
    for layer in range(config.num_layers):
        for theirs, (ours, make) in inside.items():
            for kind in ("weight", "bias"):
                target = (f"stack.blocks.{layer}.{ours}.{kind}", make)
                names[f"model.layers.{layer}.{theirs}.{kind}"] = [target]
    return names


def gpt2_names(config: ModelConfig) -> dict[str, Targets]:
    """Map the names in files of GPT-2, without their prefix, to ours.

    Args:
        config: The model in our words.
    """
    inside = {
        "attn.c_proj": "self_attention.out_proj",
        "mlp.c_fc": "feed_forward.input_projection",
        "mlp.c_proj": "feed_forward.output_projection",
        "ln_1": "attention_branch.norm",
        "ln_2": "feed_forward_branch.norm",
    }
    names: dict[str, Targets] = {
        "wte.weight": [("token_embedding.weight", as_it_is)],
        "wpe.weight": [("positions.weight", as_it_is)],
        "ln_f.weight": [("stack.final_norm.weight", as_it_is)],
        "ln_f.bias": [("stack.final_norm.bias", as_it_is)],
        "lm_head.weight": [("output_projection.weight", as_it_is)],
    }
    for layer in range(config.num_layers):
        block = f"stack.blocks.{layer}"
        for kind in ("weight", "bias"):
            for theirs, ours in inside.items():
                linear = theirs.startswith(("attn", "mlp")) and kind == "weight"
                target = (f"{block}.{ours}.{kind}", transposed if linear else as_it_is)
                names[f"h.{layer}.{theirs}.{kind}"] = [target]
            names[f"h.{layer}.attn.c_attn.{kind}"] = [
                (f"{block}.self_attention.{part}_proj.{kind}", partial(third, index=index))
                for index, part in enumerate("qkv")
            ]
    return names


@dataclass(frozen=True)
class Family:
    """How the folders of one architecture are read.

    Args:
        configure: Translates config.json.
        names: Maps the names of weights.
        prefix: What names in a file may begin with or not.
        buffers: Matches the names of what is no weight but stands in some files.
    """

    configure: Callable[[Settings], tuple[ModelConfig, int]]
    names: Callable[[ModelConfig], dict[str, Targets]]
    prefix: str
    buffers: re.Pattern[str]


_LLAMA = Family(configure_llama, llama_names, "", re.compile(r".*\.rotary_emb\.inv_freq"))
_GPT2 = Family(
    configure_gpt2,
    gpt2_names,
    "transformer.",
    re.compile(r"h\.\d+\.attn\.(bias|masked_bias)"),
)
FAMILIES = {"gpt2": _GPT2, "llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA}


def weight_files(folder: Path) -> dict[str, list[str] | None]:
    """List the files that hold weights, each with the names to take from it; None = all.

    Args:
        folder: The checkpoint folder.

    Raises:
        OSError: There are no such files.
        ValueError: The index is none, or names a file outside the folder.
    """
    if (folder / "model.safetensors").exists():
        return {"model.safetensors": None}
    if not (folder / INDEX).exists():
        raise FileNotFoundError(
            f"{folder} holds neither model.safetensors nor {INDEX}; other files are not read"
        )
    weight_map = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{folder / INDEX} holds no weight_map")
    files: dict[str, list[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not re.fullmatch(r"[\w-][\w.-]*\.safetensors", file):
            raise ValueError(f"{folder / INDEX} names a file that is not in its folder: {file!r}")
        names = files.setdefault(file, [])
        assert names is not None
        names.append(name)
    return files


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Read the weights of a folder one by one.

    Args:
        folder: The checkpoint folder.

    Raises:
        OSError: A file is missing.
        ValueError: A file is damaged, or lacks what the index says it holds.
    """
    for file, names in weight_files(folder).items():
        try:
            # Read, not mapped: the model must not change when its file does.
            with safe_open(folder / file, "pt", backend="pread") as weights:
                for name in weights.keys() if names is None else names:
                    yield name, weights.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{folder / file} cannot be read: {error}") from error


_DRAWING = (Tensor.normal_, Tensor.uniform_, nn.init.kaiming_uniform_, nn.init.uniform_)


class _Unfilled(TorchFunctionMode):
    """Leave out the drawing of initial weights, which would only be replaced."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def load_pretrained(
    folder: Path, dtype: torch.dtype | None = None
) -> tuple[DecoderOnlyTransformer, Published]:
    """Build the model that a folder holds, in eval mode.

    Args:
        folder: The checkpoint folder.
        dtype: Type of the weights; None = the one they are stored in.

    Returns:
        The model and what else the folder says.

    Raises:
        OSError: A file is missing.
        ValueError: A model that cannot be built from our parts, or weights that do not fit it,
            each named.
    """
    published = read_config(folder)
    family, config = FAMILIES[published.architecture], published.config
    names = family.names(config)
    weights: dict[str, Tensor] = {}
    head, problems = None, []
    for stored, tensor in read_weights(folder):
        name = stored.removeprefix(family.prefix)
        if family.buffers.fullmatch(name):
            continue
        if name == "lm_head.weight" and config.tied:
            head = tensor
        elif name not in names:
            problems.append(f"unknown {stored}")
        elif tensor.dtype not in DTYPES.values():
            problems.append(f"{stored} must be of {', '.join(DTYPES)}, got {tensor.dtype}")
        else:
            for ours, make in names[name]:
                try:
                    weights[ours] = make(tensor)
                except (IndexError, RuntimeError):  # of another shape, which is named below
                    weights[ours] = tensor
        del tensor
    if head is not None and not torch.equal(head, weights.get("token_embedding.weight", head)):
        problems.append(
            "config.json says that lm_head.weight is the embedding table, which it is not"
        )
    del head
    dtype = dtype or next(iter(weights.values()), torch.empty(0)).dtype
    try:
        with _Unfilled(), _default_dtype(dtype):
            built = DecoderOnlyTransformer(config)
    except RuntimeError as error:
        raise ValueError(f"no model has the sizes in config.json of {folder}: {error}") from error
    theirs = {ours: name for name, targets in names.items() for ours, _ in targets}
    expected = built.state_dict()
    problems += [f"missing {theirs[name]}" for name in expected if name not in weights]
    for ours, weight in weights.items():
        if ours not in expected:
            problems.append(f"unknown {theirs[ours]}")
        elif weight.shape != expected[ours].shape:
            shapes = f"{tuple(expected[ours].shape)}, got {tuple(weight.shape)}"
            problems.append(f"{theirs[ours]} must become {ours} of shape {shapes}")
    if problems:
        raise ValueError(f"the weights of {folder} do not fit: {'; '.join(problems)}")
    for name in weights:
        weights[name] = weights[name].to(dtype)
    built.load_state_dict(weights, assign=True)
    return built.requires_grad_().eval(), published


def load_tokenizer(folder: Path) -> "Tokenizer":
    """Read tokenizer.json, with whatever it says of padding and truncation switched off.

    Args:
        folder: The checkpoint folder.

    Raises:
        OSError: There is no tokenizer.json.
        ValueError: It cannot be read, or the library for it is not installed.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [name for name in ("tokenizer.model", "vocab.json") if (folder / name).exists()]
        found = f"; {others[0]}, which it holds, is not read" if others else ""
        raise FileNotFoundError(f"{folder} holds no tokenizer.json{found}")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("tokenizer.json needs the package tokenizers (extra: models)") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no narrower one
        raise ValueError(f"{path} cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer

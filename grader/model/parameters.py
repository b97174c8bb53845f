"""What the referee knows of the model under test: configuration, parameter names and shapes.

This is enough to draw every weight of a submission's model without building it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """The fields and defaults of `transformer.config.ModelConfig`, without importing it.

    A worker builds the submission's model from `dataclasses.asdict` of it. The oracle ignores
    `dropout`, because it only evaluates.
    """

    vocab_size: int = 16
    d_model: int = 32
    num_heads: int = 4
    num_kv_heads: int | None = None
    num_layers: int = 1
    d_ff: int = 64
    ffn: str = "gelu"
    norm: str = "layernorm"
    placement: str = "pre"
    positions: str = "learned"
    rope_cross: bool = False
    rope_base: float = 10000.0
    bias: bool = True
    dropout: float = 0.0
    tied: bool | None = None
    pad_id: int | None = 0
    max_len: int = 512
    t5_buckets: int = 32
    t5_max_distance: int = 128

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ProbeConfig:
        """Read the fields of a `ModelConfig`.

        Args:
            values: Any of the fields by name; the others keep their defaults.

        Raises:
            ValueError: A name that is no field.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"config fields must be among {sorted(known)}, got {unknown}")
        return cls(**values)

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None, as `ModelConfig` takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def d_head(self) -> int:
        """Width K of one head."""
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads; `num_heads` if none is given."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


def parameter_shapes(config: ProbeConfig, kind: str) -> Shapes:
    """List the parameters of a module as its state_dict names them.

    Args:
        config: What the module is built with.
        kind: "seq2seq" or "decoder_only" for a model; "encoder", "decoder" or "causal_stack" for a
            stack; "encoder_block", "decoder_block", "causal_block", "residual_branch",
            "multi_head_attention", "feed_forward" or "norm" for a part.

    Returns:
        Shape by name.

    Raises:
        ValueError: Unknown kind.
    """
    own, inside = _own_shapes(config), _inside(config)
    if kind not in own | inside:
        raise ValueError(f"kind must be one of {sorted(inside)}, got {kind!r}")
    return own.get(kind, {}) | {
        f"{name}.{parameter}": shape
        for name, its_kind in inside.get(kind, {}).items()
        for parameter, shape in parameter_shapes(config, its_kind).items()
    }


def _own_shapes(config: ProbeConfig) -> dict[str, Shapes]:
    """Return the parameters that each kind of module holds directly."""

    def linear(inputs: int, outputs: int) -> Shapes:
        weight: Shapes = {"weight": (outputs, inputs)}
        return weight | {"bias": (outputs,)} if config.bias else weight

    width, kv_width = config.d_model, config.kv_heads * config.d_head
    # A layer norm keeps its bias when the Linears have none.
    norm: Shapes = {"weight": (width,)}
    return {
        "norm": norm | {"bias": (width,)} if config.norm == "layernorm" else norm,
        "projection": linear(width, width),
        "kv_projection": linear(width, kv_width),
        "widening": linear(width, config.d_ff),
        "narrowing": linear(config.d_ff, width),
        "table": {"weight": (config.vocab_size, width)},
        "learned": {"weight": (config.max_len, width)},
        "t5bias": {"weight": (config.t5_buckets, config.num_heads)},
    }


def _inside(config: ProbeConfig) -> dict[str, dict[str, str]]:
    """Return name and kind of the modules inside each kind of module."""
    layers = range(config.num_layers)
    end = {"final_norm": "norm"} if config.placement == "pre" else {}
    gate = {"gate_projection": "widening"} if config.ffn in ("swiglu", "geglu") else {}
    separate = {"output_projection": "table"}
    encoder_block = {
        "self_attention": "multi_head_attention",
        "feed_forward": "feed_forward",
        "attention_branch": "residual_branch",
        "feed_forward_branch": "residual_branch",
    }
    positions = config.positions if config.positions in ("learned", "t5bias") else "nothing"
    return {
        "nothing": {},
        "norm": {},
        "multi_head_attention": {
            "q_proj": "projection",
            "k_proj": "kv_projection",
            "v_proj": "kv_projection",
            "out_proj": "projection",
        },
        "feed_forward": {"input_projection": "widening"}
        | gate
        | {"output_projection": "narrowing"},
        "residual_branch": {"norm": "norm"},
        "encoder_block": encoder_block,
        "causal_block": encoder_block,
        "decoder_block": {
            "self_attention": "multi_head_attention",
            "cross_attention": "multi_head_attention",
            "feed_forward": "feed_forward",
            "self_branch": "residual_branch",
            "cross_branch": "residual_branch",
            "feed_forward_branch": "residual_branch",
        },
        "encoder": {f"blocks.{layer}": "encoder_block" for layer in layers} | end,
        "causal_stack": {f"blocks.{layer}": "causal_block" for layer in layers} | end,
        "decoder": {f"blocks.{layer}": "decoder_block" for layer in layers} | end,
        "seq2seq": {
            "source_embedding": "table",
            "target_embedding": "table",
            "source_positions": positions,
            "target_positions": positions,
            "encoder": "encoder",
            "decoder": "decoder",
        }
        | ({} if config.tied else separate),
        "decoder_only": {
            "token_embedding": "table",
            "positions": positions,
            "stack": "causal_stack",
        }
        | (separate if config.tied is False else {}),
    }

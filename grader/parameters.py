"""The model under test as the referee knows it: configuration, names and shapes of parameters.

With these the referee can draw every weight of a submission's model without building one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """The fields and defaults of `transformer.config.ModelConfig`, without importing it.

    A worker builds the submission's model from `dataclasses.asdict` of it. The oracle evaluates,
    so `dropout` means nothing there.
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
        """Return the fields that say something, as `ModelConfig` takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def d_head(self) -> int:
        """Width K of one head."""
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, `num_heads` where none is given."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


def _linear(inputs: int, outputs: int, bias: bool) -> Shapes:
    shapes: Shapes = {"weight": (outputs, inputs)}
    return {**shapes, "bias": (outputs,)} if bias else shapes


def _inside(**modules: Shapes) -> Shapes:
    """Name the parameters of modules as their parent does."""
    return {
        f"{module}.{name}": shape
        for module, shapes in modules.items()
        for name, shape in shapes.items()
    }


def _norm(config: ProbeConfig) -> Shapes:
    # A layer norm keeps its bias when the Linears have none.
    shapes: Shapes = {"weight": (config.d_model,)}
    return {**shapes, "bias": (config.d_model,)} if config.norm == "layernorm" else shapes


def _branch(config: ProbeConfig) -> Shapes:
    return _inside(norm=_norm(config))


def _attention(config: ProbeConfig) -> Shapes:
    width, kv_width = config.d_model, config.kv_heads * config.d_head
    return _inside(
        q_proj=_linear(width, width, config.bias),
        k_proj=_linear(width, kv_width, config.bias),
        v_proj=_linear(width, kv_width, config.bias),
        out_proj=_linear(width, width, config.bias),
    )


def _feed_forward(config: ProbeConfig) -> Shapes:
    up = _linear(config.d_model, config.d_ff, config.bias)
    down = _linear(config.d_ff, config.d_model, config.bias)
    if config.ffn in ("swiglu", "geglu"):
        return _inside(input_projection=up, gate_projection=up, output_projection=down)
    return _inside(input_projection=up, output_projection=down)


def _encoder_block(config: ProbeConfig) -> Shapes:
    return _inside(
        self_attention=_attention(config),
        feed_forward=_feed_forward(config),
        attention_branch=_branch(config),
        feed_forward_branch=_branch(config),
    )


def _decoder_block(config: ProbeConfig) -> Shapes:
    return _inside(
        self_attention=_attention(config),
        cross_attention=_attention(config),
        feed_forward=_feed_forward(config),
        self_branch=_branch(config),
        cross_branch=_branch(config),
        feed_forward_branch=_branch(config),
    )


def _stack(block: Callable[[ProbeConfig], Shapes], config: ProbeConfig) -> Shapes:
    blocks = {f"blocks.{layer}": block(config) for layer in range(config.num_layers)}
    if config.placement == "pre":
        return _inside(**blocks, final_norm=_norm(config))
    return _inside(**blocks)


def _encoder(config: ProbeConfig) -> Shapes:
    return _stack(_encoder_block, config)


def _decoder(config: ProbeConfig) -> Shapes:
    return _stack(_decoder_block, config)


def _causal_stack(config: ProbeConfig) -> Shapes:
    return _stack(_encoder_block, config)  # a causal block has an encoder block's parameters


def _table(config: ProbeConfig) -> Shapes:
    return {"weight": (config.vocab_size, config.d_model)}


def _positions(config: ProbeConfig) -> Shapes:
    if config.positions == "learned":
        return {"weight": (config.max_len, config.d_model)}
    if config.positions == "t5bias":
        return {"weight": (config.t5_buckets, config.num_heads)}
    return {}


def _seq2seq(config: ProbeConfig) -> Shapes:
    output = {} if config.tied else {"output_projection": _table(config)}
    return _inside(
        source_embedding=_table(config),
        target_embedding=_table(config),
        source_positions=_positions(config),
        target_positions=_positions(config),
        encoder=_encoder(config),
        decoder=_decoder(config),
        **output,
    )


def _decoder_only(config: ProbeConfig) -> Shapes:
    output = {"output_projection": _table(config)} if config.tied is False else {}
    return _inside(
        token_embedding=_table(config),
        positions=_positions(config),
        stack=_causal_stack(config),
        **output,
    )


_KINDS: dict[str, Callable[[ProbeConfig], Shapes]] = {
    "multi_head_attention": _attention,
    "feed_forward": _feed_forward,
    "norm": _norm,
    "residual_branch": _branch,
    "encoder_block": _encoder_block,
    "encoder": _encoder,
    "decoder_block": _decoder_block,
    "decoder": _decoder,
    "causal_block": _encoder_block,
    "causal_stack": _causal_stack,
    "seq2seq": _seq2seq,
    "decoder_only": _decoder_only,
}


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
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {sorted(_KINDS)}, got {kind!r}")
    return _KINDS[kind](config)

"""What a model and its training are made of.

Letters used for shapes in every file of this package:

    B batch              H heads              V vocabulary
    T target length      K width of a head    F width inside the feed-forward layer
    S source length      D width of the model (d_model = H * K)

In self-attention the keys come from the same sequence as the queries; T counts the queries and
S the keys even there.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

FEED_FORWARDS = ("relu", "gelu", "gelu_tanh", "swiglu", "geglu")
NORMS = ("layernorm", "rmsnorm")
PLACEMENTS = ("pre", "post")
POSITIONS = ("sinusoidal", "learned", "t5bias", "rope", "none")

LEAST_POSITIVE = math.ulp(0.0)


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse what is not an integer (TypeError), or one that is too small (ValueError)."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_number(
    name: str, value: float, wanted: str, least: float, below: float = math.inf
) -> None:
    """Refuse what is no number from least to below; nan and infinity never are."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not least <= value < below:
        raise ValueError(f"{name} must be {wanted}, got {value}")


def check_id(name: str, value: int, vocab_size: int) -> None:
    """Refuse what is not the id of a token.

    Args:
        name: What the id is called in the message.
        value: The id.
        vocab_size: V.

    Raises:
        TypeError: The id is not an integer.
        ValueError: It is negative, or not below V; the message holds both.
    """
    check_at_least(name, value, 0)
    if value >= vocab_size:
        raise ValueError(f"{name} must be below vocab_size {vocab_size}, got {value}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Every choice that makes one transformer differ from another.

    Args:
        vocab_size: V, number of token ids.
        d_model: D, width of the residual stream.
        num_heads: H, number of query heads; must divide D where head_width is None.
        num_kv_heads: number of key and value heads; must divide H. None means H (multi-head
            attention), 1 is multi-query attention, anything between is grouped-query attention.
        num_layers: number of blocks in each stack.
        d_ff: F, width inside the feed-forward layer.
        ffn: "relu", "gelu", "gelu_tanh" (as in GPT-2), "swiglu" or "geglu".
        norm: "layernorm" or "rmsnorm".
        norm_eps: what every norm adds to the variance; None means 1e-5 for "layernorm" and 1e-6
            for "rmsnorm".
        placement: "pre" (norm before the sublayer) or "post" (norm after the residual sum).
        positions: "sinusoidal", "learned", "t5bias", "rope" or "none".
        rope_cross: rotary positions turn the queries and keys of cross-attention too.
        rope_base: base of the rotary angles.
        rope_width: how many of a head's numbers rotate, from the first on; None means all.
        head_width: K; None means D / H.
        qk_norm: whether each head's queries and keys are normalised before they are rotated.
        window: how many tokens back causal attention reaches, the token itself included; None
            means all.
        bias: whether the linear layers of the blocks have a bias.
        qkv_bias: whether the projections to queries, keys and values have one; None means as
            `bias` says.
        dropout: probability in [0, 1).
        tied: whether the output projection is the (target) embedding table; None means no in the
            encoder-decoder and yes in the decoder-only model.
        scale_embedding: whether token vectors are multiplied by sqrt(D).
        pad_id: id of the padding token; None means that every id is an ordinary token.
        max_len: rows of a learned position table; other schemes compute so many in advance.
        t5_buckets: buckets of the relative-position bias.
        t5_max_distance: distance from which on all positions share the last bucket.

    Raises:
        TypeError: A value of another type.
        ValueError: A value out of range, or two values that do not go together; the message
            holds both.
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
    # What published models have and the lab's do not:
    norm_eps: float | None = None
    head_width: int | None = None
    qkv_bias: bool | None = None
    qk_norm: bool = False
    rope_width: int | None = None
    window: int | None = None
    scale_embedding: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_heads", "num_layers", "d_ff", "max_len"):
            check_at_least(name, getattr(self, name), 1)
        _check_choice("ffn", self.ffn, FEED_FORWARDS)
        _check_choice("norm", self.norm, NORMS)
        _check_choice("placement", self.placement, PLACEMENTS)
        _check_choice("positions", self.positions, POSITIONS)
        self._check_heads()
        self._check_positions()
        for name, allowed in (
            ("bias", (True, False)),
            ("rope_cross", (True, False)),
            ("tied", (True, False, None)),
            ("qkv_bias", (True, False, None)),
            ("qk_norm", (True, False)),
            ("scale_embedding", (True, False)),
        ):
            if not any(getattr(self, name) is value for value in allowed):
                raise TypeError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        _check_number("dropout", self.dropout, "in [0, 1)", 0.0, 1.0)
        if self.norm_eps is not None:
            _check_number("norm_eps", self.norm_eps, "not negative and finite", 0.0)
        if self.window is not None:
            check_at_least("window", self.window, 1)
        if self.pad_id is not None:
            check_id("pad_id", self.pad_id, self.vocab_size)

    def _check_heads(self) -> None:
        if self.head_width is not None:
            check_at_least("head_width", self.head_width, 1)
        elif self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be divisible by num_heads, got {self.d_model} and {self.num_heads}"
            )
        check_at_least("num_kv_heads", self.kv_heads, 1)
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads must be divisible by num_kv_heads, "
                f"got {self.num_heads} and {self.kv_heads}"
            )

    def _check_positions(self) -> None:
        rotary = self.positions == "rope" or self.rope_cross
        if self.rope_width is not None:
            check_at_least("rope_width", self.rope_width, 2)
            if self.rope_width % 2 or self.rope_width > self.d_head:
                raise ValueError(
                    f"rope_width must be even and at most the head width {self.d_head}, "
                    f"got {self.rope_width}"
                )
        elif rotary and self.d_head % 2:
            origin = "" if self.head_width else f"d_model {self.d_model} / num_heads "
            raise ValueError(
                f"rotary positions need an even head width, got {origin}"
                f"{self.num_heads if origin else 'head_width'} = {self.d_head}"
            )
        _check_number("rope_base", self.rope_base, "positive and finite", LEAST_POSITIVE)
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, got {self.d_model}")
        for name in ("t5_buckets", "t5_max_distance"):
            check_at_least(name, getattr(self, name), 1)
        if self.positions == "t5bias":
            if self.t5_buckets < 4 or self.t5_buckets % 2:
                raise ValueError(f"t5_buckets must be even and at least 4, got {self.t5_buckets}")
            if self.t5_max_distance <= self.t5_buckets // 2:
                raise ValueError(
                    f"t5_max_distance must exceed half of t5_buckets {self.t5_buckets}, "
                    f"got {self.t5_max_distance}"
                )

    @property
    def d_head(self) -> int:
        """K, width of one head."""
        return self.d_model // self.num_heads if self.head_width is None else self.head_width

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads, with None resolved."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """How a model is trained: AdamW under a one-cycle learning rate.

    Args:
        steps: number of optimiser steps, one batch each.
        batch_size: B, rows per batch.
        learning_rate: peak learning rate per step.
        warmup_fraction: share of the steps in which the rate rises to its peak.
        decay_power: after the peak the rate falls as (share of the steps left) ** decay_power.
        weight_decay: decoupled weight decay.
        clip_norm: largest allowed norm of the gradient.
        betas: decay rates of AdamW's two averages.

    Raises:
        TypeError: A value of another type.
        ValueError: A value out of range.
    """

    steps: int = 300
    batch_size: int = 128
    learning_rate: float = 2e-2
    warmup_fraction: float = 0.05
    decay_power: float = 3.0
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    betas: tuple[float, float] = (0.8, 0.99)

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps, 1)
        check_at_least("batch_size", self.batch_size, 1)
        for name in ("learning_rate", "clip_norm"):
            _check_number(name, getattr(self, name), "positive and finite", LEAST_POSITIVE)
        _check_number("warmup_fraction", self.warmup_fraction, "in [0, 1)", 0.0, 1.0)
        for name in ("decay_power", "weight_decay"):
            _check_number(name, getattr(self, name), "finite and not negative", 0.0)
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, got {self.betas}")
        for beta in self.betas:
            _check_number("each of betas", beta, "in [0, 1)", 0.0, 1.0)


LAB = ModelConfig()
LARGER = ModelConfig(d_model=64, num_layers=2, d_ff=128)
VANILLA_2017 = ModelConfig(
    vocab_size=100,
    d_model=64,
    num_layers=2,
    d_ff=256,
    ffn="relu",
    placement="post",
    positions="sinusoidal",
)
LLAMA_STYLE = ModelConfig(
    vocab_size=100,
    d_model=64,
    num_kv_heads=2,
    num_layers=2,
    d_ff=196,
    ffn="swiglu",
    norm="rmsnorm",
    positions="rope",
    bias=False,
)
LAB_RECIPE = TrainingRecipe()

"""torch's own transformer between the lab's embeddings: what the lab's model is compared with."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from transformer.data import PAD
from transformer.models import Seq2SeqTransformer


class Peer(nn.Module):
    """`nn.Transformer` with the embeddings, positions, sizes and weights of a model of ours.

    Args:
        ours: A pre-norm model with as many key/value heads as heads and an output of its own; it
            is copied.
    """

    def __init__(self, ours: Seq2SeqTransformer) -> None:
        super().__init__()
        config = ours.config
        sizes = (config.d_model, config.num_heads)
        options: dict[str, Any] = {
            "dim_feedforward": config.d_ff,
            "dropout": config.dropout,
            "activation": config.ffn,
            "batch_first": True,
            "norm_first": True,
        }
        # With norms first there is nothing to nest, and asking for it is a warning.
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, **options),
            config.num_layers,
            nn.LayerNorm(config.d_model),
            enable_nested_tensor=False,
        )
        self.core = nn.Transformer(
            *sizes, num_decoder_layers=config.num_layers, custom_encoder=encoder, **options
        )
        self.source_embedding = copy.deepcopy(ours.source_embedding)
        self.target_embedding = copy.deepcopy(ours.target_embedding)
        self.source_positions = copy.deepcopy(ours.source_positions)
        self.target_positions = copy.deepcopy(ours.target_positions)
        assert ours.output_projection is not None
        self.output_projection = copy.deepcopy(ours.output_projection)
        copy_weights(ours, self.core)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T) ids to logits (B, T, V)."""
        no_source, no_target = source == PAD, target == PAD  # True = hidden, as torch has it
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.core(
            self.source_positions(self.source_embedding(source)),
            self.target_positions(self.target_embedding(target)),
            tgt_mask=future,
            src_key_padding_mask=no_source,
            tgt_key_padding_mask=no_target,
            memory_key_padding_mask=no_source,
            tgt_is_causal=True,
        )
        return nn.functional.linear(x, self.output_projection.weight)


# A module's attributes have no types; those of two modules are what the functions below are about.


def copy_weights(ours: Any, core: Any) -> None:
    """Give torch's transformer the weights of ours."""
    with torch.no_grad():
        copy_values(ours.encoder.final_norm, core.encoder.norm)
        copy_values(ours.decoder.final_norm, core.decoder.norm)
        for block, layer in zip(ours.encoder.blocks, core.encoder.layers, strict=True):
            copy_attention(block.self_attention, layer.self_attn)
            copy_feed_forward(block.feed_forward, layer)
            copy_norms((block.attention_branch, block.feed_forward_branch), layer)
        for block, layer in zip(ours.decoder.blocks, core.decoder.layers, strict=True):
            copy_attention(block.self_attention, layer.self_attn)
            copy_attention(block.cross_attention, layer.multihead_attn)
            copy_feed_forward(block.feed_forward, layer)
            branches = (block.self_branch, block.cross_branch, block.feed_forward_branch)
            copy_norms(branches, layer)


def copy_values(ours: Any, theirs: Any) -> None:
    """Copy weight and bias."""
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_norms(branches: tuple[Any, ...], layer: Any) -> None:
    """Copy the norm of every branch to norm1, norm2, ..."""
    for number, branch in enumerate(branches, start=1):
        copy_values(branch.norm, getattr(layer, f"norm{number}"))


def copy_feed_forward(ours: Any, layer: Any) -> None:
    """Copy both projections."""
    copy_values(ours.input_projection, layer.linear1)
    copy_values(ours.output_projection, layer.linear2)


def copy_attention(ours: Any, theirs: Any) -> None:
    """Copy four projections; torch keeps three of them in one table."""
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    copy_values(ours.out_proj, theirs.out_proj)

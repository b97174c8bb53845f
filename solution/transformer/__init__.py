"""A complete transformer built from its parts: encoder-decoder and decoder-only.

Everything in `__all__` can be imported from here: `from transformer import MultiHeadAttention`.
A name is looked up in its file when it is first asked for, so that a mistake in one file of yours
does not keep the others from being imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attention import MultiHeadAttention, scaled_dot_product_attention
    from .cache import DecodingCache
    from .checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
    from .config import LAB, LAB_RECIPE, LLAMA_STYLE, VANILLA_2017, ModelConfig, TrainingRecipe
    from .data import SequenceBatch, cyclic_batches, sequence_batches
    from .decoder import CausalBlock, Decoder, DecoderBlock
    from .encoder import Encoder, EncoderBlock
    from .generation import (
        Sampler,
        evaluating,
        generate_decoder_only,
        generate_seq2seq,
        write_on,
    )
    from .kv_cache import KVCache
    from .masks import causal_mask, combine_masks, padding_mask
    from .models import DecoderOnlyTransformer, Seq2SeqTransformer, count_params
    from .pretrained import load_pretrained, load_tokenizer
    from .residual import ResidualBranch
    from .training import make_optimizer, masked_cross_entropy, teacher_forcing, train

# Name -> the file that holds it.
_HOMES = {
    "MultiHeadAttention": "attention",
    "scaled_dot_product_attention": "attention",
    "DecodingCache": "cache",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "verify_checkpoint": "checkpoint",
    "LAB": "config",
    "LAB_RECIPE": "config",
    "LLAMA_STYLE": "config",
    "VANILLA_2017": "config",
    "ModelConfig": "config",
    "TrainingRecipe": "config",
    "SequenceBatch": "data",
    "cyclic_batches": "data",
    "sequence_batches": "data",
    "CausalBlock": "decoder",
    "Decoder": "decoder",
    "DecoderBlock": "decoder",
    "Encoder": "encoder",
    "EncoderBlock": "encoder",
    "Sampler": "generation",
    "evaluating": "generation",
    "generate_decoder_only": "generation",
    "generate_seq2seq": "generation",
    "write_on": "generation",
    "KVCache": "kv_cache",
    "causal_mask": "masks",
    "combine_masks": "masks",
    "padding_mask": "masks",
    "DecoderOnlyTransformer": "models",
    "Seq2SeqTransformer": "models",
    "count_params": "models",
    "load_pretrained": "pretrained",
    "load_tokenizer": "pretrained",
    "ResidualBranch": "residual",
    "make_optimizer": "training",
    "masked_cross_entropy": "training",
    "teacher_forcing": "training",
    "train": "training",
}

__all__ = [
    "LAB",
    "LAB_RECIPE",
    "LLAMA_STYLE",
    "VANILLA_2017",
    "CausalBlock",
    "Decoder",
    "DecoderBlock",
    "DecoderOnlyTransformer",
    "DecodingCache",
    "Encoder",
    "EncoderBlock",
    "KVCache",
    "ModelConfig",
    "MultiHeadAttention",
    "ResidualBranch",
    "Sampler",
    "Seq2SeqTransformer",
    "SequenceBatch",
    "TrainingRecipe",
    "causal_mask",
    "combine_masks",
    "count_params",
    "cyclic_batches",
    "evaluating",
    "generate_decoder_only",
    "generate_seq2seq",
    "load_checkpoint",
    "load_pretrained",
    "load_tokenizer",
    "make_optimizer",
    "masked_cross_entropy",
    "padding_mask",
    "save_checkpoint",
    "scaled_dot_product_attention",
    "sequence_batches",
    "teacher_forcing",
    "train",
    "verify_checkpoint",
    "write_on",
]


def __getattr__(name: str) -> object:
    """Import a public name from its file."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The kernels that a training step of the lab's model cannot do without, and nothing else.

No autograd, no modules, no views, no masks, no checks: every kernel is called directly, backward
ones included, on tensors made beforehand, and one fused AdamW updates all parameters as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transformer.config import ModelConfig

aten = torch.ops.aten
Kernel = Callable[[], object]


@dataclass
class Kernels:
    """The calls of one step, in the order in which they were added."""

    config: ModelConfig
    batch_size: int
    source_length: int
    target_length: int
    calls: list[Kernel] = field(default_factory=list)

    def add(self, kernel: Kernel) -> None:
        """Add one call."""
        self.calls.append(kernel)

    def linear(self, tokens: int, width: int, outputs: int) -> None:
        """Add a product with weights: forward, and gradients of input, weights and bias."""
        x, y = torch.randn(tokens, width), torch.randn(tokens, outputs)
        weight, bias = torch.randn(outputs, width), torch.randn(outputs)
        grad_x, grad_w = torch.empty_like(x), torch.empty_like(weight)
        ones = torch.ones(1, tokens)
        grad_b = torch.empty(1, outputs)
        self.add(lambda: torch.addmm(bias, x, weight.T, out=y))
        self.add(lambda: torch.mm(y, weight, out=grad_x))
        self.add(lambda: torch.mm(y.T, x, out=grad_w))
        self.add(lambda: torch.mm(ones, y, out=grad_b))

    def attention(self, queries: int, keys: int) -> None:
        """Add both products of attention and the softmax between, forward and backward."""
        rows, width = self.batch_size * self.config.num_heads, self.config.d_head
        q, k = torch.randn(rows, queries, width), torch.randn(rows, keys, width)
        scores = torch.randn(rows, queries, keys)
        weights = scores.softmax(-1)
        # Along a last axis shorter than a register the softmax is slow; see softmax.py.
        columns = torch.randn(keys, rows * queries)
        shares = columns.softmax(0)
        mask = torch.zeros(1, queries, keys)
        context, grad_k = torch.empty_like(q), torch.empty_like(k)
        self.add(lambda: torch.baddbmm(mask, q, k.transpose(1, 2), out=scores))
        self.add(lambda: torch.softmax(columns, 0, out=shares))
        self.add(lambda: torch.bmm(weights, k, out=context))
        # Backward: to values, to weights, to scores, to queries, to keys.
        self.add(lambda: torch.bmm(weights.transpose(1, 2), q, out=grad_k))
        self.add(lambda: torch.bmm(q, k.transpose(1, 2), out=scores))
        self.add(lambda: aten._softmax_backward_data(columns, shares, 0, torch.float32))
        self.add(lambda: torch.bmm(scores, k, out=context))
        self.add(lambda: torch.bmm(scores.transpose(1, 2), q, out=grad_k))

    def norm(self, tokens: int) -> None:
        """Add a layer norm and the residual sum beside it, forward and backward."""
        width = self.config.d_model
        x, scale, shift = torch.randn(tokens, width), torch.ones(width), torch.zeros(width)
        _, mean, rstd = aten.native_layer_norm(x, [width], scale, shift, 1e-5)
        every = [True, True, True]
        self.add(lambda: aten.native_layer_norm(x, [width], scale, shift, 1e-5))
        self.add(
            lambda: aten.native_layer_norm_backward(x, x, [width], mean, rstd, scale, shift, every)
        )
        self.add(lambda: x.add_(0.0))
        self.add(lambda: x.add_(0.0))

    def feed_forward(self, tokens: int) -> None:
        """Add both layers and the GELU between, forward and backward."""
        width, inner = self.config.d_model, self.config.d_ff
        hidden = torch.randn(tokens, inner)
        self.linear(tokens, width, inner)
        self.add(lambda: aten.gelu(hidden))
        self.add(lambda: aten.gelu_backward(hidden, hidden))
        self.linear(tokens, inner, width)

    def embedding(self, tokens: int) -> None:
        """Add a look-up and its gradient."""
        ids = torch.randint(self.config.vocab_size, (tokens,))
        table = torch.randn(self.config.vocab_size, self.config.d_model)
        x = torch.randn(tokens, self.config.d_model)
        self.add(lambda: aten.embedding(table, ids))
        self.add(lambda: aten.embedding_dense_backward(x, ids, table.shape[0], -1, False))

    def loss(self, tokens: int) -> None:
        """Add the cross-entropy, forward and backward."""
        logits = torch.randn(tokens, self.config.vocab_size)
        log_p = logits.log_softmax(-1)
        targets = torch.randint(self.config.vocab_size, (tokens,))
        one = torch.tensor(1.0)
        self.add(lambda: logits.log_softmax(-1))
        self.add(lambda: aten.nll_loss_forward(log_p, targets, None, 1, 0))
        self.add(lambda: aten._log_softmax_backward_data(log_p, log_p, -1, torch.float32))
        weight = torch.tensor(float(tokens))
        self.add(lambda: aten.nll_loss_backward(one, log_p, targets, None, 1, 0, weight))

    def optimizer(self, numbers: int) -> None:
        """Add the gradient's norm and one fused AdamW over all parameters."""
        parameter = torch.nn.Parameter(torch.randn(numbers))
        parameter.grad = torch.randn(numbers)
        update = torch.optim.AdamW([parameter], fused=True)
        gradient: Tensor = parameter.grad
        self.add(lambda: torch.linalg.vector_norm(gradient))
        self.add(update.step)


def kernels(
    config: ModelConfig, batch_size: int, source_length: int, target_length: int, numbers: int
) -> list[Kernel]:
    """Return the calls of one step of the encoder-decoder.

    Args:
        config: A pre-norm model with GELU and as many key/value heads as heads.
        batch_size: B.
        source_length: S.
        target_length: T.
        numbers: How many numbers the model trains.
    """
    found = Kernels(config, batch_size, source_length, target_length)
    width = config.d_model
    source, target = batch_size * source_length, batch_size * target_length
    found.embedding(source)
    for _ in range(config.num_layers):
        found.norm(source)
        found.linear(source, width, 3 * width)
        found.attention(source_length, source_length)
        found.linear(source, width, width)
        found.norm(source)
        found.feed_forward(source)
    found.norm(source)
    found.embedding(target)
    for _ in range(config.num_layers):
        found.norm(target)
        found.linear(target, width, 3 * width)
        found.attention(target_length, target_length)
        found.linear(target, width, width)
        found.norm(target)
        found.linear(target, width, width)
        found.linear(source, width, 2 * width)
        found.attention(target_length, source_length)
        found.linear(target, width, width)
        found.norm(target)
        found.feed_forward(target)
    found.norm(target)
    found.linear(target, width, config.vocab_size)
    found.loss(target)
    found.optimizer(numbers)
    return found.calls

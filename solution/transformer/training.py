"""Task 6: what the model is asked, how its answer is judged, and how it learns."""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from .config import TrainingRecipe
from .data import BOS, EOS, PAD, SequenceBatch


class TeacherForcing(NamedTuple):
    """What the decoder reads and what it must answer, position by position.

    Args:
        decoder_inputs: (B, T) int64.
        targets: (B, T) int64, PAD where there is nothing to answer.
    """

    decoder_inputs: Tensor
    targets: Tensor


def teacher_forcing(
    answers: Sequence[Sequence[int]], *, bos_id: int = BOS, eos_id: int = EOS, pad_id: int = PAD
) -> TeacherForcing:
    """Let the decoder read the true answer while it predicts it, one token ahead.

    Args:
        answers: B answers of any lengths, without BOS, EOS or padding.
        bos_id: Id of the token that every decoder input begins with.
        eos_id: Id of the token that every target ends with.
        pad_id: Id that fills shorter rows on the right.

    Returns:
        TeacherForcing(decoder_inputs, targets), (B, T) int64 each, where T is the longest
        answer plus 1. Both rows of an answer have the same number of real tokens.

    Raises:
        ValueError: No answers.

    Source: Williams and Zipser 1989, section 4. Task 6.1. Hints:
        1. Write both rows for the answer [5, 7] on paper: what has the decoder read when it
           must answer 5? And when it must answer EOS?
        2. Pad to the longest row of the batch, not beyond.
        3. One torch.tensor call on a list of equally long lists is faster than many small ones.
    """
    # BEGIN SOLUTION 6.1
    if not answers:
        raise ValueError("teacher forcing needs at least one answer, got none")
    longest = max(map(len, answers))
    ids: list[int] = []
    for answer in answers:
        ids += [bos_id, *answer, eos_id] + [pad_id] * (longest - len(answer))
    # An array of 8-byte integers becomes a tensor much faster than a list does.
    framed = torch.frombuffer(array("q", ids), dtype=torch.int64).view(len(answers), -1)
    targets = framed[:, 1:]  # (B, T)
    # The EOS of a shorter row is answered, never read.
    decoder_inputs = framed[:, :-1].masked_fill(targets == pad_id, pad_id)
    return TeacherForcing(decoder_inputs, targets)
    # END SOLUTION


def masked_cross_entropy(logits: Tensor, targets: Tensor, pad_id: int = PAD) -> Tensor:
    """Average -log p(target) over the real targets.

    Args:
        logits: (B, T, V) float.
        targets: (B, T) int64.
        pad_id: Id of the targets that do not count.

    Returns:
        () float, in nats per token.

    Raises:
        ValueError: logits and targets disagree in B or T, or no target is real.

    Source: Goodfellow et al. 2016, section 6.2.1.1. Task 6.2. Hints:
        1. nn.functional.cross_entropy takes logits as they are: (N, V) and targets (N,).
        2. Flatten both the same way.
        3. The mean runs over the real targets of the whole batch, not over rows.
    """
    # BEGIN SOLUTION 6.2
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits (B, T, V) and targets (B, T) must agree in B and T, "
            f"got {tuple(logits.shape)} and {tuple(targets.shape)}"
        )
    if not (targets != pad_id).any():
        raise ValueError(f"every one of the {targets.numel()} targets is padding (id {pad_id})")
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad_id)
    # END SOLUTION


def make_optimizer(model: nn.Module, recipe: TrainingRecipe) -> Optimizer:
    """Build the optimiser of a model.

    Args:
        model: Every one of its trainable parameters is handed over, each exactly once.
        recipe: learning_rate, betas and weight_decay are read.

    Returns:
        AdamW.

    Source: Loshchilov and Hutter 2019, algorithm 2, arxiv.org/abs/1711.05101. Task 6.3. Hint:
    the two halves of an encoder-decoder are both part of the model.
    """
    # BEGIN SOLUTION 6.3
    return torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    # END SOLUTION


def make_scheduler(optimizer: Optimizer, recipe: TrainingRecipe) -> LRScheduler:
    """Build the one-cycle schedule: a straight rise to the peak, then a slowing fall to 0 (given).

    Args:
        optimizer: Its learning rate is the peak.
        recipe: steps, warmup_fraction and decay_power are read.

    Returns:
        A scheduler; call its step() after every step of the optimiser.

    Source: after Smith and Topin 2018, arxiv.org/abs/1708.07120.
    """
    warmup = recipe.warmup_fraction * recipe.steps

    def share_of_peak(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        left = max(0.0, (recipe.steps - step) / (recipe.steps - warmup))
        return float(left**recipe.decay_power)

    return LambdaLR(optimizer, share_of_peak)


def train(
    model: nn.Module, batches: Iterable[SequenceBatch], recipe: TrainingRecipe
) -> list[float]:
    """Take one optimiser step per batch.

    Args:
        model: Seq2SeqTransformer or DecoderOnlyTransformer; changed in place and left in
            train mode.
        batches: As many as there are steps to take; each one is used once, in order.
        recipe: Read by the optimiser and the schedule; clip_norm is the largest allowed norm of
            the gradient of all parameters together.

    Returns:
        The loss of every step in order, in nats per token, each taken before its step.

    Source: Vaswani et al. 2017, section 5, arxiv.org/abs/1706.03762. Task 6.4. Hints:
        1. Call model(*batch.context, decoder_inputs): it works for both models.
        2. Gradients add up until they are cleared.
        3. What must have happened before clipping means anything?
        4. The schedule takes a step after the optimiser has taken one.
        5. Collecting loss.detach() and turning all of them into numbers at the end is faster
           than a number per step.
    """
    # BEGIN SOLUTION 6.4
    optimizer = make_optimizer(model, recipe)
    scheduler = make_scheduler(optimizer, recipe)
    parameters = list(model.parameters())
    model.train()
    losses = []
    for batch in batches:
        decoder_inputs, targets = teacher_forcing(batch.answers)
        logits = model(*batch.context, decoder_inputs)
        loss = masked_cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip_norm, foreach=True)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]
    # END SOLUTION

"""Training: the shift, the loss, the optimiser, the schedule and the loop."""

import math
from dataclasses import replace

import pytest
import torch

from transformer.config import LAB, LAB_RECIPE, LLAMA_STYLE, VANILLA_2017, TrainingRecipe
from transformer.data import SequenceBatch, cyclic_batches, sequence_batches
from transformer.generation import generate_decoder_only, generate_seq2seq
from transformer.metrics import exact_match
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer
from transformer.training import (
    make_optimizer,
    make_scheduler,
    masked_cross_entropy,
    teacher_forcing,
    train,
)

SMALL = replace(LAB, d_model=12, num_heads=2, d_ff=7, max_len=11)


def batches(steps: int, rows: int = 5) -> list[SequenceBatch]:
    return list(sequence_batches("copy", steps=steps, batch_size=rows, seed=3))


def test_teacher_forcing_reads_bos_and_the_answer_and_asks_for_the_answer_and_eos():
    decoder_inputs, targets = teacher_forcing([[5, 7], [9, 4, 3], []])
    assert decoder_inputs.tolist() == [[1, 5, 7, 0], [1, 9, 4, 3], [1, 0, 0, 0]]
    assert targets.tolist() == [[5, 7, 2, 0], [9, 4, 3, 2], [2, 0, 0, 0]]
    assert decoder_inputs.dtype == targets.dtype == torch.int64


def test_teacher_forcing_uses_the_ids_it_is_given():
    decoder_inputs, targets = teacher_forcing([[5], [6, 7]], bos_id=11, eos_id=12, pad_id=13)
    assert decoder_inputs.tolist() == [[11, 5, 13], [11, 6, 7]]
    assert targets.tolist() == [[5, 12, 13], [6, 7, 12]]


def test_teacher_forcing_refuses_no_answers():
    with pytest.raises(ValueError, match="at least one answer"):
        teacher_forcing([])


def test_loss_is_the_mean_over_real_targets():
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([[3, 4, 2, 0, 0], [6, 5, 4, 3, 2], [2, 0, 0, 0, 0]])
    each = [
        -logits[b, t].log_softmax(-1)[targets[b, t]].item()
        for b in range(3)
        for t in range(5)
        if targets[b, t] != 0
    ]
    assert masked_cross_entropy(logits, targets).item() == pytest.approx(sum(each) / len(each))
    wider = torch.nn.functional.pad(logits, (0, 0, 0, 2)), torch.nn.functional.pad(targets, (0, 2))
    torch.testing.assert_close(masked_cross_entropy(*wider), masked_cross_entropy(logits, targets))


def test_loss_refuses_shapes_that_disagree_and_targets_without_a_real_one():
    with pytest.raises(ValueError, match=r"got \(3, 5, 7\) and \(3, 4\)"):
        masked_cross_entropy(torch.ones(3, 5, 7), torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"every one of the 15 targets is padding \(id 4\)"):
        masked_cross_entropy(torch.ones(3, 5, 7), torch.full((3, 5), 4), pad_id=4)


@pytest.mark.parametrize("tied", [True, False])
def test_optimizer_holds_every_parameter_exactly_once(tied):
    model = Seq2SeqTransformer(replace(SMALL, tied=tied))
    optimizer = make_optimizer(model, LAB_RECIPE)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert optimizer.param_groups[0]["lr"] == LAB_RECIPE.learning_rate


@pytest.mark.parametrize("steps", [1, 2, 7, 300])
def test_schedule_rises_once_to_its_peak_and_falls_towards_zero(steps):
    recipe = TrainingRecipe(steps=steps, learning_rate=1.0, warmup_fraction=0.2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make_scheduler(optimizer, recipe), []
    for _ in range(steps + 3):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    peak = rates.index(max(rates))
    assert all(0.0 < rate <= 1.0 for rate in rates[:steps])
    assert rates == sorted(rates[:peak]) + sorted(rates[peak:], reverse=True)
    assert rates[steps:] == [0.0] * 3


@pytest.mark.parametrize("kind", [Seq2SeqTransformer, DecoderOnlyTransformer])
def test_loop_returns_the_loss_of_every_step_and_leaves_train_mode(kind):
    torch.manual_seed(5)
    model = kind(SMALL).eval()
    drawn = batches(3)
    if kind is DecoderOnlyTransformer:
        drawn = [SequenceBatch(None, batch.answers) for batch in drawn]
    decoder_inputs, targets = teacher_forcing(drawn[0].answers)
    first = masked_cross_entropy(model(*drawn[0].context, decoder_inputs), targets).item()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = train(model, iter(drawn), replace(LAB_RECIPE, steps=3))
    assert losses[0] == pytest.approx(first, rel=1e-5)
    assert [type(loss) for loss in losses] == [float] * 3
    assert all(module.training for module in model.modules())
    assert [n for n, p in model.named_parameters() if torch.equal(p, before[n])] == []


def test_loop_clips_the_norm_of_all_gradients_together(monkeypatch):
    norms = []
    step = torch.optim.AdamW.step

    def spy(self, *arguments):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    train(Seq2SeqTransformer(SMALL), batches(3), replace(LAB_RECIPE, steps=3, clip_norm=0.01))
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)


def test_loop_takes_each_batch_once_and_in_order():
    torch.manual_seed(5)
    drawn, seen = batches(4), []
    model = Seq2SeqTransformer(SMALL)
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    train(model, iter(drawn), replace(LAB_RECIPE, steps=4))
    assert [s is batch.source for s, batch in zip(seen, drawn, strict=True)] == [True] * 4
    assert train(model, [], LAB_RECIPE) == []


def test_training_is_a_function_of_its_seeds():
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append(train(Seq2SeqTransformer(SMALL), batches(5), replace(LAB_RECIPE, steps=5)))
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "parts"),
    [
        ("reverse", {}),
        ("reverse", {"num_layers": 2}),
        ("reverse", {"placement": "post"}),
        ("reverse", {"norm": "rmsnorm"}),
        ("reverse", {"ffn": "swiglu"}),
        ("reverse", {"positions": "sinusoidal"}),
        ("copy", {}),
        ("copy", {"num_layers": 2}),
    ],
    ids=str,
)
def test_lab_learns_its_task_within_200_steps(task, parts):
    torch.manual_seed(41)
    model = Seq2SeqTransformer(replace(LAB, **parts))
    drawn = sequence_batches(task, steps=200, batch_size=LAB_RECIPE.batch_size, seed=43)
    losses = train(model, drawn, LAB_RECIPE)
    (held_out,) = sequence_batches(task, steps=1, batch_size=512, seed=47, held_out=True)
    assert held_out.source is not None
    written = generate_seq2seq(model, held_out.source, max_new_tokens=8)
    assert losses[0] == pytest.approx(math.log(16), rel=0.15)
    assert exact_match(written[:, 1:], held_out.answers) >= 0.995


@pytest.mark.slow
@pytest.mark.parametrize("config", [LAB, VANILLA_2017, LLAMA_STYLE], ids=lambda c: c.positions)
def test_decoder_only_learns_the_cycle(config):
    torch.manual_seed(41)
    model = DecoderOnlyTransformer(config)
    recipe = replace(LAB_RECIPE, steps=100)
    drawn = cyclic_batches(
        steps=100, batch_size=recipe.batch_size, seed=43, vocab_size=config.vocab_size
    )
    train(model, drawn, recipe)
    (held_out,) = cyclic_batches(steps=1, batch_size=53, seed=47)
    prompt = torch.tensor([[1, answer[0]] for answer in held_out.answers])
    written = generate_decoder_only(model, prompt, max_new_tokens=12)
    assert exact_match(written[:, 2:], [answer[1:] for answer in held_out.answers]) == 1.0

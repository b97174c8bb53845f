"""Greedy decoding: ends, padding, prompts of unequal length, modes."""

from dataclasses import replace
from threading import Event, Thread

import pytest
import torch

from transformer.config import POSITIONS, ModelConfig
from transformer.generation import (
    Sampler,
    evaluating,
    generate_decoder_only,
    generate_seq2seq,
    write_on,
)
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer

CONFIG = ModelConfig(vocab_size=13, num_layers=2, d_ff=11)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(31)


def random_weights(model):
    """Weights large enough that the answer depends on every input."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model.eval()


class Scripted(DecoderOnlyTransformer):
    """Answers with a script: the next token of a row is a function of its real tokens so far."""

    def __init__(self, script, **changes):
        super().__init__(replace(CONFIG, **changes))
        self.script = script
        self.history = None

    def decode(self, tokens, valid, cache=None, newest_only=False):
        rows = [row[real].tolist() for row, real in zip(tokens, valid, strict=True)]
        logits = torch.zeros(*tokens.shape, 13)
        for index, row in enumerate(rows):
            logits[index, -1, self.script(row)] = 1.0
        return logits


def generate(model, prompt, **options):
    return generate_decoder_only(model, torch.tensor(prompt), use_cache=False, **options).tolist()


def test_rows_end_by_themselves_and_are_filled_with_eos():
    # Rows count up and end at 9.
    model = Scripted(lambda row: 2 if row[-1] == 9 else row[-1] + 1)
    got = generate(model, [[1, 8], [1, 5], [1, 7]], max_new_tokens=7)
    assert got == [[1, 8, 9, 2, 2, 2, 2], [1, 5, 6, 7, 8, 9, 2], [1, 7, 8, 9, 2, 2, 2]]


def test_decoding_stops_at_the_budget_and_without_eos_never_earlier():
    model = Scripted(lambda row: 2)
    assert generate(model, [[1, 8]], max_new_tokens=5) == [[1, 8, 2]]
    assert generate(model, [[1, 8]], max_new_tokens=3, eos_id=None) == [[1, 8, 2, 2, 2]]


def test_prompts_of_unequal_length_continue_after_their_last_real_token():
    model = Scripted(lambda row: min(12, row[-1] + len(row)))
    got = generate(model, [[1, 3, 4, 5], [1, 0, 0, 0], [1, 4, 0, 0]], max_new_tokens=2)
    assert got == [[1, 3, 4, 5, 9, 12], [1, 0, 0, 0, 2, 2], [1, 4, 0, 0, 6, 9]]


def test_prompt_may_end_with_what_its_validity_tells():
    model = Scripted(lambda row: min(12, row[-1] + len(row)))
    valid = torch.tensor([[True, True, True], [True, False, False]])
    got = generate(model, [[1, 3, 4], [1, 7, 8]], max_new_tokens=1, valid_prompt=valid)
    assert got == [[1, 3, 4, 7], [1, 7, 8, 2]]


def test_no_new_tokens_return_the_prompt():
    prompt = torch.tensor([[1, 3, 4], [1, 5, 0]])
    model = DecoderOnlyTransformer(CONFIG)
    assert torch.equal(generate_decoder_only(model, prompt, max_new_tokens=0), prompt)
    source = torch.tensor([[3, 4], [5, 0]])
    got = generate_seq2seq(Seq2SeqTransformer(CONFIG), source, max_new_tokens=0)
    assert got.tolist() == [[1], [1]]


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("use_cache", [True, False])
def test_row_in_a_batch_is_continued_as_it_is_alone(positions, use_cache):
    model = random_weights(DecoderOnlyTransformer(replace(CONFIG, positions=positions)))
    prompt = torch.randint(3, 13, (5, 6))
    lengths = (6, 2, 1, 4, 6)
    for row, length in enumerate(lengths):
        prompt[row, length:] = 0
    options = {"max_new_tokens": 7, "eos_id": None, "use_cache": use_cache}
    together = generate_decoder_only(model, prompt, **options)
    for row, length in enumerate(lengths):
        alone = generate_decoder_only(model, prompt[row : row + 1, :length], **options)
        assert together[row, 6:].tolist() == alone[0, length:].tolist()


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pad_id", [0, 5, None])
def test_cache_changes_nothing_even_where_padding_is_emitted(positions, pad_id):
    config = replace(CONFIG, positions=positions, pad_id=pad_id, rope_cross=True, tied=False)
    prompt = torch.randint(6, 13, (7, 3))
    for kind, generate in (
        (DecoderOnlyTransformer, generate_decoder_only),
        (Seq2SeqTransformer, generate_seq2seq),
    ):
        model = random_weights(kind(config))
        common = generate(model, prompt, max_new_tokens=4)[:, -1].mode().values
        # From now on padding wins wherever the most common token would have.
        table = model.output_projection.weight.data
        table[pad_id or 0] = 1.5 * table[common]
        cached, uncached = (
            generate(model, prompt, max_new_tokens=6, use_cache=use_cache)
            for use_cache in (True, False)
        )
        assert torch.equal(cached, uncached)
        assert (cached[:, 1:] == (pad_id or 0)).any()


@pytest.mark.parametrize("use_cache", [True, False])
def test_emitted_padding_is_fed_back_as_padding(use_cache):
    model = Seq2SeqTransformer(CONFIG)
    with torch.no_grad():
        model.output_projection.weight.zero_()
    got = generate_seq2seq(model, torch.tensor([[3, 4]]), max_new_tokens=3, use_cache=use_cache)
    assert got.tolist() == [[1, 0, 0, 0]]


def test_seq2seq_feeds_back_what_it_wrote():
    model = random_weights(Seq2SeqTransformer(CONFIG))
    source = torch.randint(3, 13, (7, 5))
    source[3, 2:] = 0
    written = generate_seq2seq(model, source, max_new_tokens=6, eos_id=None)
    predicted = model(source, written[:, :-1]).argmax(dim=-1)
    assert written[:, 0].tolist() == [1] * 7
    assert torch.equal(predicted, written[:, 1:])


def test_generation_is_done_in_eval_mode_and_leaves_every_mode_as_it_was():
    model = Seq2SeqTransformer(replace(CONFIG, dropout=0.5)).train()
    model.encoder.eval()
    before = [module.training for module in model.modules()]
    seen = []
    model.decoder.register_forward_hook(lambda module, *_: seen.append(module.training))
    first = generate_seq2seq(model, torch.tensor([[3, 4, 5]]), max_new_tokens=4, eos_id=None)
    again = generate_seq2seq(model, torch.tensor([[3, 4, 5]]), max_new_tokens=4, eos_id=None)
    assert torch.equal(first, again) and not any(seen)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "t5bias"])
def test_padding_in_front_of_a_prompt_does_not_count(positions, use_cache):
    model = random_weights(DecoderOnlyTransformer(replace(CONFIG, positions=positions)))
    options = {"max_new_tokens": 6, "eos_id": None, "use_cache": use_cache}
    rows = [[3, 4, 5, 6, 7], [8, 9, 3], [4]]
    padded = torch.tensor([[0] * (5 - len(row)) + row for row in rows])
    together = generate_decoder_only(model, padded, **options)
    for row, written in zip(rows, together, strict=True):
        alone = generate_decoder_only(model, torch.tensor([row]), **options)
        assert torch.equal(written[5:], alone[0, len(row) :])


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("top_p", [0.35, 0.75, 1.0])
def test_sampler_draws_each_token_as_often_as_its_probability_says(temperature, top_p):
    logits = torch.tensor([0.1, 2.0, -1.0, 1.5, 0.5])
    probabilities = (logits / temperature).softmax(dim=0)
    kept, reached = [], 0.0
    for index in probabilities.argsort(descending=True).tolist():
        if reached < top_p:
            kept.append(index)
        reached += probabilities[index].item()
    expected = torch.zeros(5)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    sampler = Sampler(temperature, top_p, torch.Generator().manual_seed(73))
    drawn = sampler(logits.expand(20_000, 5)).bincount(minlength=5) / 20_000
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0.015)
    assert all(drawn[index] == 0 for index in range(5) if index not in kept)


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, 2)])
def test_sampler_refuses_what_is_no_distribution(temperature, top_p):
    with pytest.raises(ValueError, match="must be"):
        Sampler(temperature, top_p)


def test_tokens_are_yielded_one_by_one_in_the_modes_of_the_reader():
    model = random_weights(DecoderOnlyTransformer(CONFIG)).train()
    prompt = torch.tensor([[3, 4, 5]])
    whole = generate_decoder_only(model, prompt, max_new_tokens=9, eos_id=None)[0, 3:].tolist()
    written = []
    for token in write_on(model, prompt, max_new_tokens=9):
        assert model.training and torch.is_grad_enabled()
        written.append(token)
    assert written == whole
    stop = whole[4]
    until = whole[: whole.index(stop)]
    assert list(write_on(model, prompt, max_new_tokens=9, end_ids={stop})) == until
    assert max(write_on(model, prompt, max_new_tokens=9, num_ids=5)) < 5


def test_modes_come_back_after_an_error():
    model = Seq2SeqTransformer(CONFIG).train()
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


def test_modes_come_back_after_several_threads_have_evaluated():
    model = Seq2SeqTransformer(CONFIG).train()
    model.encoder.eval()
    before = [module.training for module in model.modules()]
    first_is_in, first_may_leave = Event(), Event()

    def first() -> None:
        with evaluating(model):
            first_is_in.set()
            first_may_leave.wait(10)

    thread = Thread(target=first)
    thread.start()
    first_is_in.wait(10)
    with evaluating(model.decoder):  # enters second and leaves last
        first_may_leave.set()
        thread.join(10)
        assert not any(module.training for module in model.decoder.modules())
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("use_cache", [True, False])
def test_ids_of_32_bits_are_written_after_like_those_of_64(use_cache):
    prompt = torch.tensor([[1, 3, 0], [1, 4, 5]])
    for generate, kind in (
        (generate_seq2seq, Seq2SeqTransformer),
        (generate_decoder_only, DecoderOnlyTransformer),
    ):
        model = random_weights(kind(CONFIG))
        wide, narrow = (
            generate(model, ids, max_new_tokens=5, use_cache=use_cache)
            for ids in (prompt, prompt.int())
        )
        assert narrow.dtype == torch.int64 and torch.equal(wide, narrow)


def test_no_rows_get_no_answers():
    none = torch.ones(0, 3, dtype=torch.int64)
    pair, alone = Seq2SeqTransformer(CONFIG), DecoderOnlyTransformer(CONFIG)
    assert generate_seq2seq(pair, none, max_new_tokens=5).shape == (0, 1)
    assert generate_decoder_only(alone, none, max_new_tokens=5).shape == (0, 3)


def test_prompt_and_source_are_not_changed():
    prompt = torch.tensor([[1, 3, 0], [1, 4, 5]])
    generate_decoder_only(random_weights(DecoderOnlyTransformer(CONFIG)), prompt, max_new_tokens=5)
    assert prompt.tolist() == [[1, 3, 0], [1, 4, 5]]


def test_generation_refuses_a_negative_budget_and_prompts_without_a_token():
    alone, pair = DecoderOnlyTransformer(CONFIG), Seq2SeqTransformer(CONFIG)
    prompt = torch.tensor([[1, 3], [0, 0]])
    with pytest.raises(ValueError, match="max_new_tokens must be at least 0, got -1"):
        generate_decoder_only(alone, prompt[:1], max_new_tokens=-1)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 0, got -2"):
        generate_seq2seq(pair, prompt[:1], max_new_tokens=-2)
    with pytest.raises(ValueError, match="every row of prompt .* row 1 has none"):
        generate_decoder_only(alone, prompt, max_new_tokens=3)
    with pytest.raises(ValueError, match="every row of source .* row 1 has none"):
        generate_seq2seq(pair, prompt, max_new_tokens=3)
    with pytest.raises(TypeError, match="max_new_tokens must be an integer, got 2.5"):
        generate_seq2seq(pair, prompt[:1], max_new_tokens=2.5)
    for generate, model in ((generate_seq2seq, pair), (generate_decoder_only, alone)):
        with pytest.raises(ValueError, match="eos_id must be below vocab_size 13, got 13"):
            generate(model, prompt[:1], max_new_tokens=3, eos_id=13)
    with pytest.raises(ValueError, match="bos_id must be at least 0, got -1"):
        generate_seq2seq(pair, prompt[:1], max_new_tokens=3, bos_id=-1)

"""The models under torch.export, torch.compile, torch.func and on the meta device."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from transformer.config import LAB, LLAMA_STYLE, VANILLA_2017, ModelConfig
from transformer.decoder import CausalBlock, DecoderBlock
from transformer.encoder import EncoderBlock
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer

CONFIGS = {"lab": LAB, "llama": LLAMA_STYLE, "vanilla": VANILLA_2017}

# Tracing asks torch for parts of its own that it warns about.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    torch.manual_seed(71)
    return CONFIGS[request.param]


def padded_ids() -> torch.Tensor:
    return torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])


def test_exported_program_answers_like_the_model(config):
    for model, inputs in (
        (DecoderOnlyTransformer(config).eval(), (padded_ids(),)),
        (Seq2SeqTransformer(config).eval(), (padded_ids(), padded_ids().flip(0))),
    ):
        program = torch.export.export(model, inputs).module()
        torch.testing.assert_close(program(*inputs), model(*inputs))


def test_blocks_compile_without_graph_breaks(config):
    x, valid = torch.randn(2, 5, config.d_model), padded_ids() != 0
    for block, call in (
        (CausalBlock(config), {"valid": valid}),
        (EncoderBlock(config), {"valid": valid}),
        (DecoderBlock(config), {"memory": x, "target_valid": valid, "memory_valid": valid}),
    ):
        compiled = torch.compile(block, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x, **call), block(x, **call))


def test_gradients_of_single_rows_come_from_one_vmap(config):
    model, rows = DecoderOnlyTransformer(config).eval(), padded_ids()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, row):
        (logits,) = functional_call(model, parameters, (row[None, :-1],))
        return torch.nn.functional.cross_entropy(logits, row[1:], ignore_index=0)

    together = vmap(grad(loss), (None, 0))(parameters, rows)
    for index, row in enumerate(rows):
        for name, alone in grad(loss)(parameters, row).items():
            torch.testing.assert_close(together[name][index], alone, msg=name)


@pytest.mark.parametrize("kind", [DecoderOnlyTransformer, Seq2SeqTransformer])
def test_model_built_without_numbers_has_its_tables(config, kind):
    model = kind(config).eval()
    inputs = (padded_ids(),) * (2 if kind is Seq2SeqTransformer else 1)
    with torch.device("meta"):
        assigned, filled = kind(config).eval(), kind(config).eval()
    assigned.load_state_dict(model.state_dict(), assign=True)
    filled.to_empty(device="cpu").load_state_dict(model.state_dict())
    model_again = kind(config).eval()
    model_again.to_empty(device="cpu").load_state_dict(model.state_dict())
    for again in (assigned, filled, model_again):
        assert torch.equal(again(*inputs), model(*inputs))
        assert not any("cos" in name or "table" in name for name in again.state_dict())

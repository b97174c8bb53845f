# %% [markdown]
# # 7. From 2017 to today
#
# The transformer of 2017 and the language models of today differ in six small parts:
#
# | part | 2017 | today |
# |---|---|---|
# | where the norm stands | after the sum | before the sublayer |
# | norm | LayerNorm | RMSNorm |
# | feed-forward | ReLU | SwiGLU |
# | positions | sinusoids, added | rotations, inside attention (S3) |
# | key and value heads | as many as query heads | a few, shared (S2) |
# | bias of linear layers | yes | no |

# %%
import lab
import torch

lab.mount()
from transformer.config import LLAMA_STYLE, VANILLA_2017, ModelConfig
from transformer.models import Seq2SeqTransformer, kv_cache_elements

# %% [markdown]
# ## Where the parameters are
#
# The two recipes of `config.py` cost the same: what grouped heads save, the gate of SwiGLU spends.


# %%
def budget(config):
    from transformer.models import DecoderOnlyTransformer

    parts = {"embedding": 0, "attention": 0, "feed_forward": 0, "norm": 0}
    for name, parameter in DecoderOnlyTransformer(config).named_parameters():
        parts[[part for part in parts if part in name][-1]] += parameter.numel()
    return parts


counts = {"2017": budget(VANILLA_2017), "today": budget(LLAMA_STYLE)}
rows = {f"{part}, {era}": counts[era][part] for part in counts["2017"] for era in counts}
lab.bars(rows, "parameters", mark="today")
totals = [sum(parts.values()) for parts in counts.values()]
lab.claim(f"The two differ by less than 1%: {totals}.", abs(totals[0] / totals[1] - 1) < 0.01)

# %% [markdown]
# **Question.** Which part holds most parameters? How does its share change when the model gets
# twice as wide, with the same vocabulary?
#
# *Your answer:*

# %% [markdown]
# ## Norms: is the mean worth removing?
#
# LayerNorm moves a vector to mean 0 and scales it; RMSNorm only scales it. (Both are given.)

# %%
from transformer.norms import LayerNorm, RMSNorm

x = torch.sin(torch.linspace(0, 9, 64)) + 2.0
out = {"the vector": x, "LayerNorm": LayerNorm(64)(x), "RMSNorm": RMSNorm(64)(x)}
lab.lines({name: y.tolist() for name, y in out.items()}, "number in the vector", "value")
lab.claim("LayerNorm removes the mean.", out["LayerNorm"].mean().abs() < 1e-5)
lab.claim("RMSNorm keeps the direction of the vector.", torch.allclose(
    out["RMSNorm"] / x, (out["RMSNorm"] / x)[0].expand(64)))  # fmt: skip

# %% [markdown]
# **Question.** RMSNorm saves a subtraction and a bias. Which of the two curves would change if the
# same number were added to the whole vector?
#
# *Your answer:*

# %% [markdown]
# ## Activations: from a kink to a gate
#
# ReLU has a kink and a flat side where nothing learns. GELU and SiLU are smooth. SwiGLU multiplies
# SiLU of one projection with *another* projection: one half decides how much of the other passes.

# %%
from torch.nn import functional

x = torch.linspace(-4, 4, 161)
curves = {"ReLU": functional.relu(x), "GELU": functional.gelu(x), "SiLU": functional.silu(x)}
shown = {name: y.tolist() for name, y in curves.items()}
lab.lines(shown, "what comes in", "what goes out", at=x.tolist())
lab.claim("Left of 0, ReLU is flat and SiLU is not.", curves["SiLU"][:80].std() > 0.05)

# %% [markdown]
# **Question.** A gated layer has three matrices where the others have two. `LLAMA_STYLE` narrows F
# from 256 to 196. What did that keep constant?
#
# *Your answer:*

# %% [markdown]
# ## Positions, added
#
# In 2017 every position got a pattern of waves, added to the token. Each column has its own
# wavelength, from a few tokens to thousands.

# %%
from transformer.positions import sinusoids

table = sinusoids(32, 16)
lab.grids({"sinusoids": (table.T + 1) / 2}, "column", "position")
near, far = table[10] @ table[11], table[10] @ table[30]
lab.claim("Neighbours are more alike than distant positions.", near > far)

# %% [markdown]
# **Question.** Which columns tell neighbours apart, and which tell the beginning from the end?
#
# *Your answer:*

# %% [markdown]
# ## Positions, turned (task S3)
#
# RoPE turns queries and keys by an angle that grows with their position. A dot product only sees
# the *difference* of two angles, hence the distance of two tokens.

# %%
from transformer.rotary import apply_rope, rope_tables

with lab.todo():
    torch.manual_seed(3)
    q, k = torch.randn(2, 16)
    turned = [apply_rope(v.expand(12, 16), *rope_tables(12, 16)) for v in (q, k)]
    scores = turned[0] @ turned[1].T  # the same query and key, at every pair of positions
    lab.grids({"score": scores - scores.min()}, "position of the query", "position of the key")
    stripes = (scores[1:, 1:] - scores[:-1, :-1]).abs().max()
    lab.claim("Along every diagonal the score is the same.", stripes < 1e-4)

# %% [markdown]
# **Question.** Why are the values of attention not turned?
#
# *Your answer:*

# %% [markdown]
# ## Swapped one at a time
#
# The same small model, with one part exchanged each time, 60 steps of training.

# %%
old = {"ffn": "relu", "placement": "post", "positions": "sinusoidal"}
swaps = {
    "2017": {},
    "pre-norm": {"placement": "pre"},
    "RMSNorm": {"norm": "rmsnorm"},
    "SwiGLU": {"ffn": "swiglu", "d_ff": 43},
    "learned positions": {"positions": "learned"},
    "no bias": {"bias": False},
}
with lab.todo():
    runs = {name: lab.trained(60, **(old | swap))[1] for name, swap in swaps.items()}
    lab.lines({n: torch.tensor(r).unfold(0, 8, 1).mean(1).tolist() for n, r in runs.items()},
              "step", "nats per token, mean of 8", log="y")  # fmt: skip
    lab.claim("Every one of them learns.", all(run[-1] < 0.5 * run[0] for run in runs.values()))

# %% [markdown]
# **Question.** Which swap helps most here? On one small task with one seed, how much does that
# prove?
#
# *Your answer:*

# %% [markdown]
# ## Grouped heads (task S2)
#
# Neighbouring query heads share one key and value head: fewer keys to remember, nearly the same
# model.

# %%
with lab.todo():
    swaps = {"4 heads (multi-head)": 4, "2 heads (grouped)": 2, "1 head (multi-query)": 1}
    runs = {name: lab.trained(60, num_kv_heads=n)[1] for name, n in swaps.items()}
    lab.lines({n: torch.tensor(r).unfold(0, 8, 1).mean(1).tolist() for n, r in runs.items()},
              "step", "nats per token, mean of 8", log="y")  # fmt: skip
    lab.claim("Even one key head learns.", all(run[-1] < 0.5 * run[0] for run in runs.values()))

# %% [markdown]
# **Question.** What does a query head lose when it shares its keys with three others, and what is
# still its own?
#
# *Your answer:*

# %% [markdown]
# ## What the cache costs
#
# A model that writes remembers the keys and values of all earlier tokens. For a model of 32 layers,
# 32 heads of width 128 and two bytes a number, and *one* conversation:

# %%
lengths = [2**n for n in range(10, 18)]
large = {"d_model": 4096, "num_heads": 32, "num_layers": 32}
gib = {}
for heads in (32, 8, 2):
    config = ModelConfig(**large, num_kv_heads=heads)
    gib[f"{heads} key heads"] = [2 * kv_cache_elements(config, 1, n) / 2**30 for n in lengths]
lab.lines(gib, "tokens so far", "GiB of cache", at=lengths)
lab.claim("Eight key heads need a quarter.", gib["8 key heads"][-1] * 4 == gib["32 key heads"][-1])

# %% [markdown]
# **Question.** How many conversations of 8,192 tokens fit into 40 GiB beside the model, with 32 key
# heads and with 8?
#
# *Your answer:*

# %% [markdown]
# ## What the cache saves (task S1)
#
# Without it, every new token makes the model read all earlier ones again. Same answers, less work:

# %%
import time

from transformer.generation import generate_seq2seq

with lab.todo():
    torch.manual_seed(0)
    model, source = Seq2SeqTransformer(ModelConfig()), torch.randint(3, 16, (8, 7))
    counts, answers, seconds = [8, 32, 64, 128], [], {"without": [], "with cache": []}
    for use, taken in enumerate(seconds.values()):
        for n in counts:
            began, limits = time.perf_counter(), {"max_new_tokens": n, "eos_id": None}
            answers.append(generate_seq2seq(model, source, use_cache=bool(use), **limits))
            taken.append(time.perf_counter() - began)
    lab.lines(seconds, "tokens written", "seconds", at=counts)
    lab.claim("Both write the same.", answers[3].equal(answers[7]))

# %% [markdown]
# **Question.** One curve bends, the other is nearly straight. How do the two grow with the number
# of tokens?
#
# *Your answer:*

# %% [markdown]
# ## Old weights in a new model (task S4)
#
# A trained multi-head model can be turned into one with grouped heads: the keys and values that
# share a head become their mean, or the first of them.

# %%
from transformer.config import TrainingRecipe
from transformer.data import cyclic_batches
from transformer.models import DecoderOnlyTransformer
from transformer.training import masked_cross_entropy, teacher_forcing, train


def learned(steps=40):
    torch.manual_seed(0)
    model = DecoderOnlyTransformer(ModelConfig())
    batches = cyclic_batches(steps=steps, batch_size=32, seed=0)
    train(model, batches, TrainingRecipe(steps=steps, batch_size=32))
    return model


# %%
from transformer.convert import convert, old_name

with lab.todo():
    model, grouped = learned(), ModelConfig(num_kv_heads=2)
    inputs, targets = teacher_forcing(next(cyclic_batches(steps=1, batch_size=32, seed=1)).answers)
    old = {old_name(name): weight for name, weight in model.state_dict().items()}
    models = {"as it was": model}
    models |= {how: convert(old, grouped, how) for how in ("mean", "first", "random")}
    losses = {n: masked_cross_entropy(m(inputs), targets).item() for n, m in models.items()}
    lab.bars(losses, "loss in nats per token", mark="random")
    lab.claim("What was learned is worth keeping.", losses["mean"] < losses["random"])

# %% [markdown]
# **Question.** A little training after the conversion repairs most of the loss. Why is that cheaper
# than training the grouped model from the start?
#
# *Your answer:*

# %% [markdown]
# # 6. The four gates
#
# `make grade` judges a finished model by four questions, in this order. Each has a picture. Here
# they are, of your model, and next to it of your model with one mistake put into it.

# %%
from unittest import mock

import lab
import torch

lab.mount()
from transformer import attention, models
from transformer.config import ModelConfig
from transformer.models import Seq2SeqTransformer

source, target = torch.tensor([[5, 9, 12, 7]]), torch.tensor([[1, 8, 6, 11, 4]])

# %% [markdown]
# ## Gate 1: does the future stay hidden?
#
# One target token is changed; every logit at an *earlier* position must stay exactly where it was.
# The mistake: a causal mask one step too wide.


# %%
def leaks():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(ModelConfig()).double().eval()
    return lab.influence(lambda tokens: model(source, tokens), target)


right = attention.causal_mask
too_wide = mock.patch.object(
    attention, "causal_mask", lambda t, s, offset=0, device=None: right(t, s, offset + 1, device)
)

# %%
with lab.todo():
    yours = leaks()
    with too_wide:
        wrong = leaks()
    shown = {"yours": yours, "one step too wide": wrong}
    lab.grids(shown, "logits that move", "target token changed", power=0.3)
    lab.claim("Right of the diagonal nothing moves.", (yours.triu(1) < 1e-6).all())
    lab.claim("The wrong mask shows one step of the future.", (wrong.diagonal(1) > 1e-6).all())

# %% [markdown]
# **Reading it.** A dark square right of the diagonal: these logits knew that token too early. A
# stripe says that a mask is shifted, a whole triangle that there is none.
#
# **Question.** A dead model that ignores its input leaks nothing. Which squares must be dark, so
# that it does not pass? (The grader calls this the gate's *control*.)
#
# *Your answer:*

# %% [markdown]
# ## Gate 2: does padding matter?
#
# Two columns of padding more on the source, three on the target: by how much do the logits at real
# positions move? The mistake: padding is taken for real.


# %%
def padded_minus_unpadded():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(ModelConfig()).double().eval()
    wide = [torch.nn.functional.pad(ids, (0, n)) for ids, n in ((source, 2), (target, 3))]
    with torch.no_grad():
        gap = model(*wide)[:, : target.shape[1]] - model(source, target)
    return gap[0].abs().amax(dim=-1)


all_real = mock.patch.object(models, "padding_mask", lambda ids, pad_id: torch.ones_like(ids) > 0)

# %%
with lab.todo():
    yours = padded_minus_unpadded()
    with all_real:
        wrong = padded_minus_unpadded()
    shown = {"yours": yours, "padding taken for real": wrong}
    curves = {name: (gap + 1e-17).tolist() for name, gap in shown.items()}
    lab.lines(curves, "position", "largest change", log="y", level=("allowed", 1e-6))
    lab.claim("Your logits move by rounding only.", yours.max() < 1e-6)
    lab.claim("The wrong ones move everywhere.", (wrong > 1e-6).all())

# %% [markdown]
# **Reading it.** A change at every position comes from the *source's* padding, through
# cross-attention or the encoder. A change at the last positions only comes from the target's own.
#
# **Question.** Why does the target's padding, on the right, hardly ever reach a real position of a
# decoder, even if nobody masks it?
#
# *Your answer:*

# %% [markdown]
# ## Gate 3: does every parameter learn?
#
# One backward pass, and the norm of each gradient. The mistake: the encoder's branches are cut off
# from the gradient.

# %%
from transformer.residual import ResidualBranch
from transformer.training import masked_cross_entropy, teacher_forcing


def gradients():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(ModelConfig())
    inputs, targets = teacher_forcing([[8, 6, 11, 4], [7, 3]])
    masked_cross_entropy(model(torch.tensor([[5, 9, 12], [3, 7, 0]]), inputs), targets).backward()
    return {name: p.grad for name, p in model.encoder.named_parameters()}


# %%
whole = ResidualBranch.forward
cut_off = mock.patch.object(
    ResidualBranch, "forward", lambda self, x, f: whole(self, x, lambda y: f(y).detach())
)

# %%
with lab.todo():
    yours = gradients()
    with cut_off:
        wrong = gradients()
    short = {n.removeprefix("blocks.0."): g for n, g in yours.items() if g is not None}
    lab.bars({n: g.norm() for n, g in short.items()}, "your gradient", log=True, mark="k_proj.bias")
    dead = [name for name, gradient in wrong.items() if gradient is None]
    fed = all(g is not None and g.any() for n, g in yours.items() if "k_proj.bias" not in n)
    lab.claim("Every parameter of your encoder gets a gradient.", fed)
    lab.claim(f"With the mistake {len(dead)} of {len(wrong)} get none.", len(dead) >= 12)

# %% [markdown]
# **Reading it.** A missing bar: the loss does not depend on that parameter, or the path to it is
# cut (`detach`, `.data`, `.item()`, a layer that is never called). The orange bar is as good as 0
# in every right model.
#
# **Question.** Adding the same number to all scores of a query leaves the softmax as it is. Why
# does the bias of the keys therefore get no gradient?
#
# *Your answer:*

# %% [markdown]
# ## Gate 4: can it answer by itself?
#
# Your loop trains your model; then it writes freely. The same training once more, with the leak of
# gate 1 in it. First with teacher forcing, where the model reads the true answer:

# %%
from transformer.generation import generate_seq2seq
from transformer.metrics import exact_match, sequence_accuracy


def scores(model):
    batch = lab.held_out()
    inputs, targets = teacher_forcing(batch.answers)
    with torch.no_grad():
        forced = sequence_accuracy(model.eval()(batch.source, inputs), targets)
    free = generate_seq2seq(model, batch.source, max_new_tokens=6, use_cache=False)
    return forced, exact_match(free[:, 1:], batch.answers)


# %%
with lab.todo():
    yours = scores(lab.trained()[0])
    with too_wide:
        leaking = scores(lab.trained(mistake="too wide")[0])
    names = ("reading the true answer", "writing freely")
    shown = {f"yours, {n}": v for n, v in zip(names, yours, strict=True)}
    shown |= {f"leaking, {n}": v for n, v in zip(names, leaking, strict=True)}
    lab.bars(shown, "share of answers that are right", mark="leaking")
    lab.claim("Reading the truth, both seem perfect.", min(yours[0], leaking[0]) > 0.9)
    lab.claim("Writing freely, the leaking one fails.", yours[1] > 0.9 and leaking[1] < 0.2)

# %% [markdown]
# **Reading it.** Good with teacher forcing and bad when writing: the model reads what it should
# predict. That is why gate 1 comes first, and why teacher forcing never counts.
#
# **Question.** What did the leaking model learn to do, in a few words?
#
# *Your answer:*

# %% [markdown]
# ## Now the real ones
#
# `make grade` writes `reports/starter/report.html`: the same pictures for the place where your
# model fails, and the sentence that explains it. Where you stand, as far as you have been graded:

# %%
import json

found = sorted(lab.ROOT.glob("reports/*/results.json"), key=lambda p: p.stat().st_mtime)
if found:
    entries = json.loads(found[-1].read_bytes())
    names = {f"{e['task']} {e['name']}": e for e in entries["parts"]}
    names |= {e["name"]: e for e in entries["gates"]}
    lab.bars({n: e["score"] for n, e in names.items()}, "points in the latest report")
else:
    print("Nothing yet: run  make grade  in a terminal, then this cell again.")

# %% [markdown]
# **Question.** Which gate stops you now, which picture shows it, and which function draws it?
#
# *Your answer:*

# %% [markdown]
# # 5. Training and end tokens
#
# *Task 6, `training.py`.* The model learns to predict the next token of the true answer. Two things
# decide whether that works: what it reads while it learns, and how it knows when to stop.

# %%
import math

import lab
import torch

lab.mount()
from transformer.data import EOS
from transformer.training import masked_cross_entropy, teacher_forcing

# %% [markdown]
# ## One step ahead (task 6.1)
#
# The decoder reads BOS and the answer; it must say the answer and EOS. At every position the target
# is the token that is read one step later.

# %%
with lab.todo():
    inputs, targets = teacher_forcing([[7, 5, 9], [8]])
    shown = {"what it reads": inputs, "what it must say": targets}
    lab.grids({k: v > 2 for k, v in shown.items()}, "row", "position", texts=shown)
    real = targets[:, :-1] > 2
    lab.claim("What it must say is read next.", (targets[:, :-1] == inputs[:, 1:])[real].all())
    lab.claim("Every row ends with EOS.", (targets == EOS).sum(dim=1).tolist() == [1, 1])

# %% [markdown]
# **Question.** Row 1 never reads EOS. Why would reading it be a waste?
#
# *Your answer:*

# %% [markdown]
# ## The price of a token (task 6.2)
#
# The loss of a token is -log p, where p is the probability that the model gave to the truth. Being
# sure and wrong costs more than anything.

# %%
with lab.todo():
    chances, losses = [0.01 * n for n in range(1, 100)], []
    for p in chances:
        logits = torch.tensor([[[math.log((1 - p) / 3)] * 3 + [math.log(p)]]])
        losses.append(masked_cross_entropy(logits, torch.tensor([[3]])).item())
    level = ("guessing among 4", math.log(4))
    lab.lines({"loss": losses}, "probability of the truth", "nats", at=chances, level=level)
    lab.claim("A quarter costs ln 4.", abs(losses[24] - math.log(4)) < 1e-3)

# %% [markdown]
# **Question.** How much does it cost to give the truth a probability of 0.01 instead of 0.02? And
# 0.5 instead of 1?
#
# *Your answer:*

# %% [markdown]
# ## Padding has no price
#
# The mean runs over the real targets only. Otherwise a batch with more padding would seem easier.

# %%
with lab.todo():
    logits = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[5, 9, 3, 2, 0, 0], [8, 2, 0, 0, 0, 0]])
    cut = [masked_cross_entropy(logits[:, :n], targets[:, :n]).item() for n in (4, 5, 6)]
    lab.bars({f"{n} columns": loss for n, loss in zip((4, 5, 6), cut, strict=True)}, "nats")
    lab.claim("Two more columns of padding change nothing.", max(cut) - min(cut) < 1e-6)

# %% [markdown]
# **Question.** Row 0 has four real targets and row 1 has two. How much does a token of each row
# weigh in the mean? And if the mean were taken row by row first?
#
# *Your answer:*

# %% [markdown]
# ## The optimiser and its pace (task 6.3)
#
# AdamW is given every parameter once. The learning rate rises quickly and falls slowly to 0
# (given).

# %%
from transformer.config import ModelConfig, TrainingRecipe
from transformer.models import Seq2SeqTransformer, count_params
from transformer.training import make_optimizer, make_scheduler

with lab.todo():
    model, recipe, rates = Seq2SeqTransformer(ModelConfig()), TrainingRecipe(), []
    adamw = make_optimizer(model, recipe)
    pace = make_scheduler(adamw, recipe)
    for _ in range(recipe.steps):
        rates += pace.get_last_lr()
        adamw.step()
        pace.step()
    lab.lines({"rate": rates}, "step", "learning rate")
    held = sum(p.numel() for group in adamw.param_groups for p in group["params"])
    lab.claim("It holds every parameter once.", held == count_params(model))

# %% [markdown]
# **Question.** What goes wrong if the rate starts at its peak? If it never falls?
#
# *Your answer:*

# %% [markdown]
# ## Learning to reverse (task 6.4)
#
# 150 steps of 64 sequences each; a few seconds. The dashed line is what guessing costs.

# %%
with lab.todo():
    model, losses = lab.trained()
    guess = ("guessing: ln 10", math.log(10))
    lab.lines({"loss": losses}, "step", "nats per token", level=guess)
    lab.claim("It begins like guessing.", abs(losses[0] / math.log(10) - 1) < 0.25)
    lab.claim("It ends below a tenth of that.", sum(losses[-10:]) / 10 < 0.1 * math.log(10))

# %% [markdown]
# **Question.** BOS and padding are never the answer, and EOS is never its first token. How far can
# the loss fall by learning nothing but that?
#
# *Your answer:*

# %% [markdown]
# ## Where it looks now
#
# The weights of cross-attention for one held-out sequence. The answer is written from top to
# bottom.

# %%
with lab.todo():
    model, _ = lab.trained()
    source, answer = torch.tensor([[4, 9, 6, 7, 5]]), [5, 7, 6, 9, 4]
    with lab.attention_weights() as seen, torch.no_grad():
        model.eval()(source, teacher_forcing([answer]).decoder_inputs)
    mean = seen[-1][0].mean(dim=0)
    lab.grids({"cross-attention, mean of the heads": mean}, "answer", "source")
    back = mean[:5].argmax(dim=1)
    lab.claim("It reads the source from the back.", (back.diff() < 0).sum() >= 3)

# %% [markdown]
# **Question.** The last row belongs to the position that must say EOS. What does it need to know?
#
# *Your answer:*

# %% [markdown]
# ## Writing freely
#
# In training the model reads the true answer. In use it reads *what it wrote itself*: one slip, and
# all that follows stands on it. Only this counts in gate 4.

# %%
from transformer.generation import generate_seq2seq
from transformer.metrics import exact_match

with lab.todo():
    model, _ = lab.trained()
    batch = lab.held_out()
    written = generate_seq2seq(model, batch.source, max_new_tokens=6, use_cache=False)[:, 1:]
    shown = {"source": batch.source[:6], "written": written[:6]}
    lab.grids({k: v > 2 for k, v in shown.items()}, "row", "position", texts=shown)
    right = exact_match(written, batch.answers)
    lab.claim("More than 9 of 10 answers are right to the last token.", right > 0.9)

# %% [markdown]
# **Question.** If each token is right with probability 0.95, how often is an answer of 8 tokens
# right as a whole?
#
# *Your answer:*

# %% [markdown]
# ## When to stop
#
# EOS is a token like any other: the model has to say it, and decoding stops because it was said.
# Here decoding goes on regardless.

# %%
with lab.todo():
    model, _ = lab.trained()
    batch = lab.held_out()
    free = {"max_new_tokens": 9, "eos_id": None, "use_cache": False}
    endless = generate_seq2seq(model, batch.source[:6], **free)[:, 1:]
    lab.grids({"written": endless == EOS}, "row", "position", texts={"written": endless})
    ends = [row.index(EOS) for row in endless.tolist() if EOS in row]
    lab.claim("Every row says EOS after its answer.", ends == [len(a) for a in batch.answers[:6]])

# %% [markdown]
# **Question.** What the model writes after EOS is arbitrary. Why was nothing else to be expected?
#
# *Your answer:*

# %% [markdown]
# ## Longer than ever seen
#
# Training had 2 to 5 tokens. Does the model reverse, or does it reverse *up to five*?

# %%
with lab.todo():
    model, _ = lab.trained()
    share = {}
    for n in range(2, 9):
        batch = lab.held_out(128, min_length=n, max_length=n)
        words = generate_seq2seq(model, batch.source, max_new_tokens=n + 1, use_cache=False)
        name = f"{n} tokens" + (" (never seen)" if n > 5 else "")
        share[name] = exact_match(words[:, 1:], batch.answers)
    lab.bars(share, "share of answers that are right", mark="never")
    lab.claim("It fails at length 8.", share["8 tokens (never seen)"] < 0.5)

# %% [markdown]
# **Question.** Which part of the model has certainly never been trained for position 7?
#
# *Your answer:*

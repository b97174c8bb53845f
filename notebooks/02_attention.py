# %% [markdown]
# # 2. Attention
#
# *Task 2, `attention.py`.* Attention looks something up: a query is compared with every key, and
# the answer is an average of the values, weighted by how well their keys fit.

# %%
import lab
import torch

lab.mount()
from transformer.attention import merge_heads, scaled_dot_product_attention, split_heads
from transformer.masks import causal_mask

# %% [markdown]
# ## A soft look-up (task 2.1)
#
# Four keys that have nothing in common, and a query that points at key 2. The longer the query,
# the surer the look-up.

# %%
with lab.todo():
    keys = values = torch.eye(4)[None, None]  # (1, 1, 4, 4)
    lengths = torch.linspace(0, 12, 49)
    queries = lengths[:, None] * torch.eye(4)[2]  # one query for each length
    weights = scaled_dot_product_attention(queries[None, None], keys, values).weights[0, 0]
    curves = {f"key {k}": weights[:, k].tolist() for k in (2, 1)}
    lab.lines(curves, "length of the query", "weight", at=lengths.tolist())
    lab.claim("A query of length 0 gives every key a quarter.", (weights[0] == 0.25).all())
    whole = torch.allclose(weights.sum(dim=1), torch.ones(49))
    lab.claim("Whatever the query, the weights sum to 1.", whole)

# %% [markdown]
# **Question.** What does attention return for the query of length 0?
#
# *Your answer:*

# %% [markdown]
# ## Why divide by the root of the width?
#
# The dot product of two random vectors of width K has a standard deviation of sqrt(K). Without
# the division, wide heads would be sure of everything from the start.

# %%
with lab.todo():
    sure = {"scaled by 1/sqrt(K)": [], "not scaled": []}
    widths = [4, 16, 64, 256, 1024]
    for width in widths:
        q, k = torch.randn(2, 1, 1, 64, width)
        for name, factor in zip(sure, (1.0, width**0.5), strict=True):
            weights = scaled_dot_product_attention(q * factor, k, k).weights
            sure[name].append(weights.amax(dim=-1).mean().item())
    lab.lines(sure, "width K of a head", "largest weight of a query", at=widths, log="x")
    steady = max(sure["scaled by 1/sqrt(K)"]) < 1.5 * min(sure["scaled by 1/sqrt(K)"])
    lab.claim("With the scale the largest weight hardly depends on the width.", steady)

# %% [markdown]
# **Question.** Where one weight is almost 1, how much does the softmax still change when a score
# changes a little? What does that mean for learning?
#
# *Your answer:*

# %% [markdown]
# ## Hidden keys get exactly nothing
#
# A mask acts on the *scores*: a hidden key gets a score that the softmax turns into 0, and the
# others share the whole weight.

# %%
with lab.todo():
    q, k = torch.randn(2, 1, 1, 6, 8)
    free = scaled_dot_product_attention(q, k, k).weights[0, 0]
    causal = scaled_dot_product_attention(q, k, k, causal_mask(6, 6)[None, None]).weights[0, 0]
    lab.grids({"no mask": free, "causal mask": causal}, "query", "key")
    lab.claim("Later keys have weight 0, not almost 0.", (causal.triu(1) == 0).all())
    lab.claim("Every row still sums to 1.", torch.allclose(causal.sum(dim=1), torch.ones(6)))

# %% [markdown]
# **Question.** Someone sets the weights of hidden keys to 0 *after* the softmax. Which of the two
# claims breaks, and for which query is it worst?
#
# *Your answer:*

# %% [markdown]
# ## Several heads (task 2.2)
#
# A token's vector of width 8 becomes two heads of width 4: head 0 takes the first half of *every*
# token. Here the numbers of token 0 are 10 to 17, those of token 1 are 20 to 27, and so on.

# %%
with lab.todo():
    x = (10 * torch.arange(1, 4)[:, None] + torch.arange(8))[None].float()  # (1, 3, 8)
    heads = split_heads(x, 2)[0].long()  # (2, 3, 4)
    shown = {"head 0": heads[0], "head 1": heads[1]}
    lab.grids(shown, "token", "number", texts=shown)
    lab.claim("Head 1 holds the second half of every token.", heads[1].equal(x[0, :, 4:].long()))
    lab.claim("Merging undoes splitting.", merge_heads(split_heads(x, 2)).equal(x))

# %% [markdown]
# A `reshape` to (heads, tokens, width) has the same shape, raises no error, and is wrong:

# %%
wrong = (10 * torch.arange(1, 4)[:, None] + torch.arange(8)).reshape(2, 3, 4)
shown = {"not head 0": wrong[0], "not head 1": wrong[1]}
lab.grids(shown, "not a token", "number", texts=shown)

# %% [markdown]
# **Question.** What does row 1 of "not head 0" consist of? Which gate of the grader would notice,
# if no part check did?
#
# *Your answer:*

# %% [markdown]
# ## Multi-head attention (task 2.3)
#
# Each head has its own projections, so each compares tokens in its own way. These are the weights
# of four untrained heads for one and the same sequence.

# %%
from transformer.attention import MultiHeadAttention
from transformer.config import ModelConfig

with lab.todo():
    torch.manual_seed(4)
    attention, x = MultiHeadAttention(ModelConfig(), rope=False), 2 * torch.randn(1, 6, 32)
    with lab.attention_weights() as seen:
        attention(x, causal=True)
    lab.grids({f"head {h}": seen[0][0, h] for h in range(4)}, "query", "key")
    apart = (seen[0][0, 0] - seen[0][0, 1]).abs().max() > 0.01
    lab.claim("The heads see the same sequence differently.", apart)

# %% [markdown]
# **Question.** Four heads of width 8 have as many weights as one head of width 32. What can four
# heads do that one cannot?
#
# *Your answer:*

# %% [markdown]
# ## Attention does not know the order
#
# Shuffle the keys together with their values, and nothing changes:

# %%
with lab.todo():
    torch.manual_seed(4)
    attention = MultiHeadAttention(ModelConfig(), rope=False)
    x, source = torch.randn(2, 1, 6, 32)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    answers = {"in order": attention(x, source), "shuffled": attention(x, source[:, order])}
    lab.grids({k: v[0, :, :12].abs() for k, v in answers.items()}, "query", "number in the answer")
    same = torch.allclose(answers["in order"], answers["shuffled"], atol=1e-5)
    lab.claim("The order of the keys changes no answer.", same)

# %% [markdown]
# **Question.** So where does a transformer get the order of its tokens from? Look at `encode` in
# `models.py`.
#
# *Your answer:*

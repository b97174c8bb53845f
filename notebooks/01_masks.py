# %% [markdown]
# # 1. Masks
#
# *Task 1, `masks.py`.* A batch holds sequences of different lengths, and a decoder must not read
# ahead. Both are said with one kind of object: a table of True and False.
#
# **True = may attend**, in every mask of this lab.
#
# Run the cells from top to bottom. Where your code is not written yet, a box says what to do;
# save the file and run the cell again.

# %%
import lab
import torch

lab.mount()
from transformer.masks import causal_mask, combine_masks, padding_mask

# %% [markdown]
# ## Which tokens are real? (task 1.1)
#
# Rows are padded on the right until all have one length. The padding is there for the shape only;
# `padding_mask` marks what is real. Dark is True.

# %%
ids = torch.tensor([[7, 4, 9, 5, 3], [8, 6, 4, 0, 0], [5, 0, 0, 0, 0]])
with lab.todo():
    real = padding_mask(ids, pad_id=0)
    lab.grids({"real": real}, "row", "position", texts={"real": ids})
    lab.claim("The rows hold 5, 3 and 1 real tokens.", real.sum(dim=1).tolist() == [5, 3, 1])

# %% [markdown]
# **Question.** With `pad_id=None` every id is an ordinary token. What must then be true of the
# sequences of a batch?
#
# *Your answer:*

# %% [markdown]
# ## Who may look back at whom? (task 1.2)
#
# A decoder learns to predict token t + 1 at position t. If position t saw token t + 1, it would
# copy the answer and learn nothing. Rows are queries (who looks), columns are keys (at whom).

# %%
with lab.todo():
    causal = causal_mask(6, 6)
    lab.grids({"causal": causal}, "query", "key")
    seen = causal.sum(dim=1).tolist()
    lab.claim("Query t sees t + 1 keys: the earlier ones and itself.", seen == [1, 2, 3, 4, 5, 6])

# %% [markdown]
# **Question.** Position t sees its own token, on the diagonal. Why is that no cheating?
#
# *Your answer:*

# %% [markdown]
# ## The newest tokens only
#
# When a model writes token by token, the queries are the newest tokens, while the keys are all
# tokens so far. `offset` says how many tokens came before the first query.

# %%
with lab.todo():
    newest = causal_mask(2, 6, offset=4)
    lab.grids({"all six": causal_mask(6, 6), "the newest two": newest}, "query", "key")
    lab.claim("They are the last two rows of the whole.", newest.equal(causal_mask(6, 6)[4:]))

# %% [markdown]
# **Question.** Which offset belongs to one query and nine keys? What would offset 0 show it?
#
# *Your answer:*

# %% [markdown]
# ## Every reason counts (task 1.3)
#
# A key is visible only if no mask hides it. Row 1 of this batch has two padded positions, and the
# decoder must not look ahead in either row.

# %%
with lab.todo():
    real = padding_mask(torch.tensor([[7, 4, 9, 5, 3], [8, 6, 4, 0, 0]]), pad_id=0)
    both = combine_masks(key_valid=real, causal=causal_mask(5, 5))
    lab.grids({"row 0": both[0, 0], "row 1": both[1, 0]}, "query", "key")
    lab.claim("Row 1 never sees keys 3 and 4.", not both[1, 0, :, 3:].any())
    lab.claim("Row 0 is hidden nothing but the future.", both[0, 0].equal(causal_mask(5, 5)))

# %% [markdown]
# **Question.** The combined mask has shape (2, 1, 5, 5). Of what is there one, and why is one
# enough?
#
# *Your answer:*

# %% [markdown]
# ## A query that sees nothing
#
# Attention divides by the sum over all visible keys. Suppose the padding stood on the *left*:

# %%
with lab.todo():
    left = torch.tensor([[False, False, True, True, True]])
    mask = combine_masks(key_valid=left, causal=causal_mask(5, 5))[0, 0]
    lab.grids({"padding on the left": mask}, "query", "key")
    blind = (~mask.any(dim=1)).nonzero()[:, 0].tolist()
    lab.claim("Queries 0 and 1 see no key at all: 0 divided by 0.", blind == [0, 1])

# %% [markdown]
# That is why the lab pads on the right, and why attention (task 2.1) raises `ValueError` for such
# a query instead of answering NaN.
#
# **Question.** With padding on the right and a causal mask, why does every real query see at
# least one key?
#
# *Your answer:*

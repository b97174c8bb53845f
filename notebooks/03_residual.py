# %% [markdown]
# # 3. Residual branches and blocks
#
# *Tasks 3 and 4.1, `residual.py` and `encoder.py`.* A sublayer does not replace the stream of
# vectors, it adds to it. That one sum is why deep transformers can be trained.

# %%
import lab
import torch
from torch import nn

lab.mount()
from transformer.config import ModelConfig
from transformer.residual import ResidualBranch

# %% [markdown]
# ## The path around a sublayer (task 3.1)
#
# The quickest way to see a path is to silence what it leads around: here the sublayer answers 0.

# %%
with lab.todo():
    x = torch.linspace(-1.0, 3.0, 32).reshape(1, 1, 32)
    out = {"what goes in": x}
    for placement in ("pre", "post"):
        branch = ResidualBranch(ModelConfig(placement=placement))
        out[f"{placement}-norm, what comes out"] = branch(x, torch.zeros_like).detach()
    lab.lines({k: v[0, 0].tolist() for k, v in out.items()}, "number in the vector", "value")
    lab.claim("Pre-norm lets x through untouched.", out["pre-norm, what comes out"].equal(x))
    mean = out["post-norm, what comes out"].mean().abs()
    lab.claim("Post-norm normalises even that: its mean is 0.", mean < 1e-5)

# %% [markdown]
# **Question.** Two of the three curves lie on one another. Which, and why must they?
#
# *Your answer:*

# %% [markdown]
# ## How long do the vectors get?
#
# Twenty-four branches in a row, each around a random linear layer.


# %%
def stacked(placement, depth=24):
    torch.manual_seed(0)
    config = ModelConfig(placement=placement)
    return [(ResidualBranch(config), nn.Linear(32, 32)) for _ in range(depth)]


# %%
with lab.todo():
    lengths = {}
    for placement in ("pre", "post"):
        x = torch.randn(1, 50, 32, generator=torch.Generator().manual_seed(1))
        lengths[placement] = [x.norm(dim=-1).mean().item()]
        for branch, layer in stacked(placement):
            x = branch(x, layer).detach()
            lengths[placement].append(x.norm(dim=-1).mean().item())
    lab.lines(lengths, "branches passed", "length of a vector", level=("sqrt(D)", 32**0.5))
    lab.claim("Post-norm keeps the length at sqrt(D).", abs(lengths["post"][-1] - 32**0.5) < 0.1)
    lab.claim("Pre-norm lets it grow.", lengths["pre"][-1] > 1.5 * lengths["pre"][0])

# %% [markdown]
# **Question.** A pre-norm stack ends with a norm of its own (`final_norm` in task 4.2), a
# post-norm stack does not. Why?
#
# *Your answer:*

# %% [markdown]
# ## How much of the gradient arrives?
#
# The same layers, once in your branches and once simply one after another. What reaches the
# first layer, when the loss looks at the last?


# %%
def arriving(apply, depth):
    x = torch.randn(1, 50, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = x
    for branch, layer in stacked("pre", depth):
        y = apply(y, branch, layer)
    y.sum().backward()
    return x.grad.norm().item()


# %%
with lab.todo():
    depths = [0, 2, 4, 8, 16, 24]
    ways = {"residual": lambda y, branch, layer: branch(y, layer), "plain": lambda y, _, f: f(y)}
    norms = {name: [arriving(way, d) for d in depths] for name, way in ways.items()}
    lab.lines(norms, "layers in between", "gradient at the start", at=depths, log="y")
    ratio = norms["residual"][-1] / norms["plain"][-1]
    lab.claim("Through 24 layers the residual path carries 100,000 times more.", ratio > 1e5)

# %% [markdown]
# **Question.** Write down the derivative of x + f(x). Which term keeps the gradient alive, however
# small f is?
#
# *Your answer:*

# %% [markdown]
# ## A block: who talks to whom? (task 4.1)
#
# A block has two branches. Change one token at the entrance and see which tokens move at the exit.

# %%
from transformer.encoder import EncoderBlock

with lab.todo():
    torch.manual_seed(0)
    block, x = EncoderBlock(ModelConfig()).eval(), torch.randn(1, 6, 32)
    whole = lab.influence(block, x)
    alone = lab.influence(block.feed_forward, x)
    shown = {"the block": whole > 1e-6, "its feed-forward layer": alone > 1e-6}
    lab.grids(shown, "token that moves", "token that was changed")
    lab.claim("In an encoder block every token hears every other.", shown["the block"].all())
    lab.claim("Feed-forward keeps to one token.", (alone > 1e-6).equal(torch.eye(6) > 0))

# %% [markdown]
# **Question.** Which sublayer carries information from token to token? What would be left of a
# transformer without it?
#
# *Your answer:*

# %% [markdown]
# ## Padding stays exactly 0
#
# Whatever a padded position holds when it comes in, it leaves every block as 0: so it can never
# reach the loss by a detour.

# %%
with lab.todo():
    valid = torch.tensor([[True, True, True, False, False]])
    y = EncoderBlock(ModelConfig())(torch.randn(1, 5, 32), valid).detach()
    lab.grids({"after the block": y[0].abs()}, "position", "number in the vector")
    lab.claim("Positions 3 and 4 are exactly 0.", (y[0, 3:] == 0).all())
    lab.claim("No real position is 0.", (y[0, :3] != 0).any(dim=1).all())

# %% [markdown]
# **Question.** LayerNorm turns a vector of zeros into its bias. Where, then, must the zeros be
# restored?
#
# *Your answer:*

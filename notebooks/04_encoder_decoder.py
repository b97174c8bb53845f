# %% [markdown]
# # 4. Encoder and decoder
#
# *Tasks 4.2 and 5, `encoder.py` and `decoder.py`.* The encoder reads the whole source. The decoder
# writes the answer token by token and looks at the source while it does. Who may influence whom is
# all there is to tell them apart.

# %%
import lab
import torch

lab.mount()
from transformer.config import ModelConfig
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer

config = ModelConfig(num_layers=2)
source, target = torch.tensor([[5, 9, 12, 7, 4]]), torch.tensor([[1, 8, 6, 11]])

# %% [markdown]
# ## The encoder hears everything (task 4.2)
#
# One source token is changed. The darker a square, the more
# the memory, the encoder's output, moves there.

# %%
with lab.todo():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(config).eval()
    moved = lab.influence(model.encode, source)
    lab.grids({"encoder": moved}, "memory that moves", "source token changed", power=0.3)
    lab.claim("Every memory position hears every source token.", (moved > 1e-4).all())

# %% [markdown]
# **Question.** The last source token reaches memory position 0. Why is that no cheating here, and
# would be in a decoder?
#
# *Your answer:*

# %% [markdown]
# ## The decoder looks back (tasks 5.1 and 5.2)
#
# Now a *target* token is changed, and the logits are watched. Everything to the right of the
# diagonal is the future.

# %%
with lab.todo():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(config).eval()
    moved = lab.influence(lambda tokens: model(source, tokens), target)
    lab.grids({"decoder": moved}, "logits that move", "target token changed", power=0.3)
    lab.claim("No logit hears a later target token.", (moved.triu(1) < 1e-6).all())
    lab.claim("Every logit hears its own token.", (moved.diagonal() > 1e-4).all())

# %% [markdown]
# **Question.** This picture is gate 1. How would it look with a causal mask one step too wide?
# And with none?
#
# *Your answer:*

# %% [markdown]
# ## ... and across to the whole source
#
# Cross-attention takes its queries from the target and its keys and values from the memory.

# %%
with lab.todo():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(config).eval()
    moved = lab.influence(lambda tokens: model(tokens, target), source)
    lab.grids({"cross-attention": moved}, "logits that move", "source token changed", power=0.3)
    lab.claim("Every logit hears every source token.", (moved > 1e-5).all())

# %% [markdown]
# **Question.** To reverse a sequence, the first answer needs the *last* source token. What would a
# causal mask on cross-attention do to that task? And to copying?
#
# *Your answer:*

# %% [markdown]
# ## Where does a head look?
#
# The weights of cross-attention, before any training. In notebook 5 you will see what training
# makes of them.

# %%
with lab.todo():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(ModelConfig()).eval()
    with lab.attention_weights() as seen:
        model(source, target)
    lab.grids({f"head {h}": seen[-1][0, h] for h in range(4)}, "target", "source")
    lab.claim("Encoder, decoder, cross: three attentions ran.", len(seen) == 3)
    lab.claim("The last one is 4 targets wide and 5 sources long.", seen[-1].shape[2:] == (4, 5))

# %% [markdown]
# **Question.** The three attentions of this model have weights of which shapes?
#
# *Your answer:*

# %% [markdown]
# ## A model without encoder (task 5.3)
#
# Today's language models keep one stack: causal self-attention and feed-forward. The prompt is
# simply the beginning of what is being written.

# %%
with lab.todo():
    torch.manual_seed(0)
    alone = DecoderOnlyTransformer(config).eval()
    moved = lab.influence(alone, torch.tensor([[5, 9, 12, 7, 4, 8]]))
    lab.grids({"decoder-only": moved}, "logits that move", "token changed", power=0.3)
    lab.claim("No logit hears a later token.", (moved.triu(1) < 1e-6).all())

# %% [markdown]
# **Question.** A decoder-only model reads "reverse: 5 9 12" and then writes. Which tokens can
# position 0 hear, and does it matter?
#
# *Your answer:*

# %% [markdown]
# ## Padding changes nothing
#
# Three columns of padding more, behind the same source: by how much do the logits move?

# %%
with lab.todo():
    torch.manual_seed(0)
    model = Seq2SeqTransformer(config).double().eval()
    wider = torch.cat([source, torch.zeros(1, 3, dtype=torch.int64)], dim=1)
    moved = {"told: 0 is padding": model(wider, target) - model(source, target)}
    blind = dict(source_valid=torch.ones(1, 8, dtype=torch.bool))
    moved["not told"] = model(wider, target, **blind) - model(source, target)
    sizes = {name: gap.abs().max().item() for name, gap in moved.items()}
    lab.bars({n: max(s, 1e-17) for n, s in sizes.items()}, "largest change of a logit", log=True)
    lab.claim("Known padding moves nothing but the last bits.", sizes["told: 0 is padding"] < 1e-9)
    lab.claim("Unknown padding does.", sizes["not told"] > 1e-3)

# %% [markdown]
# **Question.** This is gate 2. Name three places in your code where it could go wrong.
#
# *Your answer:*

# %% [markdown]
# ## What an untrained model knows
#
# Nothing: its loss should be that of guessing among V ids, ln V. A first loss far above it says
# that the model is *sure* of nonsense, and that training will begin by unlearning it.

# %%
import math

from transformer.training import masked_cross_entropy, teacher_forcing

with lab.todo():
    losses = {}
    for vocabulary in (16, 64, 256):
        model = Seq2SeqTransformer(ModelConfig(vocab_size=vocabulary))
        ids = torch.randint(3, vocabulary, (64, 6))
        inputs, targets = teacher_forcing(ids.tolist())
        losses[f"V = {vocabulary}"] = masked_cross_entropy(model(ids, inputs), targets).item()
        losses[f"ln {vocabulary}"] = math.log(vocabulary)
    lab.bars(losses, "first loss in nats per token", mark="ln")
    near = [abs(losses[f"V = {v}"] / math.log(v) - 1) < 0.15 for v in (16, 64, 256)]
    lab.claim("The first loss is within 15% of ln V.", all(near))

# %% [markdown]
# **Question.** How many nats per token does a model need that is sure of one of two ids, but cannot
# tell which?
#
# *Your answer:*

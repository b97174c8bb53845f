"""What the lab forbids: ready-made attention and transformers, by name and by what they call.

The one table for both who enforce it: the look at the source (`policy.py`, in the referee) and the
watch on the running code (`forbidden_calls.py`, in the worker). It imports neither torch nor the
grader.
"""

from __future__ import annotations

import re

# A word of a dotted path below torch: the classes, the functions, and the kernels under them.
FORBIDDEN = re.compile(
    r"Transformer\w*"
    r"|\w*[mM]ulti_?[hH]ead_?\w*"
    r"|\w*scaled_dot\w*"
    r"|\w*(flash|efficient|flex|cudnn|mem_eff)_attention\w*"
    r"|_transformer_(en|de)coder\w*|_fused_sdp\w*|_transform_bias_rescale_qkv\w*"
    r"|attention"
)
# Where torch keeps attention that is written in Python, and by which names; all other is operators
# of `torch.ops.aten`. The last module is imported only when something needs it.
MODULES = {
    "torch.nn.functional": FORBIDDEN,
    "torch.nn.modules.activation": FORBIDDEN,
    "torch.nn.modules.transformer": FORBIDDEN,
    "torch._higher_order_ops.flex_attention": re.compile(r"_?math_attention\w*|sdpa_dense"),
    "torch.onnx.ops._impl": re.compile("attention_23"),
    "torch.ao.nn.quantizable.modules.activation": FORBIDDEN,
}
# Operators that are no attention themselves: what follows from a forward pass, and a choice.
HARMLESS_OPERATORS = re.compile(r"\w*_backward|_fused_sdp_choice")
# What a student reads where it is not the place in which it is written.
PUBLIC_NAMES = {
    "scaled_dot_product_attention": "torch.nn.functional.scaled_dot_product_attention",
    "flex_attention": "torch.nn.attention.flex_attention.flex_attention",
    "attention_23": "torch.onnx.ops.attention",
}

# Events that Python itself reports (docs.python.org/3/library/audit_events.html), as the beginnings
# of their names. From a submission's own lines each is worth a flag: it looks behind the code or
# around the watch. Code of the flag, and what it says.
TELLING_EVENTS = {
    "sys._getframe": ("frame_inspection", "looks into running code"),
    "sys.settrace": ("frame_inspection", "looks into running code"),
    "sys.setprofile": ("frame_inspection", "looks into running code"),
    "gc.get_": ("frame_inspection", "looks into running code"),
    "object.__getattr__": ("frame_inspection", "looks into running code"),
    "object.__setattr__": ("patched_library", "changes running code"),
    "code.__new__": ("code_execution", "runs code that is not in the source"),
    "function.__new__": ("code_execution", "runs code that is not in the source"),
    "compile": ("code_execution", "runs code that is not in the source"),
    "exec": ("code_execution", "runs code that is not in the source"),
    "ctypes.": ("code_execution", "runs code that is not in the source"),
    "os.": ("system_access", "reaches for the system"),
    "subprocess.": ("system_access", "reaches for the system"),
    "socket.": ("network", "may reach the network"),
}


def is_forbidden(path: str) -> bool:
    """Tell whether a dotted path, such as "torch.nn.MultiheadAttention", is forbidden."""
    root, *words = path.split(".")
    return root == "torch" and any(FORBIDDEN.fullmatch(word) for word in words)

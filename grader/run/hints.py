"""What the commonest errors of Python and torch mean: what to look at, beside the line itself."""

from __future__ import annotations

import re

# Searched in "ValueError: message"; the first that is found gives the advice.
KNOWN = {
    r"^SystemExit":
        "exit() or quit() ends the program, and with it whatever called this code: return, or "
        "raise an error that says what is wrong.",
    r"Boolean value of Tensor with more than one value|truth value of an array":
        "An `if`, `and`, `or` or `not` got a whole tensor. Ask `is None` or `is not None` where "
        "that is meant, and join tensors with & and |.",
    r"only implemented on integer and Boolean|bitwise_(not|and|or)":
        "~, & and | are for bool tensors, and one of these holds floats.",
    r"'Tensor' object is not callable":
        "A tensor stands where a function is wanted: hand over the function itself, or a lambda, "
        "not what it returned.",
    r"'(\w+)' object is not callable":
        "Something that is no function is called there: is a name used twice, or a pair of "
        "parentheses too many?",
    r"'NoneType' object|and 'NoneType'|not NoneType":
        "Something on that line is None: what a function without `return` gives, or an argument "
        "that may be None.",
    r"'(tuple|Attended|TeacherForcing)' (object|and)|and '(tuple|Attended)'|not tuple":
        "A tuple stands where one tensor is wanted: unpack it, `first, second = ...`, or look for "
        "a comma too many.",
    r"'list' object has no attribute|not list$":
        "A list stands where a tensor is wanted: torch.tensor turns nested lists of equal length "
        "into one.",
    r"'float' object has no attribute|'int' object has no attribute":
        "A plain number stands where a tensor is wanted: .item() and float() cut it off from its "
        "history.",
    r"'bool' object has no attribute":
        "A plain True or False stands where a bool tensor is wanted.",
    r"^AttributeError: '\w+' object has no attribute":
        "Compare the name with those that __init__ sets, letter by letter.",
    r"^(NameError: name|UnboundLocalError)":
        "Compare the name with where it is defined or imported, letter by letter; it must have got"
        " a value before that line on every way there.",
    r"takes \d+ positional arguments? but|takes from \d+ to \d+ positional":
        "Compare the call with the signature: arguments behind a `*` have to be named, as in f(x, "
        "mask=mask).",
    r"unexpected keyword argument|missing \d+ required|multiple values for argument":
        "Compare the call with the signature of what is called, name by name.",
    r"values to unpack":
        "Count both sides of the `=`: how many values come, and how many names take them?",
    r"^ValueError: .*attend to no key":
        "Some row of the mask is False everywhere. Print the mask there: which of those it was "
        "made of hides that row's last key?",
    r"cannot assign to field|FrozenInstanceError":
        "That object never changes: make a new one with the new values.",
    r"in-?place operation":
        "`+=` and functions whose names end in _ change the tensor itself, which the backward pass"
        " still needs: write x = x + ...",
    r"does not require grad and does not have a grad_fn":
        "The loss has no history: look for detach, no_grad, .item(), .data or torch.tensor between"
        " the parameters and the loss.",
    r"backward through the graph a second time":
        "Something is kept from one step to the next: make losses numbers, and compute everything "
        "else anew in every step.",
    r"Expected target size|only batches of spatial targets":
        "cross_entropy takes (N, V) and (N,): flatten batch and time into one axis in both.",
    r"scalar types: Long, Int|expected scalar type Long|not implemented for 'Int'":
        "Token ids are integers: look for what makes floats of them.",
    r"not compiled with CUDA|found at least two devices|No CUDA GPUs":
        "Leave tensors where the inputs are: no .cuda(), and new ones with device=x.device.",
    r"can't convert|Can't call numpy|numpy\.ndarray":
        "Stay with torch: its functions do what numpy's do, and keep gradients.",
    r"^RecursionError":
        "A function calls itself: is the name that is called the given one, or its own?",
    r"^ModuleNotFoundError: No module named '(?!transformer)":
        "The task files need torch and Python's own library; what else is installed on your "
        "machine is missing where the lab is graded.",
    r"^(IndentationError|TabError)":
        "Indent with four spaces a step, never with tabs, and the body of every `for`, `if` and "
        "`def` one step more.",
    r"^SyntaxError: (expected ':'|'[(\[{]' was never closed|invalid syntax)":
        "Look at that line and the one before it: a parenthesis, a colon, a comma?",
}  # fmt: skip


def hint(error: str) -> str | None:
    """Return what to look at after an error such as "TypeError: message", None if it is unknown."""
    return next((advice for pattern, advice in KNOWN.items() if re.search(pattern, error)), None)

"""Save a model, load it again, and prove that both answer alike."""

import copy
import json
import os
from dataclasses import asdict
from numbers import Integral, Real
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .config import ModelConfig
from .models import DecoderOnlyTransformer, Seq2SeqTransformer

Model = Seq2SeqTransformer | DecoderOnlyTransformer
KINDS: dict[str, type[Seq2SeqTransformer] | type[DecoderOnlyTransformer]] = {
    "seq2seq": Seq2SeqTransformer,
    "decoder-only": DecoderOnlyTransformer,
}


def save_checkpoint(model: Model, path: Path) -> None:
    """Write weights and configuration to a safetensors file, whole or not at all.

    Args:
        model: Its weights are written in their own dtype.
        path: The file; replaced when it exists.

    Raises:
        OSError: There is no such folder, or it cannot be written to.
    """
    kind = next(name for name, kind in KINDS.items() if isinstance(model, kind))
    # Sizes may have come from NumPy, whose numbers JSON does not know.
    metadata = {"kind": kind, "config": json.dumps(asdict(model.config), default=_plain_number)}
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    unfinished = path.with_name(path.name + ".part")
    try:
        save_file(weights, unfinished, metadata)
        os.replace(unfinished, path)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _plain_number(value: Integral | Real) -> int | float:
    return int(value) if isinstance(value, Integral) else float(value)


def load_checkpoint(path: Path) -> Model:
    """Build the model that a checkpoint holds, in eval mode.

    Args:
        path: A file written by save_checkpoint.

    Raises:
        OSError: There is no such file, or it is a folder.
        ValueError: The file is no such checkpoint, its configuration is none of this version of
            the package, or its weights do not fit its configuration.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a checkpoint")
    try:
        # Read, not mapped: a mapped tensor changes when the file does.
        with safe_open(path, "pt", backend="pread") as file:
            metadata = file.metadata() or {}
            # In memory of torch's own: the last bit of a product depends on how it is aligned.
            weights = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    if metadata.get("kind") not in KINDS or "config" not in metadata:
        raise ValueError(f"{path} holds no model of this package (its metadata: {metadata})")
    try:
        config = ModelConfig(**json.loads(metadata["config"]))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} holds a configuration that this package does not know: {error}"
        ) from error
    model = KINDS[metadata["kind"]](config)
    check_names(weights, model.state_dict(), str(path))
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_().eval()


def check_names(weights: dict[str, Tensor], expected: dict[str, Tensor], origin: str) -> None:
    """Refuse weights whose names, types or shapes are not the expected ones, naming all of them.

    Args:
        weights: What came.
        expected: What is needed.
        origin: Where the weights came from, for the message.

    Raises:
        ValueError: Missing or unknown names, other shapes, or what is no tensor of floats.
    """
    problems = [f"missing {name}" for name in expected if name not in weights]
    for name, tensor in weights.items():
        if name not in expected:
            problems.append(f"unknown {name}")
        elif not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            problems.append(f"{name} must be a tensor of floats, got {found}")
        elif tensor.shape != expected[name].shape:
            wanted = tuple(expected[name].shape)
            problems.append(f"{name} must have shape {wanted}, got {tuple(tensor.shape)}")
    if problems:
        raise ValueError(f"the weights of {origin} do not fit: {'; '.join(problems)}")


def verify_checkpoint(model: Model, path: Path, inputs: tuple[Tensor, ...]) -> None:
    """Reload a checkpoint and require bit-identical logits.

    Args:
        model: The model that was saved.
        path: The file.
        inputs: What both are called with.

    Raises:
        ValueError: The logits differ; the message holds the largest difference.
    """
    reloaded, saved = load_checkpoint(path), copy.deepcopy(model).eval()
    with torch.no_grad():
        expected, got = saved(*inputs), reloaded(*inputs)
    if not torch.equal(expected, got):
        difference = (expected - got).abs().max().item()
        raise ValueError(f"{path} does not answer like the saved model: {difference:.3g} apart")

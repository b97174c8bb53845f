"""Gates 1 and 2 ask the same models the same kind of question; this is what they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grader.compare import fail
from grader.draws import BOS, PAD, Draws, Ids
from grader.expectations import Ask, sharpen
from grader.parameters import ProbeConfig, parameter_shapes
from grader.settings import Settings
from grader.submission import Question, StudentError, Submission, build, config, forward, tensor

CLASSES = {
    "seq2seq": "models.Seq2SeqTransformer",
    "decoder_only": "models.DecoderOnlyTransformer",
}
MODES = ("eval", "train")
SOURCE_LENGTHS = {False: (5, 5, 5), True: (5, 3, 1)}
TARGET_LENGTHS = {False: (6, 6, 6), True: (6, 4, 2)}
# An attention whose layout we do not know is sharpened by scaling all it holds.
OWN_SHARPENING = {r"attention\b.*(weight|bias)$": 6.0}
DTYPE_WORDS = ("dtype", "Double", "double", "Float", "scalar type")


@dataclass(frozen=True)
class Model:
    """A model the worker holds, and how it came to its weights."""

    handle: str
    draw: int
    sharpened: bool


@dataclass(frozen=True)
class Bench:
    """The models of one kind and depth, built in the worker."""

    kind: str
    config: ProbeConfig
    models: tuple[Model, ...]
    dtype: str
    own_weights: bool
    tolerance: float

    def describe(self, model: Model, mode: str, padded: bool) -> dict[str, Any]:
        """Return the circumstances of a witness."""
        return {
            "model": self.kind,
            "num_layers": self.config.num_layers,
            "mode": f"{mode}()",
            "batch": "padded" if padded else "unpadded",
            "weights": ("its own, seed " if self.own_weights else "draw ") + str(model.draw),
            "sharpened": model.sharpened,
            "dtype": self.dtype,
        }


@dataclass(frozen=True)
class Batch:
    """Source and target ids with their lengths; `source` is None for the decoder-only model."""

    source: Ids | None
    source_lengths: tuple[int, ...]
    target: Ids
    target_lengths: tuple[int, ...]
    padded: bool

    def arguments(self, target: Ids | None = None, source: Ids | None = None) -> dict[str, Any]:
        """Return one call of the model, its rows repeated to as many as the longer one has."""
        target = self.target if target is None else target
        if self.source is None:
            return {"args": [target]}
        source = self.source if source is None else source
        rows = max(len(target), len(source))
        return {"args": [tile(source, rows), tile(target, rows)]}

    def real(self) -> np.ndarray:
        """Return (B, T) bool: where the target's real positions are."""
        return np.arange(self.target.shape[1]) < np.array(self.target_lengths)[:, None]


def tile(ids: Ids, rows: int) -> Ids:
    """Repeat the rows of `ids` until there are `rows` of them."""
    return np.tile(ids, (rows // len(ids), 1))


def draw_batch(rng: Draws, bench: Bench, *, padded: bool) -> Batch:
    """Draw ids of three rows; every target begins with BOS."""
    vocab_size = bench.config.vocab_size
    lengths = TARGET_LENGTHS[padded]
    target = rng.child(f"target {padded}").ids(lengths, vocab_size)
    target[:, 0] = BOS
    if bench.kind == "decoder_only":
        return Batch(None, (), target, lengths, padded)
    source_lengths = SOURCE_LENGTHS[padded]
    source = rng.child(f"source {padded}").ids(source_lengths, vocab_size)
    return Batch(source, source_lengths, target, lengths, padded)


def benches(submission: Submission, rng: Draws, expected: Ask, lab: Settings) -> Iterator[Bench]:
    """Build the models of both kinds at each depth, one frame per kind and depth."""
    for kind in CLASSES:
        for num_layers in lab.invariance.num_layers:
            yield set_up(submission, rng, expected, lab, kind, num_layers)


def set_up(
    submission: Submission, rng: Draws, expected: Ask, lab: Settings, kind: str, num_layers: int
) -> Bench:
    """Build one bench, falling back to the tree's own weights, and to float32, where it must."""
    sizes = asdict(lab.model) | {"num_layers": num_layers, "max_len": 16}
    shape = ProbeConfig.from_dict(sizes)
    loose = lab.invariance.tolerance_float32
    models = tuple(
        Model(f"{kind}-{num_layers}-{draw}-{sharp}", draw, sharp)
        for draw in range(lab.invariance.weight_draws)
        for sharp in (False, True)
    )
    bench = Bench(kind, shape, models, "float64", False, lab.invariance.tolerance)
    trouble = _try(submission, bench, rng, expected)
    if trouble is not None and trouble.kind == "constructor_changed":
        bench = Bench(kind, shape, models, "float64", True, lab.invariance.tolerance)
        trouble = _try(submission, bench, rng, expected)
    if trouble is not None and any(word in trouble.message for word in DTYPE_WORDS):
        ordinary = tuple(m for m in models if not m.sharpened)
        bench = Bench(kind, shape, ordinary, "float32", bench.own_weights, loose)
        trouble = _try(submission, bench, rng, expected)
    if trouble is not None:
        raise trouble
    return bench


def _try(submission: Submission, bench: Bench, rng: Draws, expected: Ask) -> StudentError | None:
    """Build every model and run the first once; return what the tree raised."""
    batch = draw_batch(rng, bench, padded=True)
    questions = [_build(bench, model, batch, rng, expected) for model in bench.models]
    questions.append(forward(bench.models[0].handle, batch.arguments(), dtype=bench.dtype))
    for answer in submission.attempt(*questions):
        if isinstance(answer, StudentError):
            return answer
    return None


def _build(bench: Bench, model: Model, batch: Batch, rng: Draws, expected: Ask) -> Question:
    fields = {k: v for k, v in asdict(bench.config).items() if v is not None}
    options: dict[str, Any] = {"seed": model.draw, "dtype": bench.dtype}
    if bench.own_weights:
        options["scale"] = OWN_SHARPENING if model.sharpened else {}
        return build(model.handle, CLASSES[bench.kind], config(**fields), **options)
    shapes = parameter_shapes(bench.config, bench.kind)
    weights = rng.child(f"weights {model.draw}").weights(shapes)
    if model.sharpened:
        one = {"target": batch.target[:1]}
        one |= {} if batch.source is None else {"source": batch.source[:1]}
        if batch.source is None:
            one = {"tokens": batch.target[:1]}
        weights = sharpen(expected, bench.kind, bench.config, weights, **one)
    weights = {k: v.astype(bench.dtype) for k, v in weights.items()}
    return build(model.handle, CLASSES[bench.kind], config(**fields), weights=weights, **options)


def logits_of(value: Any, batch_rows: int, length: int, bench: Bench, real: np.ndarray) -> np.ndarray:
    """Return logits (rows, T, V) whose real positions are finite; padded ones become 0.

    Args:
        value: what the model returned, or a tuple or dict that holds it.
        batch_rows: number of rows asked.
        length: T.
        bench: gives V.
        real: (rows, T) bool.
    """
    shape = (batch_rows, length, bench.config.vocab_size)
    value = pick_logits(value, shape)
    if isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind == "f":
        value = np.where(real[:, :, None], value, 0.0)
    return tensor(value, shape, f"the {bench.kind} model's logits", "decoder")


def pick_logits(value: Any, shape: tuple[int, ...]) -> Any:
    """Find the logits in a tuple, list or dict of results: the first tensor of this shape."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            if isinstance(one, np.ndarray) and one.shape == shape:
                return one
    return value


def check_determinism(
    submission: Submission, bench: Bench, batch: Batch, seen: dict[str, Any]
) -> None:
    """Fail when the same call gives different logits, or training mode with dropout 0 others."""
    model = bench.models[0]
    call = batch.arguments()
    answers = submission.ask(
        forward(model.handle, call, call, mode="eval", dtype=bench.dtype),
        forward(model.handle, call, mode="train", dtype=bench.dtype),
    )
    rows, length = batch.target.shape
    logits = [
        logits_of(value, rows, length, bench, batch.real())
        for answer in answers
        for value in answer["outputs"]
    ]
    bound = bench.tolerance * max(1.0, float(np.abs(logits[0]).max()))
    names = ("a second call in eval()", "a call in train() with dropout 0")
    for name, other in zip(names, logits[1:], strict=True):
        moved = float(np.abs(other - logits[0]).max())
        seen["repeat_difference"] = max(seen.get("repeat_difference", 0.0), moved)
        if moved > bound:
            code = "not_deterministic" if "eval" in name else "train_mode_differs"
            fail(
                code, "attention",
                f"The same batch gave other logits in {name}: they moved by {moved:.3g}. "
                "Something random or mode-dependent is active although dropout is 0.",
                "Look for dropout that ignores eval() or the configured rate, and for statistics "
                "kept over a batch.",
                bench.describe(model, "eval", batch.padded) | {"largest_difference": moved},
            )  # fmt: skip


def padding_of(lengths: tuple[int, ...], width: int) -> np.ndarray:
    """Return (B, width) bool, True where a row of that length has a real token."""
    return np.arange(width) < np.array(lengths)[:, None]


__all__ = ["BOS", "PAD", "Batch", "Bench", "Model", "benches", "draw_batch", "logits_of", "tile"]

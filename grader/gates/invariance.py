"""Gates 1 and 2 ask the same models the same kind of question; this is what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from grader.asking.compare import DTYPE_WORDS, fail
from grader.asking.expectations import Ask, sharpen
from grader.asking.submission import Question, build, config, forward, tensor
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.model.draws import BOS, Draws, Ids
from grader.model.parameters import ProbeConfig, parameter_shapes

CLASSES = {
    "seq2seq": "models.Seq2SeqTransformer",
    "decoder_only": "models.DecoderOnlyTransformer",
}
MODES = ("eval", "train")
SOURCE_LENGTHS = {False: (5, 5, 5), True: (5, 3, 1)}
LONGER = (3, 7)  # by how much at least, and below what
# A softmax in float32 adds up another number of columns in another order, and sharpened weights
# magnify what that rounds: so many tolerances are no more than rounding if nothing else differs.
ROUNDING = 10.0
TARGET_LENGTHS = {False: (6, 6, 6), True: (6, 4, 2)}
# An attention whose layout we do not know is sharpened by scaling all it holds.
OWN_SHARPENING = {r"attention\b.*(weight|bias)$": 6.0}


# In which mode a later draw is asked, and whether its batch is padded, in benches of turn 0 and of
# turn 1: over draws and benches ordinary and sharpened weights meet every mode and batch.
LATER_DRAWS = {
    ("odd draw", "ordinary"): ("train", (True, False)),
    ("odd draw", "sharpened"): ("eval", (False, True)),
    ("even draw", "ordinary"): ("eval", (True, False)),
    ("even draw", "sharpened"): ("train", (False, True)),
}


@dataclass(frozen=True)
class Model:
    """A model the worker holds, and how it came to its weights."""

    handle: str
    draw: int
    sharpened: bool
    twin: bool = False

    @property
    def weights(self) -> str:
        """Say in a word what its weights are like."""
        return "sharpened" if self.sharpened else "ordinary"


@dataclass(frozen=True)
class Bench:
    """The models of one kind and depth, built in the worker; `trained` ones came from gate 4.

    `peak` is the largest |score| of a sharpened model.
    """

    kind: str
    config: ProbeConfig
    models: tuple[Model, ...]
    dtype: str
    own_weights: bool
    tolerance: float
    trained: bool = False
    peak: float = 0.0

    @property
    def turn(self) -> int:
        """Which of two ways this bench is asked, where the benches take turns: 0 or 1."""
        shallow = self.config.num_layers == 1
        return 0 if shallow == (self.kind == "seq2seq") else 1

    @property
    def original(self) -> Model:
        """Return the model that has a twin: in turns, the first draw's ordinary or sharpened."""
        wanted = (model for model in self.models if model.sharpened == (self.turn == 1))
        return next(wanted, self.models[0])

    @property
    def twin(self) -> Model:
        """Return `original` once more: in another process, it remembers nothing of it."""
        return replace(self.original, handle=f"{self.original.handle}-twin", twin=True)

    def describe(self, model: Model, mode: str, padded: bool) -> dict[str, Any]:
        """Return the circumstances of a witness."""
        return {
            "model": self.kind,
            "num_layers": self.config.num_layers,
            "mode": f"{mode}()",
            "batch": "padded" if padded else "unpadded",
            "weights": self.origin(model),
            "sharpened": model.sharpened,
            "dtype": self.dtype,
        }

    def origin(self, model: Model) -> str:
        """Say where the model's weights come from."""
        if self.trained:
            return "trained"
        return f"{'its own, seed' if self.own_weights else 'draw'} {model.draw}"


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


def modes_of(model: Model) -> tuple[str, ...]:
    """Ask the first draw in both modes and every other in one."""
    return MODES if model.draw == 0 else (later(model)[0],)


def batches_of(bench: Bench, model: Model) -> tuple[bool, ...]:
    """Ask the first draw for both batches and every other for one: is it padded?"""
    return (False, True) if model.draw == 0 else (later(model)[1][bench.turn],)


def later(model: Model) -> tuple[str, tuple[bool, bool]]:
    """Return how a later draw is asked."""
    parity = "odd draw" if model.draw % 2 else "even draw"
    return LATER_DRAWS[parity, model.weights]


def tile(ids: Ids, rows: int) -> Ids:
    """Repeat the rows of `ids` until there are `rows` of them."""
    return np.tile(ids, (rows // len(ids), 1))


def draw_batch(rng: Draws, bench: Bench, *, padded: bool) -> Batch:
    """Draw ids of three rows; every target begins with BOS.

    How long the longest is, is drawn for the shallow model: some mistakes show in long rows only.
    """
    vocab_size = bench.config.vocab_size
    longest, *others = TARGET_LENGTHS[padded]
    if bench.config.num_layers == 1:
        longest += int(rng.child("longest").integers((), *LONGER))
    lengths = (longest, *(others if padded else [longest] * len(others)))
    target = rng.child(f"target {padded}").ids(lengths, vocab_size)
    target[:, 0] = BOS
    if bench.kind == "decoder_only":
        return Batch(None, (), target, lengths, padded)
    source_lengths = SOURCE_LENGTHS[padded]
    source = rng.child(f"source {padded}").ids(source_lengths, vocab_size)
    return Batch(source, source_lengths, target, lengths, padded)


def first_choice(lab: Settings, kind: str, num_layers: int) -> Bench:
    """Return the bench that a tree with the given constructors gets."""
    sizes = asdict(lab.model) | {"num_layers": num_layers, "max_len": 16}
    models = tuple(
        Model(f"{kind}-{num_layers}-{draw}-{sharp}", draw, sharp)
        for draw in range(lab.invariance.weight_draws)
        for sharp in (False, True)
    )
    config = ProbeConfig.from_dict(sizes)
    invariance = lab.invariance
    return Bench(kind, config, models, "float64", False, invariance.tolerance,
                 peak=invariance.sharpened_score)  # fmt: skip


def by_own_weights(bench: Bench, trouble: StudentError, lab: Settings) -> Bench | None:
    """Return the bench of a tree whose own constructors take no weights of ours."""
    changed = trouble.kind == "constructor_changed"
    return replace(bench, own_weights=True) if changed else None


def in_float32(bench: Bench, trouble: StudentError, lab: Settings) -> Bench | None:
    """Return the bench of a tree that cannot run in float64."""
    if not any(word in trouble.message for word in DTYPE_WORDS):
        return None
    ordinary = tuple(model for model in bench.models if not model.sharpened)
    loose = lab.invariance.tolerance_float32
    return replace(bench, models=ordinary, dtype="float32", tolerance=loose)


def building(
    bench: Bench, models: Sequence[Model], batch: Batch, rng: Draws, expected: Ask
) -> list[Question]:
    """Build these models of a bench."""
    shapes = parameter_shapes(bench.config, bench.kind)
    draws = {} if bench.own_weights else {
        draw: rng.child(f"weights {draw}").weights(shapes)
        for draw in {model.draw for model in models}
    }  # fmt: skip
    first = batch.target[:1]
    one = {"tokens": first}
    if batch.source is not None:
        one = {"source": batch.source[:1], "target": first}
    fields = {k: v for k, v in asdict(bench.config).items() if v is not None}
    questions = []
    for model in models:
        options: dict[str, Any] = {"seed": model.draw, "dtype": bench.dtype}
        if bench.own_weights:
            options["scale"] = OWN_SHARPENING if model.sharpened else {}
        else:
            weights = draws[model.draw]
            if model.sharpened:
                weights = sharpen(expected, bench.kind, bench.config, weights, bench.peak, **one)
            options["weights"] = {k: v.astype(bench.dtype) for k, v in weights.items()}
        questions.append(build(model.handle, CLASSES[bench.kind], config(**fields), **options))
    return questions


def trying(bench: Bench, batch: Batch) -> list[Question]:
    """Run the first model once: whether it can run at all shows how it has to be judged."""
    return [forward(bench.models[0].handle, batch.arguments(), mode=MODES[0], dtype=bench.dtype)]


def logits_of(
    value: Any, batch_rows: int, length: int, bench: Bench, real: np.ndarray
) -> np.ndarray:
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


def determinism(bench: Bench, batch: Batch) -> list[Question]:
    """Ask once more for the call that `trying` made, in both modes."""
    handle, call = bench.models[0].handle, batch.arguments()
    return [forward(handle, call, mode=mode, dtype=bench.dtype) for mode in MODES]


def judge_determinism(bench: Bench, batch: Batch, answers: list[Any], seen: dict[str, Any]) -> None:
    """Fail when the same call gave different logits, or training mode with dropout 0 others.

    `answers` are those of `trying` and `determinism`.
    """
    rows, length = batch.target.shape
    logits = [
        logits_of(value, rows, length, bench, batch.real())
        for answer in answers
        for value in answer["outputs"]
    ]
    for mode, other in zip(MODES, logits[1:], strict=True):
        moved = repeated(bench, bench.models[0], mode, batch, logits[0], other)
        seen["repeat_difference"] = max(seen.get("repeat_difference", 0.0), moved)


def repeated(
    bench: Bench, model: Model, mode: str, batch: Batch, first: np.ndarray, other: np.ndarray
) -> float:
    """Return how far two answers to one call in this mode are apart; fail beyond rounding."""
    moved = float(np.abs(other - first).max())
    if moved > bench.tolerance * max(1.0, float(np.abs(first).max())):
        evaluates = mode == "eval"
        name = "a second call in eval()" if evaluates else "a call in train() with dropout 0"
        fail(
            "not_deterministic" if evaluates else "train_mode_differs", "attention",
            f"The same batch gave other logits in {name}: they moved by {moved:.3g}. "
            "Something random or mode-dependent is active although dropout is 0.",
            "Look for dropout that ignores eval() or the configured rate, and for statistics "
            "kept over a batch.",
            bench.describe(model, mode, batch.padded) | {"largest_difference": moved},
        )  # fmt: skip
    return moved


def padding_of(lengths: tuple[int, ...], width: int) -> np.ndarray:
    """Return (B, width) bool, True where a row of that length has a real token."""
    return np.arange(width) < np.array(lengths)[:, None]

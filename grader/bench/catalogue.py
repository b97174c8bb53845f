"""What the bench measures: every experiment, and the figures and curves that are read from it."""

from __future__ import annotations

from grader.bench.figure import (
    Curve,
    Experiment,
    Figure,
    Tabled,
    Target,
    difference_ratio,
    of_medians,
    paired,
    thousandfold,
    value,
    worst,
)
from grader.bench.session import Catalogue

STARTUP = Catalogue(
    (
        Experiment("check_cold", "a check of one task and a process that imports torch, whole",
                   "bench.startup", ("check",), rounds=7),
        Experiment("grade_cold", "a grade of the solution and a process that imports torch and "
                   "takes one AdamW step, whole", "bench.startup", ("grade",), rounds=5),
        Experiment("forks", "workers forked from a warm zygote, 20 a round",
                   "bench.grading", ("forks",), rounds=9),
    ),
    (
        Figure("check_cold_ratio", "check of task 2.2, cold / a process that imports torch",
               "check_cold", "x", Target(1.5), paired("ours", "bare")),
        Figure("grade_cold_ratio", "whole grade of the solution, cold / a process that imports "
               "torch and takes one AdamW step", "grade_cold", "x", Target(2.5),
               paired("ours", "bare")),
        Figure("first_answer", "from asking for a worker to its first answer, warm", "forks", "ms",
               Target(30.0), thousandfold("first_answer")),
    ),
)  # fmt: skip

GRADING = Catalogue(
    (
        Experiment("grade_warm", "complete grades of the solution by a warm referee",
                   "bench.grading", ("whole",), rounds=5),
        Experiment("parts_warm", "every part looked at alone by a warm referee",
                   "bench.grading", ("parts",), rounds=5),
        Experiment("watch", "a file of the solution is saved while `watch` runs, every file in "
                   "turn", "bench.watching", (), rounds=12),
        Experiment("memory", "memory of all processes while the solution is graded, read 20 times "
                   "a second", "bench.grading", ("memory",), rounds=3),
        Experiment("grading_growth", "one referee grades the solution again and again",
                   "bench.grading", ("many",), rounds=8),
    ),
    (
        Figure("grade_without_training", "complete grade of the solution (six parts, four gates, "
               "report), warm, as the command runs it, its own training taken off", "grade_warm",
               "s", Target(2.5, 1.2), value("without_training")),
        Figure("gates_1_to_3", "gates 1 to 3 together, warm", "grade_warm", "s", Target(1.5, 0.8),
               value("gates")),
        Figure("referee_overhead", "a grade, one thing after the other: wall time minus the "
               "processor time of the workers", "grade_warm", "s", Target(1.5), value("overhead")),
        Figure("slowest_part", "one part looked at alone, from the files to the report, warm; the "
               "slowest of six", "parts_warm", "ms", Target(150.0), thousandfold("slowest")),
        Figure("watch_task", "watch: from saving a file to the verdict of its task", "watch", "s",
               Target(0.5), value("task")),
        Figure("watch_gates", "watch: from the same save to the verdict of gates 1 to 3", "watch",
               "s", Target(1.5), value("gates")),
        Figure("memory_together", "referee, zygote and worker together at their largest "
               "(proportional size: a shared page counts once)", "memory", "MB", Target(1000.0),
               value("together")),
        Figure("worker_private", "one worker's private memory beyond the zygote, at its largest",
               "memory", "MB", Target(150.0), value("private")),
    ),
    (
        Curve("grading_growth", "Seconds taken by so many gradings in a row, beside as many times "
              "the first.", "grading_growth", "submissions",
              {"taken": "one referee", "ideal": "ideal"}, "s"),
    ),
)  # fmt: skip


def _size(d_model: int, length: int, batch_size: int, required: float) -> Catalogue:
    name, shape = f"step_{d_model}_{length}", f"D {d_model}, T {length}, B {batch_size}"
    words = ("size", "--d", str(d_model), "--length", str(length), "--batch", str(batch_size))
    return Catalogue(
        (Experiment(name, f"forward plus backward at {shape}", "bench.step", words, rounds=9),),
        (
            Figure(f"{name}_ratio", f"forward plus backward at {shape} / nn.Transformer of the "
                   "same shape, norm placement and weights", name, "x", Target(required),
                   paired("ours", "peer")),
        ),
    )  # fmt: skip


STEPS = (_size(32, 8, 128, 1.0), _size(256, 128, 8, 1.1), _size(512, 512, 2, 1.2))

GENERATION = Catalogue(
    (
        Experiment("generation", "256 tokens, greedy, B 8, D 64, 2 layers, both models, with the "
                   "cache and by re-running the prefix", "bench.generation", ("whole",), rounds=5),
        Experiment("tokens", "1,056 tokens one by one, decoder-only, B 8, D 64, 2 layers",
                   "bench.generation", ("token",), rounds=5),
    ),
    (
        Figure("cached_decoder_only", "decoder-only: re-running the prefix / cached, 256 tokens",
               "generation", "x", Target(5.0, at_least=True),
               paired("decoder_only_again", "decoder_only_cached")),
        Figure("cached_seq2seq", "encoder-decoder: re-running the prefix / cached, 256 tokens",
               "generation", "x", Target(5.0, at_least=True),
               paired("seq2seq_again", "seq2seq_cached")),
        Figure("flat_tokens", "time of the 1,024th token / of the 16th, the attention row of each "
               "taken off", "tokens", "x", Target(1.5),
               difference_ratio(("late", "late_row"), ("early", "early_row"))),
        Figure("multi_query_token", "the 1,024th token with one key/value head for all / with one "
               "for each of 4", "tokens", "x", Target(), paired("late_multi_query", "late")),
        Figure("cache_memory", "largest memory of the cache / what its shape needs", "tokens", "x",
               Target(1.1), paired("peak_bytes", "shape_bytes")),
    ),
)  # fmt: skip

TRAINING = Catalogue(
    (
        Experiment("training", "reverse 3 to 7, D 32, 4 heads, from the same weights until 0.995 "
                   "of 512 held-out rows are answered, 10 seeds, data drawn beforehand",
                   "bench.training", rounds=10),
        Experiment("anatomy", "one training step taken apart, B 128", "bench.anatomy", rounds=9),
    ),
    (
        Figure("training_source", "wall time to 0.995 / nn.Transformer under the source's recipe "
               "(AdamW 3e-3, batch 64)", "training", "x", Target(0.75, 0.5),
               of_medians("ours", "peer_source")),
        Figure("training_ours", "wall time to 0.995 / nn.Transformer under our recipe", "training",
               "x", Target(0.85, 0.7), of_medians("ours", "peer_ours")),
        Figure("steps_median", "steps to 0.995, median of the seeds", "training", "steps",
               Target(100.0), value("ours_steps")),
        Figure("steps_worst", "steps to 0.995, worst of the seeds", "training", "steps",
               Target(150.0), worst("ours_steps")),
        Figure("step_floor", "one training step / its floor: the kernels it cannot do without, "
               "called directly", "anatomy", "x", Target(None, 1.5), paired("whole", "floor")),
        Figure("step_operators", "operators that one training step calls (nn.Transformer and the "
               "floor: see the JSON)", "anatomy", "", Target(), value("operators")),
        Figure("step_whole", "one training step", "anatomy", "ms", Target(), value("whole")),
        Figure("step_kernels", "of it in kernels: what is beyond the two below", "anatomy", "ms",
               Target(), value("kernels")),
        Figure("step_dispatch", "of it in Python, autograd and dispatch: forward and backward of "
               "one row of one token", "anatomy", "ms", Target(), value("dispatch")),
        Figure("step_optimiser", "of it in clipping, optimiser and schedule", "anatomy", "ms",
               Target(), value("optimiser")),
    ),
)  # fmt: skip

BESIDE = {"ours": "ours", "peer": "nn.Transformer"}
GROWTH = Catalogue(
    (
        Experiment("length_growth", "D 32, B 4, T from 8 to 1,024", "bench.step",
                   ("length", "--d", "32", "--batch", "4"), rounds=8),
        Experiment("width_growth", "T 32, B 16, D from 32 to 512", "bench.step",
                   ("width", "--length", "32", "--batch", "16"), rounds=5),
        Experiment("generation_growth", "16 to 512 tokens, B 8, D 64, 2 layers",
                   "bench.generation", ("length",), rounds=6),
    ),
    (),
    (
        Curve("step_by_length", "Forward plus backward against T (D 32, B 4).", "length_growth",
              "length", {f"{k}_step": v for k, v in BESIDE.items()}, "ms"),
        Curve("forward_by_length", "Forward alone against T (D 32, B 4).", "length_growth",
              "length", {f"{k}_forward": v for k, v in BESIDE.items()}, "ms"),
        Curve("step_by_width", "Forward plus backward against D (T 32, B 16).", "width_growth",
              "d_model", {f"{k}_step": v for k, v in BESIDE.items()}, "ms"),
        Curve("forward_by_width", "Forward alone against D (T 32, B 16).", "width_growth",
              "d_model", {f"{k}_forward": v for k, v in BESIDE.items()}, "ms"),
        Curve("generation_by_length", "Milliseconds per token against the number of tokens "
              "(B 8, D 64, 2 layers).", "generation_growth", "tokens",
              {"decoder_only_cached": "decoder-only, cached",
               "decoder_only_again": "decoder-only, prefix again",
               "seq2seq_cached": "encoder-decoder, cached",
               "seq2seq_again": "encoder-decoder, prefix again"}, "ms"),
    ),
)  # fmt: skip


BATCH = Catalogue(
    (
        Experiment("class_of_1000", "a class of 1,000 whose grading takes no time, then the same "
                   "again", "bench.batch", ("machinery", "--number", "1000"), rounds=3),
        Experiment("class_of_10000", "the same with 10,000",
                   "bench.batch", ("machinery", "--number", "10000"), rounds=1),
        Experiment("class_of_40", "40 submissions (half correct, a quarter wrong, an eighth "
                   "endless, an eighth hostile), then 20 correct ones, on two processes",
                   "bench.batch", ("class", "--number", "40", "--jobs", "2"), rounds=1),
    ),
    (
        Figure("batch_each", "all but the worker, for each of 1,000 submissions", "class_of_1000",
               "ms", Target(100.0), thousandfold("each")),
        Figure("batch_each_10000", "all but the worker, for each of 10,000 submissions",
               "class_of_10000", "ms", Target(100.0), thousandfold("each")),
        Figure("batch_again", "1,000 submissions of which nothing has changed", "class_of_1000",
               "s", Target(5.0), value("again")),
        Figure("batch_memory", "largest memory of the batch's own process at 1,000 submissions",
               "class_of_1000", "MB", Target(), value("peak")),
        Figure("batch_memory_10000", "the same at 10,000", "class_of_10000", "MB", Target(),
               value("peak")),
        Figure("batch_share", "each one's own seconds over the processes / wall time of 40",
               "class_of_40", "%", Target(90.0, at_least=True), value("share")),
        Figure("batch_pace", "correct submissions a minute, two processes", "class_of_40", "",
               Target(25.0, at_least=True), value("a_minute")),
    ),
)  # fmt: skip


COMBINATIONS = Catalogue(
    (
        Experiment("combinations", "steps to 0.99 for every position scheme, D 32, 4 heads, "
                   "sequences of 3 to 7, one seed", "bench.combinations", ("positions",),
                   rounds=28, timed=False),
        Experiment("parts", "the same for every part and for mixtures of parts, with learned and "
                   "sinusoidal positions", "bench.combinations", ("parts",),
                   rounds=18, timed=False),
    ),
    (),
    (),
    (
        Tabled("steps_by_combination", "Encoder-decoders of width 32 under the lab's recipe: the "
               "first of 24 looks at which 0.99 of 512 held-out rows were answered, with a budget "
               "of 300 steps and, where that was not enough, of 3,000 (one seed).",
               "combinations",
               {"name": "what differs from the lab", "num_layers": "layers", "task": "task",
                "steps": "steps to 0.99", "at_300": "exact match, budget 300",
                "at_3000": "budget 3,000"}),
        Tabled("steps_by_part", "The same for every part, alone and mixed, with a budget of 300 "
               "steps: the look at which 0.99 was reached (0: at none), and the least exact match "
               "of the eight after 300 steps.", "parts",
               {"name": "what differs from the lab",
                **{f"{positions} {layers} {task}": f"{positions}, {layers} layer(s), {task}"
                   for positions in ("learned", "sinusoidal")
                   for layers in (1, 2) for task in ("reverse", "copy")},
                "least": "least exact match"}),
    ),
)  # fmt: skip


def joined(*parts: Catalogue) -> Catalogue:
    """Return one catalogue that holds all."""
    return Catalogue(
        tuple(e for part in parts for e in part.experiments),
        tuple(f for part in parts for f in part.figures),
        tuple(c for part in parts for c in part.curves),
        tuple(t for part in parts for t in part.tables),
    )


ALL = joined(STARTUP, GRADING, *STEPS, GENERATION, TRAINING, GROWTH, BATCH, COMBINATIONS)

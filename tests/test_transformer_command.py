"""The command line of the package, run as a program would be."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import transformer
from transformer.__main__ import main, parse, run
from transformer.checkpoint import load_checkpoint
from transformer.metrics import most_common_baseline
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lines(captured: str) -> dict[str, str]:
    """Split what was reported into name and value."""
    pairs = (line.split("  ", 1) for line in captured.splitlines() if "  " in line)
    return {name: value.strip() for name, value in pairs}


def test_seq2seq_reports_shapes_losses_and_accuracies(capsys):
    assert main(["seq2seq", "--quick", "--steps", "3"]) == 0
    reported = lines(capsys.readouterr().out)
    assert reported["held-out source"] == "(32, 8)"
    assert reported["held-out logits"] == "(32, 8, 16)"
    assert float(reported["first loss"].split()[0]) == pytest.approx(2.77, rel=0.15)
    for name in (
        "final loss, step 3",
        "held-out loss",
        "most common training token",
        "teacher-forced token accuracy",
        "teacher-forced exact accuracy",
        "free-running exact accuracy",
    ):
        assert name in reported


def test_quick_copy_of_one_length_is_learned_to_some_degree(capsys):
    assert main(["seq2seq", "--quick", "--task", "copy", "--fixed-length"]) == 0
    reported = lines(capsys.readouterr().out)
    baseline = float(reported["most common training token"].split()[2])
    assert float(reported["teacher-forced token accuracy"]) > 2 * baseline


@pytest.mark.parametrize("config", ["lab", "vanilla-2017", "llama-style"])
def test_decoder_only_says_what_it_is_decoded_from_and_why(capsys, config):
    assert main(["decoder-only", "--quick", "--steps", "2", "--config", config]) == 0
    out = capsys.readouterr().out
    assert "Rows are decoded from BOS and their first data token" in out
    assert "nothing before the token tells which row is meant" in out
    assert "held-out source" not in out


def test_large_means_width_64_and_two_layers(capsys, tmp_path):
    path = tmp_path / "large.safetensors"
    command = ["decoder-only", "--quick", "--steps", "1", "--large", "--checkpoint", str(path)]
    assert main(command) == 0
    assert "reloads to identical outputs" in capsys.readouterr().out
    model = load_checkpoint(path)
    assert isinstance(model, DecoderOnlyTransformer)
    assert (model.config.d_model, model.config.num_layers) == (64, 2)


def test_no_checkpoint_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["decoder-only", "--quick", "--steps", "1"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_same_seed_gives_the_same_report(capsys):
    reports = []
    for seed in ("3", "3", "4"):
        assert main(["decoder-only", "--quick", "--steps", "2", "--seed", seed]) == 0
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1] != reports[2]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["seq2seq", "--steps", "0"], "steps must be at least 1, got 0"),
        (["seq2seq", "--min-length", "9"], "min 9 and max 7"),
        (["decoder-only", "--pattern", "1"], "got 1 out of 13"),
        (["decoder-only", "--length", "1"], "length of at least 2, got 1"),
        (["seq2seq", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["decoder-only", "--length", "600", "--quick"], "length 601 does not fit max_len 512"),
        (["seq2seq", "--seed", "-1"], "--seed must be from 0 to 2**63 - 2, got -1"),
        (["decoder-only", "--seed", "9223372036854775807"], "got 9223372036854775807"),
    ],
)
def test_options_out_of_range_are_one_line_and_exit_2(capsys, command, message):
    assert main(command) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"), [(".", "must name a file"), ("file/x", "File exists")]
)
def test_checkpoint_without_a_place_is_refused_before_training(capsys, tmp_path, name, message):
    (tmp_path / "file").touch()
    assert main(["seq2seq", "--checkpoint", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and str((tmp_path / name).parent) in captured.err
    assert captured.out == ""


def test_checkpoint_makes_its_folder(capsys, tmp_path):
    path = tmp_path / "new" / "folder" / "a"
    assert main(["seq2seq", "--quick", "--steps", "1", "--checkpoint", str(path)]) == 0
    assert isinstance(load_checkpoint(path), Seq2SeqTransformer)


@pytest.mark.parametrize("asked", [True, False])
def test_stopped_training_is_one_line_and_130_and_saves_what_was_asked_for(
    capsys, tmp_path, monkeypatch, asked
):
    def stopped(model, batches, recipe):
        for _ in zip(range(3), batches, strict=False):
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr("transformer.__main__.train", stopped)
    path = tmp_path / "model.safetensors"
    assert main(["seq2seq", "--quick", *(["--checkpoint", str(path)] if asked else [])]) == 130
    error = capsys.readouterr().err
    assert error.startswith("stopped at step 3 of 40") and error.count("\n") == 1
    assert path.exists() == asked == (str(path) in error)


def test_threads_are_one_unless_asked_for(capsys):
    for words, threads in (([], 1), (["--threads", "2"], 2)):
        torch.set_num_threads(3)
        assert main(["decoder-only", "--quick", "--steps", "1", *words]) == 0
        assert torch.get_num_threads() == threads


def test_run_returns_what_it_reports(capsys):
    figures = run(parse(["decoder-only", "--quick", "--steps", "2"]))
    reported = lines(capsys.readouterr().out)
    assert reported["held-out loss"] == f"{figures['held_out_loss']:.4f} nats per token"
    assert reported["final loss, step 2"] == f"{figures['final_loss']:.4f} nats per token"
    assert reported["parameters"] == f"{figures['parameters']:,}"
    for name in ("first_loss", "baseline_accuracy", "exact_accuracy", "free_running_accuracy"):
        assert name in figures


def test_baseline_comes_from_training_and_held_out_starts_are_told(capsys, monkeypatch):
    seen = []

    def spied(targets, **options):
        seen.append(options["training_targets"])
        return most_common_baseline(targets, **options)

    monkeypatch.setattr("transformer.__main__.most_common_baseline", spied)
    assert main(["decoder-only", "--quick", "--steps", "2"]) == 0
    assert len(seen[0]) == 2 * 32 * 17
    assert lines(capsys.readouterr().out)["held-out starts"].startswith("2 of 13;")


def test_reader_that_leaves_is_no_error(tmp_path):
    words = [sys.executable, "-m", "transformer", "seq2seq", "--quick", "--steps", "2"]
    words += ["--checkpoint", str(tmp_path / "a")]
    folder = Path(transformer.__file__).resolve().parent.parent
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline().startswith("parameters")  # there at once, not at the end
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(60) == 0
    assert (tmp_path / "a").exists()


def test_unknown_words_are_usage_errors(capsys):
    for command in (["seq2seq", "--task", "sort"], ["encoder-only"], []):
        with pytest.raises(SystemExit) as refusal:
            main(command)
        assert refusal.value.code == 2
    assert "invalid choice: 'sort'" in capsys.readouterr().err

"""The package agrees with the reference tensors, and the comparison notices when one does not."""

from pathlib import Path

import pytest
import vector_cases
from safetensors import safe_open
from safetensors.torch import save_file

VECTORS = Path(__file__).resolve().parent / "vectors"
PATHS = sorted(VECTORS.glob("*.safetensors"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_package_agrees_with_the_vector(path: Path) -> None:
    assert vector_cases.largest_difference(path) <= vector_cases.TOLERANCE


def test_every_replay_has_a_vector() -> None:
    operations = {vector_cases.Case.load(path).settings["op"] for path in PATHS}
    assert operations == vector_cases.REPLAYS.keys()


def corrupted(source: Path, target: Path, name: str) -> None:
    """Copy a vector with one expected number moved."""
    with safe_open(source, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    tensors[name].view(-1)[-1] += 1
    save_file(tensors, target, metadata)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("attention_rope_cached", "out.value"),
        ("decoder_only", "out.generated"),
        ("upcycle_kv2_mean", "out.new.blocks.1.attn.k_proj.bias"),
        ("modern_gelu_rmsnorm_pre_sinusoidal_kv4_bias", "out.cached_logits"),
        ("loss_and_accuracy", "out.baseline"),
    ],
)
def test_a_vector_that_differs_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stem: str, name: str
) -> None:
    vector = VECTORS / f"{stem}.safetensors"
    corrupted(vector, tmp_path / "a.safetensors", name)
    (tmp_path / "b.safetensors").write_bytes(vector.read_bytes())
    assert vector_cases.main(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["DIFFERS", "agrees", "1"]


def test_every_file_gets_a_line_whatever_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (VECTORS / "parts_layernorm.safetensors").read_bytes()
    (tmp_path / "a_cut_short.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b_empty.safetensors").write_bytes(b"")
    save_file({"out.y": vector_cases.torch.ones(1)}, tmp_path / "c_no_metadata.safetensors")
    bad = {"case": '{"op": "attention", "rope": true, "kwargs": {}}'}
    save_file({"out.y": vector_cases.torch.ones(1)}, tmp_path / "d_no_sizes.safetensors", bad)
    (tmp_path / "e_whole.safetensors").write_bytes(whole)
    assert vector_cases.main(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["FAILS"] * 4 + ["agrees", "1"]
    assert "a_cut_short" in lines[0] and "metadata hold no case" in lines[2]


def test_folder_without_vectors_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vector_cases.main(tmp_path) == 2
    assert "no .safetensors files" in capsys.readouterr().err


def test_operation_without_replay_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {"case": '{"op": "convolution"}'}
    save_file({"out.y": vector_cases.torch.ones(1)}, tmp_path / "a.safetensors", metadata)
    assert vector_cases.main(tmp_path) == 1
    assert "no replay for operation 'convolution'" in capsys.readouterr().out

"""What becomes of a command that is asked to end, once and more often."""

import os
import signal
from argparse import Namespace

import pytest

from grader.__main__ import kept, main
from grader.base.stopping import asked, stopping

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_time_does_not_break_off_the_clearing_up(number):
    before = signal.getsignal(number)
    with stopping() as came:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert asked()
    assert came == [number, number] and not asked()
    assert signal.getsignal(number) == before


def test_at_the_third_control_c_it_is_meant():
    with stopping():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_has_not_begun_is_stopped_without_a_traceback(
    number, code, monkeypatch, capsys
):
    def parse():
        signal.raise_signal(number)

    monkeypatch.setattr("grader.__main__.parser", parse)
    assert main(["doctor"]) == code
    assert capsys.readouterr().err == "stopped\n"


def test_only_what_this_run_has_written_is_spoken_of(tmp_path):
    options = Namespace(command="grade", out=tmp_path)
    file = tmp_path / "results.json"
    assert kept(options, 1000.0) == ""
    file.write_text("{}")
    os.utime(file, (900.0, 900.0))
    assert kept(options, 1000.0) == ""
    os.utime(file, (1001.0, 1001.0))
    assert kept(options, 1000.0).endswith(f"is kept in {file}")
    assert kept(Namespace(command="check", out=None), 1000.0) == ""
    assert kept(Namespace(command="verify", out=tmp_path), 1000.0) == ""

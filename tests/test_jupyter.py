"""`make notebook` announces what it fetches and asks the network nothing on its own."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess

from grader.cli import jupyter


def test_size_is_said_before_anything_is_fetched_and_a_failure_says_what_else_there_is(
    monkeypatch, capfd
):
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "220 MB" in capfd.readouterr().out
        ran.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", run)
    assert jupyter.main(argparse.Namespace()) == jupyter.CANNOT_START
    assert "--constraint" in ran[0] and len(ran) == 1
    assert "make notebooks" in capfd.readouterr().err


def test_server_starts_without_news_and_updates():
    words = jupyter.command({})
    assert "--LabApp.news_url=None" in words
    assert "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate" in words
    assert words[3].endswith("01_masks.ipynb")
    assert "--no-browser" in jupyter.command({"SSH_CONNECTION": "x"})

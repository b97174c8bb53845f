"""TEMPORARY stand-in by the lead until the real sandbox.py lands: overwrite freely."""
from __future__ import annotations
import contextlib, ctypes, os, signal
from dataclasses import dataclass, asdict, field
from pathlib import Path
from typing import Any

class IsolationUnavailable(Exception): ...

@dataclass(frozen=True)
class Plan:
    scratch: str
    tree: str
    def to_json(self) -> dict[str, Any]: return asdict(self)
    @classmethod
    def from_json(cls, d: dict[str, Any]) -> "Plan": return cls(**d)

@dataclass(frozen=True)
class Isolation:
    level: str = "portable"
    contained: bool = False
    layers: dict[str, str] = field(default_factory=dict)
    def command(self, trees: Path, scratch: Path) -> list[str]: return []
    def plan(self, *, tree: Path, scratch: Path, limits: Any) -> Plan: return Plan(str(scratch), str(tree))

def choose(requested: str) -> Isolation: return Isolation()
def enter(plan: Plan) -> dict[str, str]:
    os.setsid(); os.chdir(plan.scratch); return {}
def close_other_fds(keep: set[int]) -> None:
    for fd in range(3, 256):
        if fd not in keep:
            with contextlib.suppress(OSError): os.close(fd)
def become_subreaper() -> None:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
def kill_tree(pid: int) -> None:
    for c in children_of(pid): kill_tree(c)
    with contextlib.suppress(OSError): os.kill(pid, signal.SIGKILL)

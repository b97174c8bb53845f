"""Results to export, and the schemas of the platforms that take JSON."""

from __future__ import annotations

from typing import Any

PARTS = {"masks": 6, "attention": 8, "residual": 4, "encoder": 7, "decoder": 7, "training": 8}
GATES = ["future_independence", "padding_invariance", "finite_gradients", "greedy_accuracy"]
SEED = 271828182845

NUMBER = {"type": "number", "minimum": 0}
TEXT = {"type": "string", "maxLength": 30000}
VISIBILITY = {"enum": ["hidden", "after_due_date", "after_published", "visible"]}
FORMAT = {"enum": ["text", "html", "simple_format", "md", "ansi"]}


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object with these properties only."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


GRADESCOPE = closed(
    {
        "score": NUMBER, "execution_time": {"type": ["number", "string"]},
        "output": TEXT, "output_format": FORMAT,
        "test_output_format": FORMAT, "test_name_format": FORMAT, "visibility": VISIBILITY,
        "stdout_visibility": VISIBILITY, "extra_data": {"type": "object"},
        "leaderboard": {"type": "array"},
        "tests": {
            "type": "array",
            "items": closed({
                "score": NUMBER, "max_score": NUMBER, "status": {"enum": ["passed", "failed"]},
                "name": TEXT, "name_format": FORMAT, "number": TEXT, "output": TEXT,
                "output_format": FORMAT, "tags": {"type": "array", "items": TEXT},
                "visibility": VISIBILITY, "extra_data": {"type": "object"},
            }),
        },
    },
    "tests",
)  # fmt: skip
CLASSROOM = closed(
    {
        "version": {"type": "integer"}, "status": {"enum": ["pass", "fail", "error"]},
        "message": TEXT, "max_score": NUMBER,
        "tests": {
            "type": "array",
            "minItems": 1,
            "items": closed(
                {
                    "name": TEXT, "status": {"enum": ["pass", "fail", "error"]}, "message": TEXT,
                    "test_code": TEXT, "task_id": {"type": "integer"}, "filename": TEXT,
                    "line_no": {"type": "integer"}, "duration": NUMBER, "score": NUMBER,
                    "max_score": NUMBER,
                },
                "name", "status", "test_code", "task_id", "filename", "line_no", "duration",
                "score",
            ),
        },
    },
    "version", "status", "max_score", "tests",
)  # fmt: skip
PRAIRIELEARN = closed(
    {
        "score": {"type": "number", "minimum": 0, "maximum": 1}, "gradable": {"type": "boolean"},
        "format_errors": {"type": "array", "items": TEXT}, "message": TEXT, "output": TEXT,
        "tests": {
            "type": "array",
            "items": closed({
                "name": TEXT, "description": TEXT, "points": NUMBER, "max_points": NUMBER,
                "message": TEXT, "output": TEXT,
            }),
        },
    },
)  # fmt: skip
PRAIRIELEARN["anyOf"] = [{"required": ["score"]}, {"properties": {"gradable": {"const": False}}}]


def entry(name: str, most: float, status: str = "passed", **more: Any) -> dict[str, Any]:
    """Return an entry of `results.json` with one check."""
    check = {
        "check": f"checks.py::test_{name}", "stub": more.pop("stub", None), "status": status,
        "summary": more.get("summary", status), "diagnosis": more.get("diagnosis"),
        "evidence": {"secret": "canary-7919"}, "seconds": 0.25,
    }  # fmt: skip
    score = most if status == "passed" else 0
    return {
        "name": name, "status": status, "score": score, "max_score": most, "summary": status,
        "diagnosis": None, "evidence": {"secret": "canary-7919"}, "seconds": 0.25,
        "checks": [check],
    } | more  # fmt: skip


def tree(**entries: dict[str, Any]) -> dict[str, Any]:
    """Return a result, passed but for what `entries` change, by the name of a part or gate."""
    parts = [
        entry(name, most) | {"task": str(i)} for i, (name, most) in enumerate(PARTS.items(), 1)
    ]
    gates = [entry(name, 15) for name in GATES]
    stretch = [entry("convert", 5, "not_implemented") | {"task": "S4"}]
    for one in [*parts, *gates, *stretch]:
        if one["name"] in entries:
            one |= entry(one["name"], one["max_score"], **entries[one["name"]])
    graded = parts + gates
    passed = all(one["status"] == "passed" for one in graded)
    ours = [one["summary"] for one in graded if one["status"] == "grader_error"]
    return {
        "schema": 1, "complete": True, "passed": passed, "gates_passed": passed,
        "score": None if ours else sum(one["score"] for one in graded),
        "max_score": sum(one["max_score"] for one in graded),
        "grader_error": ours[0] if ours else None,
        "submission": {"name": "anna", "sha256": "0" * 64, "files": [], "notes": ["one note"]},
        "gates": gates, "parts": parts, "stretch": stretch,
        "integrity": {"flags": [{"code": "odd", "message": "reads the clock"}]},
        "isolation": {"level": "bwrap", "contained": True, "layers": {}},
        "environment": {}, "seed": SEED,
        "replay": f"python -m grader grade anna --seed {SEED}",
    }  # fmt: skip


DIAGNOSIS = {
    "code": "mask_off_by_one",
    "part": "masks",
    "cause": "Position 2 moved by 0.31 when token 3 changed.",
    "advice": "Check the diagonal of causal_mask.",
}


def mixed() -> dict[str, Any]:
    """Return a result in which nearly every status occurs, and partial credit."""
    return tree(
        masks={"status": "failed", "score": 4, "diagnosis": DIAGNOSIS, "stub": "1.2"},
        attention={"status": "not_implemented", "summary": "task 2.1 is not implemented yet"},
        residual={"status": "error", "summary": "residual.py, line 3: ValueError: no"},
        encoder={"status": "out_of_memory"},
        decoder={"status": "crashed"},
        training={"status": "protocol"},
        future_independence={"status": "timeout", "summary": "no answer after 30 s"},
        padding_invariance={"status": "blocked", "summary": "waits for gate future_independence"},
    )


def broken() -> dict[str, Any]:
    """Return a result of which the grader made a mess."""
    return tree(encoder={"status": "grader_error", "summary": "KeyError in oracle/layers.py"})

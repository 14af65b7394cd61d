"""Reports of `kvsim conform`: JSON for programs, and Markdown for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.conformance.conformity import Conformity
    from kvsim.conformance.explained import Finding


def sentence_of(result: Conformity) -> str:
    """Return one sentence with the number of differing workloads, or with what was compared if all are equal."""
    against = f"vLLM {result.installed} against kvsim's rules of {result.release}"
    served = result.num_workloads - result.num_refused
    refused = f"; {result.num_refused} more are refused by both" if result.num_refused else ""
    if result.equal:
        counts = ", ".join(
            f"{result.totals[f'num_{name}']:,} {name}" for name in ("steps", "allocations", "hits", "preemptions")
        )
        return f"{against}: equal on {served:,} workloads ({counts}){refused}."
    return f"{against}: {len(result.differing):,} of {served:,} workloads differ{refused}."


def words_of(finding: Finding) -> str:
    """Return a sentence with the variants that explain a finding, or one that says that none does."""
    if not finding.variants:
        return "No known variant explains it."
    explanations = [" and ".join(map(str, variants)) for variants in finding.variants]
    return "Explained by: " + "; or by: ".join(explanations)


def place_of(finding: Finding) -> str:
    """Return a clause: the number of workloads with a finding, and where its example first differs."""
    shown = "workload shows" if finding.num_workloads == 1 else "workloads show"
    return f"{finding.num_workloads:,} {shown} it first, such as {finding.example.name} at {finding.difference.moment}"


def as_dict(result: Conformity) -> dict[str, Any]:
    """Return the result as a JSON object. Each finding includes its example workload, which can be run again."""
    return {
        "vllm": result.installed,
        "compared_with": result.release,
        "notes": result.notes,
        "equal": result.equal,
        "num_workloads": result.num_workloads,
        "num_refused": result.num_refused,
        **result.totals,
        "differing": result.differing,
        "findings": [_finding(finding) for finding in result.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "explained_by": [
            [{"name": each.name, "value": each.shown, "says": each.description} for each in variants]
            for variants in finding.variants
        ],
        "num_workloads": finding.num_workloads,
        "example": finding.example.name,
        "difference": asdict(finding.difference),
        "workload": finding.example.document,
    }


def as_markdown(result: Conformity) -> str:
    """Return the result as Markdown, with a section and a table of differing fields for each finding."""
    parts = ["# vLLM against kvsim", sentence_of(result), *(f"Note: {note}." for note in result.notes)]
    for number, finding in enumerate(result.findings, 1):
        rows = [
            f"| {'**differs**' if line.differs else ''} | `{line.label}` | `{line.recorded}` | `{line.simulated}` |"
            for line in finding.difference.lines
        ]
        parts += [
            f"## {number}. {finding.rule}",
            f"{words_of(finding)}",
            f"{place_of(finding)}.",
            "\n".join(["| | | vLLM | kvsim |", "|---|---|---|---|", *rows]),
        ]
    return "\n\n".join(parts) + "\n"

"""The report as people read it, and the exit code that goes with it."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentops.chaos.plan import GROUPS, Kind

#: Exit codes of the command.
PROVED, WRONG, CANNOT_JUDGE, INTERRUPTED = 0, 1, 2, 130


def exit_code(report: Mapping[str, Any]) -> int:
    """0 only if everything came to its end and nothing was wrong."""
    if report["lost"] or report["repeated"] or not report["invariants_ok"]:
        return WRONG
    return INTERRUPTED if report["interrupted"] else PROVED


def rendered(report: Mapping[str, Any]) -> RenderableType:
    """Tables and a verdict in a sentence."""
    parts: list[RenderableType] = [_figures(report), _faults(report["faults_by_kind"])]
    if report["not_observable"]:
        told = ", ".join(f"{tool} ({count})" for tool, count in sorted(report["not_observable"].items()))
        parts.append(
            Text(
                f"Lost and repeated effects are not observable for {told}: no ledger tells about them (docs/chaos.md).",
                style="yellow",
            )
        )
    for kind, samples in report["wrong"].items():
        parts.append(Text(f"✗ {kind}", style="bold red"))
        parts += [Text(f"    {sample}") for sample in samples]
    return Group(*parts, _verdict(report))


def _figures(report: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    ends = ("completed", "failed", "cancelled", "attention")
    rows = [
        ("runs", report["runs"], ", ".join(f"{report[end]} {end}" for end in ends)),
        ("faults", report["faults"], f"in {report['duration']:g} s, seed {report['seed']}"),
        ("effects expected", report["effects_expected"], "recorded as done in the database"),
        ("effects seen", report["effects_seen"], "carried out, by the ledgers"),
        ("lost", report["lost"], "recorded as done, and in no ledger"),
        ("repeated", report["repeated"], "carried out more than once"),
        (
            "child runs",
            report["children"],
            f"{report['joins']} joins, each tells of all of its children what they came to",
        ),
        (
            "forks",
            report["forks"],
            f"{report['effects_reused']} effects that they count on without sending them again",
        ),
        ("bulks", report["bulks"], f"{report['bulk_runs']} runs retried by them, each once"),
        ("verbs", *_verbs(report["verbs"])),
        (
            "in doubt, settled",
            report["in_doubt_settled"],
            "by a look-up, or by a person who looked into the ledger",
        ),
        (
            "recovery p50",
            _seconds(report["recovery_p50_s"]),
            "from a fault to the next attempt of the run that it hit",
        ),
        ("recovery p99", _seconds(report["recovery_p99_s"]), ""),
        ("recovery worst", _seconds(report["recovery_max_s"]), ""),
        ("invariants", "hold" if report["invariants_ok"] else "BROKEN", "doctor; ends; webhooks; records"),
    ]
    for name, value, meaning in rows:
        table.add_row(name, str(value), meaning)
    return table


def _verbs(verbs: Mapping[str, Mapping[str, int]]) -> tuple[int, str]:
    """How many were confirmed and stand once in the history, and which."""
    done = {verb: answers.get("done", 0) for verb, answers in verbs.items()}
    told = ", ".join(f"{number} {verb}" for verb, number in done.items() if number)
    return sum(done.values()), f"confirmed to people: {told}" if told else "none was asked for"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _faults(by_kind: Mapping[str, int]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for group, kinds in GROUPS.items():
        told = [f"{count} {kind}" for kind, count in by_kind.items() if kind in kinds or _of(kind) in kinds]
        if told:
            table.add_row(str(group), ", ".join(told))
    return table


def _of(kind: str) -> str:
    """The kind that a fault of the sandbox belongs to."""
    return (
        Kind.PROVIDER if kind.startswith("provider") else Kind.WEBHOOK if kind.startswith("webhook") else kind
    )


def _verdict(report: Mapping[str, Any]) -> Text:
    match exit_code(report):
        case 0:
            told = (
                f"Nothing lost, nothing twice: {report['effects_seen']} effects, {report['faults']} faults."
            )
            return Text(told, style="bold green")
        case 130:
            return Text("Interrupted: nothing was wrong so far, which proves little.", style="bold yellow")
    return Text("Something is wrong: see above. Logs, database and ledger are kept.", style="bold red")

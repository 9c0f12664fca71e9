"""Values as text for people, and as JSON for programs. Pure: nothing is printed, and no clock is read.

Agents may produce any characters, so every text from outside is made printable first: no escape sequence of an agent
reaches a terminal, and no newline of an agent starts a line of the output. JSON holds the records in full, with the
characters escaped that a terminal would interpret.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.diagnostics.tool_calls import ToolCallIndex
from supervisor.policies.redaction import printable

if TYPE_CHECKING:  # a command imports the modules of the values that it prints, and no others
    from supervisor.diagnostics.task_status import DeadLetter
    from supervisor.diagnostics.tree_view import EntityLine, Node
    from supervisor.diagnostics.validate import Report
    from supervisor.diagnostics.visual_state import Inspected
    from supervisor.lifecycles.types import LifecycleEvent
    from supervisor.policies.abort_plan import (
        AbortPlan,
        Crossing,
        NodeReceipt,
        PlannedNode,
        ProcessFate,
        Receipt,
        SparedNode,
        UncrossedEdge,
    )

INDENTED_MAX = 64
"""Number of levels of a tree up to which its JSON is indented."""


# ------------------------------------------------------------------------------------------------------- pieces
def json_line(value: Any) -> str:
    """Return *value* as one line of JSON."""
    return printable(msgspec.json.encode(value).decode())


def json_text(value: Any) -> str:
    """Return *value* as an indented JSON document."""
    return printable(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), lines=True)


def duration(seconds: float) -> str:
    """Return a duration as text: ``0.42 s``, ``12 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(timestamp: float) -> str:
    """Return the local time of day for a Unix time, as ``HH:MM:SS.mmm``."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%H:%M:%S.%f")[:-3]


def local_time(timestamp: float) -> str:
    """Return the local date and time for a Unix time, as ``YYYY-MM-DD HH:MM:SS``."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def cost(cost_usd: float, tokens: int) -> str:
    """Return the cost as text, or the tokens if no cost is known; ``""`` if nothing was reported."""
    if cost_usd:
        return f"{cost_usd:.4f} USD"
    return f"{tokens} tokens" if tokens else ""


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines with aligned columns; the last column is not padded."""
    cells = [list(heads), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


# ------------------------------------------------------------------------------------------------------- events
def event_line(event: LifecycleEvent, call: str | None = None) -> str:
    """Return a record in one line: time, number, entity, event, and the first line of its reason.

    *call* is the tool call that the record is about, if the caller knows it from earlier records.
    """
    who = f"{event.entity_type:<7} {printable(event.entity_id):<15}"
    return f"{clock(event.timestamp)} {event.seq:>6}  {who}  {_what(event, call or ToolCallIndex().label(event))}"


def _what(event: LifecycleEvent, call: str) -> str:
    parts = [event.event, call, _change(event), *_metadata(event, "title" if call else "")]
    if event.outcome not in ("transition", "fact", "born"):
        parts.append(f"({event.outcome})")
    reasons = dict.fromkeys(filter(None, (event.transition_reason, event.abort_reason)))
    if reasons:
        parts.append(f"[{', '.join(reasons)}]")
    if event.abort_id:
        parts.append(f"abort {event.abort_id}")
    if event.actor:
        parts.append(f"by {event.actor}")
    text = printable("  ".join(part for part in parts if part))
    reason, more, _ = event.reason.partition("\n")
    return f"{text}: {printable(reason)}{' ...' if more else ''}" if reason else text


def _change(event: LifecycleEvent) -> str:
    if event.outcome not in ("transition", "born") or event.from_status == event.to_status:
        return event.to_status and f"in {event.to_status}"
    return f"{event.from_status} -> {event.to_status}" if event.from_status else f"-> {event.to_status}"


def _metadata(event: LifecycleEvent, left_out: str) -> list[str]:
    """Return the few metadata fields without which a record's line is hard to understand, except the field
    *left_out*."""
    shown = ("title", "outcome", "status", "ended_by", "target", "scope", "policy_edge", "rung", "took_s")
    # The journal's name for a termination stage is ``rung``, from before there was one word for it.
    found = {"stage" if name == "rung" else name: event.metadata.get(name) for name in shown if name != left_out}
    return [f"{name}={value}" for name, value in found.items() if value not in (None, "")]


# ----------------------------------------------------------------------------------------------- what there is
def ps_text(rows: Iterable[EntityLine]) -> str:
    heads = ("ID", "KIND", "STATE", "SEEN AS", "AGE", "LAST SIGN", "COST", "PARENT", "NOTE")
    return columns(heads, (_ps_row(row) for row in rows))


def _ps_row(row: EntityLine) -> tuple[str, ...]:
    sign = f"{duration(row.silent_s)} ago" if row.silent_s is not None else ""
    spent = cost(row.used.cost_usd, row.used.tokens) if row.used is not None else ""
    return (row.id, row.kind, row.state, row.visual or "", duration(row.age_s), sign, spent, row.parent or "", row.note)


def dead_letters_text(letters: Iterable[tuple[DeadLetter, str]]) -> str:
    """Return the tasks that were given up, each with the command to retry it."""
    heads = ("TASK", "ATTEMPTS", "RUNS", "TRY AGAIN", "LAST ERROR")
    rows = ((one.entity_id, str(one.attempts), str(one.runs), again, one.last_error) for one, again in letters)
    return columns(heads, rows)


def tree_text(nodes: Sequence[Node]) -> str:
    """Return the trees with their branches drawn. Iterative, because a tree may be thousands of levels deep."""
    lines: list[str] = []
    pending = [(node, "", "", "") for node in reversed(nodes)]
    while pending:
        node, indent, branch, below = pending.pop()
        lines.append(f"{indent}{branch}{_node_line(node)}")
        inner = indent + below
        last = node.children[-1:] and node.children[-1]
        pending += [
            (one, inner, "└─ ", "   ") if one is last else (one, inner, "├─ ", "│  ") for one in reversed(node.children)
        ]
    return "\n".join(lines)


def tree_json(nodes: Sequence[Node]) -> str:
    """Return the trees as JSON, in one line if indentation would take most of the text. Iterative, as
    :func:`tree_text`."""
    order = [(1, node) for node in nodes]
    below: list[range] = []
    for depth, node in order:
        below.append(range(len(order), len(order) + len(node.children)))
        order += [(depth + 1, child) for child in node.children]
    made: list[msgspec.Raw] = [msgspec.Raw()] * len(order)
    for number in reversed(range(len(order))):
        made[number] = _node_json(order[number][1], [made[one] for one in below[number]])
        for one in below[number]:
            made[one] = msgspec.Raw()
    text = msgspec.json.encode(made[: len(nodes)])
    deep = order and order[-1][0] > INDENTED_MAX
    return printable((text if deep else msgspec.json.format(text, indent=2)).decode(), lines=True)


def _node_json(node: Node, children: list[msgspec.Raw]) -> msgspec.Raw:
    fields = {name: getattr(node, name) for name in node.__struct_fields__}
    return msgspec.Raw(msgspec.json.encode({**fields, "children": children}))


def _node_line(node: Node) -> str:
    if node.kind == "tool":
        return f'{printable(node.id)} "{printable(node.note)}"'
    used = node.used or {}
    parts = [
        printable(node.note),
        cost(used.get("cost_usd", 0.0), used.get("input_tokens", 0) + used.get("output_tokens", 0)),
        f"last sign {duration(node.silent_s)} ago" if node.silent_s is not None and node.kind == "session" else "",
    ]
    text = ", ".join(part for part in parts if part)
    return f"{printable(node.id)}  {node.kind} {node.state}{f'  ({text})' if text else ''}"


# ------------------------------------------------------------------------------------------------------- aborts
def plan_text(plan: AbortPlan, namesakes: Sequence[str] = ()) -> str:
    """Return an abort plan as text: its effects in the order in which they would happen."""
    head = f"abort of {printable(plan.target)}, scope {plan.scope}"
    if plan.already_ended:
        return f"{head}: {_over(namesakes)}"
    lines = [f"{head}: would end {len(plan.nodes)} within {plan.deadline_s:g} s; nothing was done; plan {plan.id}"]
    if plan.nodes:
        heads = ("KIND", "ID", "REACHED AS", "OVER", "MODE", "REQUEST/CANCEL/TERMINATE/KILL BY", "PIDS")
        lines.append(columns(heads, (_planned_node(one) for one in plan.nodes)))
    lines += [_crossing(one) for one in plan.crossings]
    lines += [_uncrossed(one) for one in plan.uncrossed]
    lines += [f"joins {printable(one.id)}, which is ending already" for one in plan.ending]
    lines += [_spared(one) for one in plan.spared]
    return "\n".join(lines)


def _planned_node(one: PlannedNode) -> tuple[str, ...]:
    due = one.due
    if due is None:
        by = "-"
    elif one.kind == "tool":  # no stages between; then its turn is interrupted
        by = f"{due.request_s:g}/-/-/{due.kill_s:g} s"
    else:
        by = f"{due.request_s:g}/{due.cancel_s:g}/{due.terminate_s:g}/{due.kill_s:g} s"
    pids = " ".join(str(process.pid) for process in one.processes)
    return (one.kind, one.id, f"scope {one.scope}", one.edge or "asked for", one.mode, by, pids or "-")


def _crossing(one: Crossing) -> str:
    before = f" (after {one.after})" if one.after else ""
    return f"crosses to scope {one.scope} over {one.edge}, the policy of {printable(one.ruled_by)}{before}"


def _uncrossed(uncrossed: UncrossedEdge) -> str:
    whose = printable(uncrossed.ruled_by)
    return f"does not spread to scope {uncrossed.scope}: the policy of {whose} has no {uncrossed.edge}"


def _spared(one: SparedNode) -> str:
    whose = f"a child of {printable(one.parent)}" if one.parent is not None else "a root"
    return f"spares {printable(one.id)} ({one.reason}): it lives on as {whose}"


def _over(namesakes: Sequence[str]) -> str:
    """Return the text about an abort target that has ended; *namesakes* are the running sessions with the target's
    name."""
    now = f"; running under that name now: {printable(', '.join(namesakes))}" if namesakes else ""
    return f"it had already ended, nothing was done{now}"


def receipt_text(receipt: Receipt, namesakes: Sequence[str] = ()) -> str:
    """Return an abort receipt as text: the effects of the abort."""
    head = f"abort of {printable(receipt.target)}, scope {receipt.scope}"
    if receipt.already_ended:
        joined = f"; it was ending by {receipt.joined}, and has ended" if receipt.joined is not None else ""
        late = f"; not recorded yet: {printable(receipt.outage)}" if receipt.outage is not None else ""
        left = f"; survivors: {receipt.survivors}" if receipt.survivors else ""
        over = _over(namesakes)
        if receipt.cancelled_task is not None:
            over = f"it had already ended; its task {printable(receipt.cancelled_task)} is cancelled"
        return f"{head}: {over}{joined}{left}{late}"
    lines = [f"{head} ({receipt.abort_id}): {printable(receipt.reason)}"]
    lines += [f"  {_ended_node(one)}" for one in receipt.nodes]
    lines += [f"  {_ended_process(one)}" for one in receipt.processes]
    lines += [f"  {_spared(one)}" for one in receipt.spared]
    return "\n".join([*lines, f"  survivors: {receipt.survivors}; {_recorded(receipt)}"])


def _ended_node(one: NodeReceipt) -> str:
    stage = f" at the stage {one.rung}" if one.rung else ""
    how = f" ({printable(one.how)})" if one.how else ""
    return f"{one.kind} {printable(one.id)}: {one.outcome}{stage} after {duration(one.took_s)}{how}"


def _ended_process(one: ProcessFate) -> str:
    if not one.ended_by:
        whose = f"of {printable(one.owner)}"
        if not one.pid:
            ended = ", and have ended with the agent" if one.survivors == 0 else ""
            return f"processes {whose}: could not be looked for{ended}"
        state = "has ended" if one.survivors == 0 else "was alive when looked for last"
        return f"process {one.pid}, perhaps {whose}: {state}"
    status = "status unknown" if one.status is None else f"status {one.status}"
    more = f", {one.killed} below it killed" if one.killed else ""
    if one.exiting_s:
        more += f"; it was exiting for {duration(one.exiting_s)}, in which the kernel released what it held"
    return f"process {one.pid} of {printable(one.owner)}: ended by {one.ended_by}, {status}{more}"


def _recorded(receipt: Receipt) -> str:
    killed = f"all ended at {clock(receipt.killed_at)}, " if receipt.killed_at is not None else ""
    if receipt.recorded_at is None:
        why = "the disk has not answered" if receipt.outage is None else printable(receipt.outage)
        return f"{killed}not recorded yet: {why}"
    return f"{killed}recorded at {clock(receipt.recorded_at)}"


# ------------------------------------------------------------------------------------------------------ inspect
def inspected_text(seen: Inspected) -> str:
    """Return the inspection of one entity: a headline, its current activity, and the stacks of its tasks."""
    ending = f", {seen.phase}: {seen.reason}" if seen.reason else ""
    lines = [f"{seen.kind} {printable(seen.id)}: {seen.state}{ending}"]
    queued = ", ".join(f"{count} {lane}" for lane, count in seen.queued.items() if count) or "nothing"
    late = f", {counted(seen.late_replies, 'late reply', 'late replies')}" if seen.late_replies else ""
    timers = counted(seen.timers, "timer", "timers")
    lines.append(f"  mailbox: {queued} queued, {seen.handled} handled{late}; {timers}")
    if seen.agent is not None:
        at_work = f", at work on {seen.turn}" if seen.turn else ", idle"
        lines.append(f"  agent {seen.agent}{f' (pid {seen.pid})' if seen.pid else ''}{at_work}")
    if seen.open_calls:
        lines.append(f"  open calls: {', '.join(seen.open_calls)}")
    if seen.checkpoint:
        lines.append(f"  checkpoint: {printable(seen.checkpoint)}")
    if (held_by := seen.held_by) is not None:
        lines.append(f"  held since {clock(held_by.since)} by {printable(f'{held_by.what}; {held_by.fix}')}")
    if seen.permissions:
        lines.append(f"  waits for a human: {', '.join(seen.permissions)}")
    if seen.cancelled_for:
        lines.append(f"  its scope was cancelled: {'; '.join(map(printable, seen.cancelled_for))}")
    if seen.children:
        lines.append(f"  children: {', '.join(map(printable, seen.children))}")
    for task in seen.tasks:
        lines.append(f"  task {printable(task.name)}")
        lines += [f"    {printable(where)}" for where in task.stack]
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------- validation
def report_text(name: str, report: Report) -> str:
    """Return the report on a log as text: ``valid``, or every problem with its line."""
    checked = f"{counted(report.lines, 'line', 'lines')}, {counted(report.entities, 'entity', 'entities')}"
    if not report.lines:
        return f"{name}: valid, but it holds no line"
    if not report.problems:
        return f"{name}: valid ({checked})"
    lines = [
        f"{name}:{one.line}: {f'{one.field}: ' if one.field else ''}{printable(one.message)}" for one in report.problems
    ]
    more = f", the last {report.omitted} not shown" if report.omitted else ""
    problems = counted(len(lines) + report.omitted, "problem", "problems")
    return "\n".join([*lines, f"{name}: {problems} in {checked}{more}"])


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"

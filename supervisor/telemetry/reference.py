"""Reference page of the names of telemetry: ``python -m supervisor.telemetry.reference FILE``.

A test fails when the page in the repository is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from supervisor.telemetry.metric_table import LABEL_VALUES_MAX, METRICS, OTHER, USER_LABELS
from supervisor.telemetry.span_table import COMMON, ENTITY, ERROR_TYPE, LINK, NAMES, OPERATION, OUTCOME, SCHEMAS, GenAi

_INTRODUCTION: Final = f"""# Names of metrics and spans

Generated from the tables of `supervisor/telemetry/` by `make telemetry`. [Metrics, traces and
logs](../how-to/telemetry.md) says how to switch them on.

## Metrics

No label has the id of an entity. Of the labels {", ".join(f"`{one}`" for one in sorted(USER_LABELS))}, whose values
come from users and agents, the first {LABEL_VALUES_MAX} values are kept; the others count as `{OTHER}`. A session
without a plan has the plan `""`.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_INTRODUCTION, *_metrics(), *_spans()]).rstrip() + "\n"


def _metrics() -> Iterator[str]:
    yield "| metric | type | labels | meaning |\n|---|---|---|---|"
    for one in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{one.name}` | {one.kind} | {labels} | {one.help} |".replace("|  |", "| |")
    yield ""


def _spans() -> Iterator[str]:
    yield "## Spans\n"
    yield (
        f"Every span has `{ENTITY}` and `{OUTCOME}`; a failed one has `{ERROR_TYPE}`, and its status is an error. An "
        f"abort is no error. Spans of operations of the GenAI conventions have `{OPERATION}`. Links have `{LINK}`: "
        "`ends` from an abort to what it ends, `continues` to the span of an earlier supervisor.\n"
    )
    for version in GenAi:
        yield f"### {version.value}\n"
        if (schema := SCHEMAS[version]) is not None:
            yield f"Schema: `{schema}`.\n"
        yield "| span of a | name | attributes |\n|---|---|---|"
        for kind, names in NAMES[version].items():
            attributes = ", ".join(f"`{one}`" for one in dict.fromkeys(names.attributes.values()))
            yield f"| {kind.value} | `{names.operation} ...` | {attributes} |"
        yield ""
    yield f"Attributes of any span: {', '.join(f'`{one}`' for one in COMMON)}."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")

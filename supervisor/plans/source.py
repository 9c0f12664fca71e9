"""Read a plan file as data, with the line of every field. Only safe YAML, and only within size limits.

A file may have 1 MiB and 100,000 values, each alias counted as often as it is used. Every fault is a ``BadPlan`` that
names the file and the line. This module does not depend on the meaning of a plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml

from supervisor.ports.input_files import open_input
from supervisor.ports.json_text import joined_pairs

BYTES_MAX: Final = 1024 * 1024
NODES_MAX: Final = 100_000

_INT_TAGS: Final = frozenset({"tag:yaml.org,2002:int"})
_NUMBER_TAGS: Final = _INT_TAGS | {"tag:yaml.org,2002:float"}
_KEY_TAGS: Final = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"})

FieldPath = tuple[str | int, ...]
"""Path of a field in a plan, such as ``("tasks", 1, "agent")``."""


class BadPlan(Exception):
    """Error: the plan cannot be run; one line per problem, each with file, line and field. Nothing was started."""


def spelled(path: FieldPath) -> str:
    """Return the path as a person writes it: ``tasks[1].agent``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class Source:
    """YAML document: its data, and the position of each field."""

    def __init__(self, name: str, root: yaml.Node, data: Any) -> None:
        self.name, self.root, self.data = name, root, data

    def line(self, path: FieldPath) -> int:
        """Return the line of the field at *path*, counted from 1, or of the nearest field around it that exists."""
        marks = [self.root, *(mark for mark, _ in self._steps(path))]
        return int(marks[-1].start_mark.line) + 1

    def written(self, path: FieldPath) -> str | None:
        """Return the scalar at *path* as written in the file; ``None`` if there is none."""
        nodes = [self.root, *(node for _, node in self._steps(path))]
        there = len(nodes) > len(path) and isinstance(nodes[-1], yaml.ScalarNode)
        return str(nodes[-1].value) if there else None

    def _steps(self, path: FieldPath) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield the nodes along *path* as far as they exist: the node that marks the position, and the value's node."""
        node = self.root
        for part in path:
            if (found := _step(node, part)) is None:
                return
            yield found
            node = found[1]

    def bad(self, problems: Iterable[tuple[FieldPath, str]]) -> BadPlan:
        """Return the error that lists all *problems* in the order of the file."""
        placed = sorted((self.line(path), number, path, words) for number, (path, words) in enumerate(problems))
        return BadPlan("\n".join(f"{self.name}:{line}: {_field(path)}{words}" for line, _, path, words in placed))


def _field(path: FieldPath) -> str:
    return f"{spelled(path)}: " if path else ""


def _step(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the node that marks the position of *part* (a key or an item), and the node of its value."""
    if isinstance(node, yaml.SequenceNode):
        inside = isinstance(part, int) and 0 <= part < len(node.value)
        return (node.value[part], node.value[part]) if inside else None
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(part)), None)
    return None


# ------------------------------------------------------------------------------------------------------- reading
def read_source(path: Path, content: bytes | None = None) -> Source:
    """Read and parse *path*, or parse *content*, which *path* names in error texts.

    Raises:
        BadPlan: the file is missing, too big, not UTF-8, not YAML, or has a duplicate key.
    """
    name = str(path)
    data = _bytes(path, name) if content is None else content
    if len(data) > BYTES_MAX:
        raise BadPlan(f"{name}: is larger than {BYTES_MAX} bytes, the maximum; split it")
    return parse(_text(data, name), name)


def _bytes(path: Path, name: str) -> bytes:
    if path.is_dir():
        raise BadPlan(f"{name}: is a directory; give the path of a plan, for example {path / 'plan.yaml'}")
    try:
        with open_input(path) as file:
            return file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        raise BadPlan(f"{name}: no such file; {_similar(path)}") from None
    except (OSError, ValueError) as error:
        raise BadPlan(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _similar(path: Path) -> str:
    """Return the advice for a plan that does not exist: a file beside it with a similar name, if there is one."""
    beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, [one for one in beside if one.endswith((".yaml", ".yml"))], n=1)
    return f"did you mean {str(path.parent / near[0])!r}?" if near else "give the path of a plan, a YAML file"


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{data[error.start]:02x} at position {error.start}"
        raise BadPlan(f"{name}:{line}: not UTF-8 ({wrong}); save the plan as UTF-8") from None


def parse(text: str, name: str, wanted: str = "a plan needs agents and tasks") -> Source:
    """Parse *text*; *wanted* is the part of the error text for an empty document that names the needed content.

    Raises:
        BadPlan: the text is not YAML, too big, or has a duplicate key.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise BadPlan(f"{name}: is empty; {wanted}")
        _check_nodes(root, name)
        data = yaml.SafeLoader("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        raise BadPlan(_not_yaml(error, name)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadPlan(f"{name}:{line}: not YAML: {error.reason} (#x{_code(error.character):02x})") from None
    except RecursionError:
        raise BadPlan(f"{name}: nested too deeply; a plan has six levels, and two for each level of subtasks") from None
    except ValueError as error:
        why = str(error).partition(";")[0]
        raise BadPlan(f"{name}: a value looks like a number or a date, but is not valid ({why}); quote it") from None
    return Source(name, root, data)


def _code(character: object) -> int:
    return ord(character) if isinstance(character, str) else int(str(character))


def _not_yaml(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{mark.line + 1}:{mark.column + 1}: " if mark else " "
    words = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{name}:{place}not YAML: {words}"


def _check_nodes(root: yaml.Node, name: str) -> None:
    """Raise an error for a document with a duplicate key, or with a number that is not what it looks like, or whose
    aliases make it too large or endless.

    A surrogate pair becomes the character that it encodes: JSON, which is YAML, writes characters this way.
    """
    pending, counted = [root], 1
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.ScalarNode):
            node.value = joined_pairs(node.value)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, name)
            inside = [part for pair in node.value for part in pair]
        else:
            inside = node.value if isinstance(node, yaml.SequenceNode) else []
            if isinstance(node, yaml.ScalarNode):
                _check_number(node, name)
        counted += len(inside)
        if counted > NODES_MAX:
            raise BadPlan(f"{name}: has more than {NODES_MAX} values, its aliases resolved; split it")
        pending += inside


def _check_number(node: yaml.ScalarNode, name: str) -> None:
    """Raise an error for a number that YAML 1.1 reads in base 60 (``1:30`` is 90) or in base 8 (``0100`` is 64): few
    people know that, and YAML 1.2 reads text and 100."""
    base = 60 if ":" in node.value else 8
    if node.tag in _NUMBER_TAGS and (base == 60 or re.fullmatch(r"[-+]?0[0-7_]+", node.value)):
        make = yaml.SafeLoader.construct_yaml_int if node.tag in _INT_TAGS else yaml.SafeLoader.construct_yaml_float
        read = make(yaml.SafeLoader(""), node)
        fix = f"write {read}, or quote it to make it text"
        raise BadPlan(f"{name}:{node.start_mark.line + 1}: {node.value} is read as {read} (base {base}); {fix}")


def _check_keys(node: yaml.MappingNode, name: str) -> None:
    first: dict[Any, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise BadPlan(f"{name}:{line}: a key must be text, not a list or a mapping")
        if key.tag not in _KEY_TAGS:
            kind = key.tag.rpartition(":")[2]
            raise BadPlan(f"{name}:{line}: the key {key.value} is read as {kind}; quote it to make it text")
        if key.value in first:
            raise BadPlan(
                f"{name}:{line}: {key.value}: is a duplicate key (first in line {first[key.value]}); remove one"
            )
        first[key.value] = line

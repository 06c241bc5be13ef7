"""YAML that a user did not write by hand is read strictly: plain data, no doubled names, nothing without end.

The safe loader of PyYAML, which builds nothing that a text names, with three more refusals. Who calls:
checkpoint/modules.py.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_CHARACTERS = 16 << 20
MAX_NODES = 1_000_000
MAX_DEPTH = 100


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader that refuses two values under one name."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node.

        Raises:
            yaml.YAMLError: a name stands there twice.
        """
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name {key.value!r} stands there twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str) -> Any:
    """The plain data in a text.

    Raises:
        yaml.YAMLError: no YAML, a tag that asks for an object, a doubled name, or too large when its aliases are
            followed.
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text)} characters, and at most {MAX_CHARACTERS} are read")
    loader = StrictLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return loader.construct_document(node)
    except (RecursionError, ValueError) as error:  # too deep, or a number or date that is none
        raise yaml.YAMLError(f"it cannot be read: {error}") from error
    finally:
        loader.dispose()


def _check_size(root: yaml.Node) -> None:
    """Counts the nodes with every alias followed, each node once."""
    counts: dict[int, int] = {}

    def count(node: yaml.Node, depth: int) -> int:
        if id(node) in counts:
            if counts[id(node)] < 0:
                raise yaml.YAMLError("it contains itself")
            return counts[id(node)]
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested deeper than {MAX_DEPTH}")
        counts[id(node)] = -1
        inner = node.value if isinstance(node, (yaml.SequenceNode, yaml.MappingNode)) else []
        total = 1
        for member in inner:
            total += sum(count(one, depth + 1) for one in (member if isinstance(member, tuple) else (member,)))
        counts[id(node)] = total
        return total

    if count(root, 0) > MAX_NODES:
        raise yaml.YAMLError(f"it has more than {MAX_NODES} values when its aliases are followed")

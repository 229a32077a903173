# SPDX-License-Identifier: Apache-2.0
"""Bound of what a YAML document expands to: an alias in a small file may stand for much."""

from typing import Any

#: Most values of a document, counted as often as aliases repeat them.
VALUES_MAX = 2_000_000
#: Errors of PyYAML's constructors at scalars that are not of their tag, beside ``YAMLError``.
CONSTRUCTOR_ERRORS = (ValueError, LookupError, AttributeError, RecursionError)


class DocumentTooLarge(Exception):
    """A document that would expand to too much; its text says how much was expected."""


def load_document(loader: Any) -> Any:
    """Return the document of one of PyYAML's loaders; None: it is empty.

    Its nodes are counted before anything is built of them: merge keys expand while they are.

    :raises DocumentTooLarge: it has more values than ``VALUES_MAX``, or contains itself
    :raises ValueError, LookupError, AttributeError, RecursionError: a scalar is not of its tag, or
        it is nested too deep; beside the parser's own errors
    """
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        count = _value_count(node, {})
        if count > VALUES_MAX:
            raise DocumentTooLarge(
                f'expected at most {VALUES_MAX:,} values with all aliases expanded, got {count:,}'
            )
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _value_count(node: Any, counts: dict[int, int | None]) -> int:
    """Return the number of nodes below one, itself among them; each is visited once.

    :param counts: id of a node -> its number; None while it is counted
    :raises DocumentTooLarge: it contains itself
    """
    if isinstance(node.value, str):
        return 1
    if id(node) in counts:
        known = counts[id(node)]
        if known is None:
            raise DocumentTooLarge('an alias stands for what contains it')
        return known
    counts[id(node)] = None
    count = 1
    for element in node.value:  # of a mapping: a key and its value
        for inner in element if isinstance(element, tuple) else (element,):
            count += _value_count(inner, counts)
    counts[id(node)] = count
    return count

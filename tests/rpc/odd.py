# SPDX-License-Identifier: Apache-2.0
"""Messages changed in any place: what a stranger may write."""

import copy

#: What a stranger may write in place of anything.
ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    '',
    'x' * 300,
    'half \ud83d',
    [],
    ['a', 1],
    {},
    {'a': None},
    2**70,
    float('nan'),
    float('inf'),
    {'nova_object.name': 'Flavor', 'nova_object.data': {}},
]


def places(value, path=()):
    """Paths of everything in a structure."""
    yield path
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def changed(value, path, change):
    """A copy with something else at a path."""
    if not path:
        return change(value)
    copied = copy.copy(value)
    copied[path[0]] = changed(value[path[0]], path[1:], change)
    return copied


def without(path):
    """What takes away the item at the end of a path."""

    def change(value):
        copied = copy.copy(value)
        del copied[path[-1]]
        return copied

    return change

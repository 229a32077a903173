# SPDX-License-Identifier: Apache-2.0
"""``gantt what-if``: a request on the hosts as they are, and as edited."""

import argparse
import re
import uuid
from collections.abc import Callable
from typing import Any

from gantt.cli import base, parsing, spec
from gantt.cli.endpoint import Exit, Failure

_EDIT_FORM = 'NAME[,KEY=VALUE...]'
_ADD_FORM = 'NAME[,like=HOST][,count=N][,KEY=VALUE...]'
_KEYS_HELP = (
    'enabled=no, reporting=yes, empty=yes, CLASS=TOTAL, reserved.CLASS=N, '
    'allocation_ratio.CLASS=R, trait=T, no-trait=T, aggregate=A, no-aggregate=A, zone=Z, '
    'cell=UUID, location=PATH'
)
_NUMBER = re.compile(r'[0-9]{1,19}(\.[0-9]{1,19})?')
_BOOLEAN_KEYS = ('enabled', 'reporting', 'empty')
_LIST_KEYS = {
    'trait': 'traits',
    'no-trait': 'without_traits',
    'aggregate': 'aggregates',
    'no-aggregate': 'without_aggregates',
}
#: Prefix of a key by class -> the field, the form of its value, and its parser.
_CLASS_KEYS: dict[str, tuple[str, str, Callable[[str], float]]] = {
    'reserved': ('reserved', 'a whole number', int),
    'allocation_ratio': ('allocation_ratios', 'a number', float),
}
_TEXT_KEYS = ('zone', 'cell', 'location', 'like')


class WhatIf(base.Base):
    """Say where a request would go if hosts were added, removed or changed; claim nothing.

    With --kind pool the hosts of the options are pools.

    Exit codes: 0 it would be placed, 2 no valid host even so.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the spec, and the edits of hosts."""
        spec.add_arguments(parser)
        many: dict[str, Any] = {'action': 'append', 'default': [], 'metavar': _EDIT_FORM}
        parser.add_argument(
            '--count',
            type=parsing.whole_number(1, 1000),
            default=1,
            help='how many consumers (default: 1)',
        )
        parser.add_argument(
            '--add-host',
            **{**many, 'metavar': _ADD_FORM},
            help='a further host of this name, like another, or several of them; KEY as below',
        )
        parser.add_argument('--change-host', **many, help=f'a host otherwise: {_KEYS_HELP}')
        parser.add_argument(
            '--remove-host', action='append', default=[], metavar='HOST', help='without this host'
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """POST and print."""
        request = spec.body(parsed_args)
        request.setdefault('request_id', str(uuid.uuid4()))
        if 'consumers' not in request:
            request['consumers'] = [str(uuid.uuid4()) for _ in range(parsed_args.count)]
        hosts = {
            'add': dict(map(edit_of, parsed_args.add_host)),
            'change': dict(map(edit_of, parsed_args.change_host)),
            'remove': parsed_args.remove_host,
        }
        answer = self.endpoint.post('/v1/what-if', {'request': request, 'hosts': hosts})
        self.show(parsed_args, answer, answer['lines'])
        return Exit.PLACED if answer['then']['outcome'] == 'placed' else Exit.NO_VALID_HOST


def edit_of(value: str) -> tuple[str, dict[str, Any]]:
    """Parse ``NAME,KEY=VALUE,...`` into an edit of the interface.

    :raises Failure: the text has another form
    """
    name, *pairs = value.split(',')
    edit: dict[str, Any] = {}
    if not name or '=' in name:
        raise Failure(
            f'{value!r}: expected {_EDIT_FORM} with the name first, got {name!r}', Exit.USAGE
        )
    for pair in pairs:
        key, equals, text = pair.partition('=')
        if not (equals and text):
            raise Failure(f'{value!r}: expected {_EDIT_FORM}, got {pair!r}', Exit.USAGE)
        _set_key(edit, key, text, value)
    return name, edit


def _set_key(edit: dict[str, Any], key: str, text: str, whole: str) -> None:
    if key in _BOOLEAN_KEYS:
        if text not in ('yes', 'no', 'true', 'false'):
            raise Failure(f'{whole!r}: {key}: expected yes or no, got {text!r}', Exit.USAGE)
        edit[key] = text in ('yes', 'true')
    elif key in _LIST_KEYS:
        edit.setdefault(_LIST_KEYS[key], []).append(text)
    elif key in _TEXT_KEYS:
        edit[key] = text
    elif key == 'count' or key.isupper():
        if not text.isdigit():
            raise Failure(f'{whole!r}: {key}: expected a whole number, got {text!r}', Exit.USAGE)
        if key == 'count':
            edit[key] = int(text)
        else:
            edit.setdefault('resources', {})[key] = int(text)
    elif key.partition('.')[0] in _CLASS_KEYS and key.partition('.')[2]:
        _set_class_key(edit, key, text, whole)
    else:
        raise Failure(f'{whole!r}: no key {key!r}; expected like, count, {_KEYS_HELP}', Exit.USAGE)


def _set_class_key(edit: dict[str, Any], key: str, text: str, whole: str) -> None:
    number, _, name = key.partition('.')
    field, expected, read = _CLASS_KEYS[number]
    if not _NUMBER.fullmatch(text):
        raise Failure(f'{whole!r}: {key}: expected {expected}, got {text!r}', Exit.USAGE)
    try:
        edit.setdefault(field, {})[name] = read(text)
    except ValueError:
        raise Failure(f'{whole!r}: {key}: expected {expected}, got {text!r}', Exit.USAGE) from None

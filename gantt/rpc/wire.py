# SPDX-License-Identifier: Apache-2.0
"""Versions and shapes of our own messages: dict <-> core types.

The topics ``gantt-scheduler``, ``gantt-planner``, ``gantt-claims``, ``gantt-stats`` and
``gantt-compute.<host>`` have one version together.

History of the interface:

    1.0  all methods

A server answers senders of its own major version.  From a sender whose minor
version is newer, keys that the server does not know are dropped; from all
others they are refused.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base, quoting
from gantt.core.records import decision
from gantt.core.records.decision import Answer
from gantt.core.records.members import AnswerByHosts, answer_by_hosts, answer_in_lists
from gantt.rpc.call import RpcCall

MAJOR, MINOR = 1, 0
VERSION = f'{MAJOR}.{MINOR}'

SCHEDULER_TOPIC = 'gantt-scheduler'
PLANNER_TOPIC = 'gantt-planner'
CLAIMS_TOPIC = 'gantt-claims'
STATS_TOPIC = 'gantt-stats'

EXCHANGE = 'gantt'
#: Exchange of the topics that hosts send to.  Builds are at the other one: write permission on an
#: exchange reaches every queue there, since permissions for single routing keys are evaded by a
#: "CC" header or a binding.
HOSTS_EXCHANGE = 'gantt-hosts'

_LONE_SURROGATE = re.compile('[\ud800-\udfff]')
_VERSION = re.compile(r'(\d{1,9})\.(\d{1,9})\Z')


def exchange_of_topic(topic: str) -> str:
    """Return the exchange that the queues of a topic of ours are bound to."""
    return HOSTS_EXCHANGE if topic in (CLAIMS_TOPIC, STATS_TOPIC) else EXCHANGE


def is_newer(
    method: str, version: Any, *, major: int = MAJOR, minor: int = MINOR, exact: bool = False
) -> bool:
    """Return whether the sender's minor version is newer than ours.

    :param major: major version that is served here, as ``minor`` is
    :param exact: a newer minor version is refused
    :raises UnsupportedVersion: another major version; names both
    :raises InvalidMessage: not a version
    """
    match = _VERSION.match(version) if isinstance(version, str) else None
    if match is None:
        raise exceptions.invalid(
            'version', f'expected text like {VERSION!r}, got {quoting.quoted(version)}'
        )
    sender = int(match[1]), int(match[2])
    if sender[0] != major or (exact and sender[1] > minor):
        expected = f'{major}.0 to {major}.{minor}' if exact else f'{major}.N'
        raise exceptions.UnsupportedVersion(method=method, version=version, expected=expected)
    return sender[1] > minor


def argument(call: RpcCall) -> Any:
    """Return the only argument of a call, as its type in the method's interface.

    :raises InvalidMessage: names the field and what was expected
    """
    ((name, tp),) = call.parameters.items()
    if call.raw.raw_args is not None and not call.newer_minor:
        try:
            arguments = _decoder(name, tp)(call.raw.raw_args)
        except (msgspec.DecodeError, UnicodeError, RecursionError, exceptions.GanttError):
            pass  # decoding below reports the error
        else:
            value = getattr(arguments, name)
            base.check_opaque(value, name)
            return value
    check_names(call.args, (name,), newer=call.newer_minor)
    return base.decode(call.args[name], tp, inside=name, newer_minor=call.newer_minor)


@functools.cache
def _decoder(name: str, tp: Any) -> Callable[[msgspec.Raw], Any]:
    """Return a decoder of the arguments of a method, as they were sent."""
    fields = [(name, tp)]
    return msgspec.json.Decoder(
        msgspec.defstruct('Arguments', fields, forbid_unknown_fields=True)
    ).decode


def check_names(args: dict[str, Any], names: tuple[str, ...], *, newer: bool = False) -> None:
    """Check for exactly the arguments ``names``; from a newer sender, for at least them.

    :raises InvalidMessage: an argument is missing or not known
    """
    for name in names:
        if name not in args:
            raise exceptions.invalid(f'args.{name}', 'required argument is missing')
    for name in args:
        if name not in names and not newer:
            raise exceptions.invalid(
                f'args.{quoting.quoted(name)}', f'unknown argument; expected {", ".join(names)}'
            )


def check_finite(body: Any, path: str, depth: int = 0) -> None:
    """Refuse numbers that are not finite (JSON as Python writes it has NaN and Infinity).

    :raises InvalidMessage: names the field
    """
    if isinstance(body, float) and not math.isfinite(body):
        raise exceptions.invalid(_shown(path), f'expected a finite number, got {body}')
    if depth > 64:
        raise exceptions.invalid(_shown(path), 'nested too deeply; expected at most 64 levels')
    if isinstance(body, dict):
        for key, value in body.items():
            check_finite(value, f'{path}.{key}', depth + 1)
    elif isinstance(body, list):
        for value in body:
            check_finite(value, f'{path}[...]', depth + 1)


def _shown(path: str) -> str:
    """Return a path whose keys are foreign, as a refusal repeats it."""
    return quoting.plain_text(path, base.NAME_MAX)


def check_encodable(body: Any, path: str) -> None:
    """Refuse text with a lone surrogate, which no database and no reply can carry.

    :raises InvalidMessage: names the field; for a key, the object that has it
    """
    if isinstance(body, str):
        if _LONE_SURROGATE.search(body):
            raise exceptions.invalid(
                _shown(path), f'expected text, got a lone surrogate in {quoting.quoted(body)}'
            )
    elif isinstance(body, dict):
        for key, value in body.items():
            check_encodable(key, path)
            check_encodable(value, f'{path}.{key}' if path else str(key))
    elif isinstance(body, list):
        for index, value in enumerate(body):
            check_encodable(value, f'{path}[{index}]')


def answer(final: Answer) -> tuple[AnswerByHosts | None, Exception | None]:
    """Return an answer as (result, error) of a call; the envelope encodes it as it is."""
    error = decision.error_of(final)
    if error is not None:
        return None, error
    return answer_by_hosts(decision.answer_for_caller(final)), None


def read_answer(body: Any) -> Answer:
    """Return an answer as its caller reads it.

    :raises InvalidMessage: it is no answer
    """
    decoded = base.decode(body, AnswerByHosts, inside='answer')
    try:
        return answer_in_lists(decoded)
    except IndexError:
        raise exceptions.invalid(
            'answer.members', f'expected places in a list of {len(decoded.hosts)} hosts'
        ) from None

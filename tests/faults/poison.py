# SPDX-License-Identifier: Apache-2.0
"""Messages that nobody should send: a corpus of files, and any number of mutants.

``tests/data/poison.jsonl`` has one file a line: a name, the body as pieces
``[text, times]`` (latin-1, so that any byte can be written), and how it says it
is to be read.  Lines may be added by hand: whatever broke something once.  The
lines that are made by rule come from here:

    python -m tests.faults.poison > tests/data/poison.jsonl
"""

import json
import pathlib
import pickle
import random
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from gantt.core.messages import base
from tests.builders import a_report, a_request, uuid_of
from tests.rpc.bus import load

FILE = pathlib.Path(__file__).parents[1] / 'data' / 'poison.jsonl'

JSON = 'application/json'
#: Id of a message, which the sender replaces: the library swallows repeats.
UNIQUE = b'0badcafe' * 4

#: Where messages are sent: topic and exchange.
TOPICS = [
    ('gantt-scheduler', 'gantt'),
    ('gantt-claims', 'gantt-hosts'),
    ('gantt-stats', 'gantt-hosts'),
    ('scheduler', 'nova'),
]

#: Values that are hardly ever right.
ODD: dict[str, Any] = {
    'null': None,
    'true': True,
    'zero': 0,
    'minus': -1,
    'large': 2**63,
    'huge': 10**40,
    'half': 0.5,
    'empty text': '',
    'text': 'nonsense',
    'long text': 'x' * 300,
    'surrogate': 'a\ud800',
    'nul': 'a\0b',
    'quote': "'; DROP TABLE claims; --",
    'list': [],
    'lists': [[[]]],
    'object': {},
    'nested': {'a': {'b': [None, {'c': 1}]}},
}


_RUN = re.compile(r'(.)\1{39,}', re.DOTALL)


class Poison(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file.

    :ivar pieces: text and how often it is repeated, one after the other
    :ivar kind: content type
    :ivar coding: content encoding
    """

    name: str
    pieces: list[tuple[str, int]]
    kind: str = JSON
    coding: str = 'utf-8'
    headers: dict[str, Any] = {}

    @property
    def body(self) -> bytes:
        return ''.join(text * times for text, times in self.pieces).encode('latin-1')


def corpus() -> list[Poison]:
    """What the file has."""
    lines = FILE.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Poison) for line in lines]


# -- the corpus by rule -----------------------------------------------------------------
def made() -> list[Poison]:
    """Always the same."""
    return [*_bodies(), *_envelopes(), *_keys(), *_arguments(), *_kinds(), *_bytes()]


def _a(name: str, body: bytes | str, **how: Any) -> Poison:
    text = body.decode('latin-1') if isinstance(body, bytes) else body
    pieces, at = [], 0
    for run in _RUN.finditer(text):
        pieces += [(text[at : run.start()], 1), (run[1], len(run[0]))]
        at = run.end()
    return Poison(name, [*pieces, (text[at:], 1)], **how)


def _bodies() -> Iterator[Poison]:
    """Which are no envelope at all."""
    bodies = {
        'nothing': b'',
        'a nul': b'\0',
        'a byte order mark': b'\xef\xbb\xbf{}',
        'no utf-8': b'\xff\xfe{}',
        'overlong utf-8': b'{"\xc0\xaf": 1}',
        'half a character': b'"\\ud800"',
        'blanks': b' \n\t ',
        'utf-16': '{"oslo.version": "2.0"}'.encode('utf-16'),
        'a list': b'[]',
        'a number': b'7',
        'null': b'null',
        'a text': b'"text"',
        'not a number': b'NaN',
        'infinity': b'-Infinity',
        'beyond a float': b'1e999',
        'an object': b'{}',
        'two objects': b'{}{}',
        'half an object': b'{"a"',
        'half a text': b'{"a": "b',
        'a comma too many': b'{"a": 1,}',
        'single quotes': b"{'a': 1}",
        'a key twice': b'{"oslo.version": "2.0", "oslo.version": "1.0"}',
        'a control character': b'"\x01"',
        'a bad escape': b'"\\x41"',
        'a comment': b'{} // no',
        'xml': b'<?xml version="1.0"?><a/>',
        'an amqp frame': b'\x01\0\x01\0\0\0\x04\0\x3c\0\x28\xce',
        'a pickle': pickle.dumps({'method': 'x'}, 2),
    }
    for name, body in bodies.items():
        yield _a(name, body)
    yield Poison('deep lists', [('[', 100_000), (']', 100_000)])
    yield Poison('deep lists that do not end', [('[', 100_000)])
    yield Poison('deep objects', [('{"a":', 50_000), ('1', 1), ('}', 50_000)])
    yield Poison('a long number', [('1', 100_000)])
    yield Poison('a long text', [('"', 1), ('y', 500_000), ('"', 1)])
    yield Poison('many keys', [('{"a": 1', 1), (', "b": 1', 60_000), ('}', 1)])
    yield Poison('many blanks', [(' ', 500_000), ('{}', 1)])


def _envelopes() -> Iterator[Poison]:
    """Whose own two fields are wrong."""
    inner = json.dumps({'method': 'select_destinations', 'version': '1.0', 'args': {}})
    yield _a('no version of the envelope', json.dumps({'oslo.message': inner}))
    yield _a('no message in the envelope', json.dumps({'oslo.version': '2.0'}))
    yield _a(
        'more in the envelope',
        json.dumps(
            {
                'oslo.version': '2.0',
                'oslo.message': inner,
                'oslo.more': 1,
            }
        ),
    )
    for name, value in ODD.items():
        yield _a(
            f'envelope version {name}', json.dumps({'oslo.version': value, 'oslo.message': inner})
        )
        yield _a(
            f'envelope message {name}', json.dumps({'oslo.version': '2.0', 'oslo.message': value})
        )
        yield _a(
            f'inner {name}', json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(value)})
        )
    for version in ('1.0', '2.1', '3.0', '9.9', '2', '2.0.0', '-1.0'):
        yield _a(
            f'envelope version {version}',
            json.dumps({'oslo.version': version, 'oslo.message': inner}),
        )
    yield Poison(
        'inner deep',
        [
            ('{"oslo.version": "2.0", "oslo.message": "', 1),
            ('[', 100_000),
            (']', 100_000),
            ('"}', 1),
        ],
    )


def envelope(inner: dict[str, Any]) -> bytes:
    """As oslo.messaging writes it."""
    return json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(inner)}).encode()


def _keys() -> Iterator[Poison]:
    """Whose message has one key that is wrong."""
    right = {
        'method': 'select_destinations',
        'version': '1.0',
        'args': {},
        'namespace': None,
        '_msg_id': 'a' * 32,
        '_reply_q': 'reply_nobody',
        '_unique_id': UNIQUE.decode(),
        '_timeout': 1,
        '_context_request_id': 'req-1',
        '_context_client_timeout': 1,
        'ctxt': {},
    }
    for key in right:
        yield _a(f'without {key}', envelope({k: v for k, v in right.items() if k != key}))
        for name, value in ODD.items():
            yield _a(f'{key} {name}', envelope(right | {key: value}))
    for name in (
        '__init__',
        '_on_incoming',
        '__class__',
        'interface',
        'run',
        'select_destinations ',
    ):
        yield _a(f'method {name.strip("_ ")}', envelope(right | {'method': name}))
    for version in (
        '0.9',
        '1.',
        '.1',
        '1.0.0',
        '2.0',
        '99.0',
        '1.99999999999',
        'one',
        ' 1.0',
        '1.0\n',
    ):
        yield _a(f'version {version!r} of a method', envelope(right | {'version': version}))
    for length in (255, 256, 300, 100_000):
        yield _a(f'reply queue of {length}', envelope(right | {'_reply_q': 'q' * length}))


#: The argument of each method of ours.
ARGUMENTS = {
    'select_destinations': 'request',
    'get_request': 'request',
    'cancel_claims': 'request',
    'register_host': 'host',
    'confirm_claims': 'update',
    'refuse_claims': 'update',
    'release_claims': 'update',
    'extend_claims': 'request',
    'update_resource_stats': 'stats',
    'update_aggregates': 'aggregates',
    'delete_aggregate': 'aggregate',
    'update_instance_info': 'instance_info',
    'sync_instance_info': 'instance_uuids',
    'delete_instance_info': 'instance_uuid',
}


def _arguments() -> Iterator[Poison]:
    """Calls of real methods with nonsense in them."""
    for method, argument in ARGUMENTS.items():
        for name in ('null', 'huge', 'surrogate', 'lists', 'nested'):
            args = {argument: ODD[name]}
            if method == 'update_resource_stats':
                args['name'] = ODD[name]
            yield _a(
                f'{method} of {name}', envelope({'method': method, 'version': '1.0', 'args': args})
            )


def _kinds() -> Iterator[Poison]:
    """Which say wrongly, or not at all, how they are to be read."""
    body = envelope({'method': 'select_destinations', 'version': '1.0', 'args': {}})
    kinds = (
        'application/x-python-serialize',
        'application/x-yaml',
        'application/x-msgpack',
        'application/data',
        'application/octet-stream',
        'text/plain',
        'text/html',
        '',
        'json',
        'application/json; charset=utf-16',
        'x' * 200,
    )
    for kind in kinds:
        yield _a(f'as {kind[:40].replace("/", " ")}'.strip(), body, kind=kind)
    for coding in (
        'binary',
        'utf-16',
        'us-ascii',
        'latin-1',
        'base64',
        'nonsense',
        '',
        'rot13',
        'zlib',
    ):
        yield _a(f'coded {coding}'.strip(), body, coding=coding)
    yield _a(
        'a real pickle', pickle.dumps({'method': 'x'}, 2), kind='application/x-python-serialize'
    )
    yield _a(
        'a pickle that says binary', pickle.dumps({}, 2), kind='application/data', coding='binary'
    )
    yield _a('real yaml', '!!python/object/apply:os.system ["true"]', kind='application/x-yaml')
    packed = zlib.compress(body)
    for name, content, how in (
        ('gzip that is none', body, 'application/x-gzip'),
        ('bzip2 that is none', body, 'application/x-bz2'),
        ('lzma that is none', body, 'application/x-lzma'),
        ('half a gzip', packed[:-9], 'application/x-gzip'),
        ('more than a gzip', packed + b'more', 'application/x-gzip'),
        ('unknown compression', body, 'application/x-nonsense'),
        ('compression as a number', body, 7),
        ('compression as a list', body, ['application/x-gzip']),
        ('compression as an object', body, {'a': 1}),
    ):
        yield _a(name, content, coding='binary', headers={'compression': how})
    for name in ('null', 'true', 'large', 'list', 'nested'):
        value = ODD[name] if name != 'large' else 2**40
        yield _a(f'headers with {name}', body, headers={'x-death': value, 'retry': value})


def _bytes() -> Iterator[Poison]:
    """Any bytes."""
    rng = random.Random(17)
    for size in (1, 2, 7, 64, 255, 1000, 4096):
        for number in range(3):
            yield _a(f'{size} bytes {number}', rng.randbytes(size))
            yield _a(
                f'{size} bytes {number} as data',
                rng.randbytes(size),
                kind='application/data',
                coding='binary',
            )


# -- mutants -------------------------------------------------------------------------------
class Sent(NamedTuple):
    """A message and where it goes."""

    topic: str
    exchange: str
    body: bytes


def good() -> list[tuple[str, str, dict[str, Any]]]:
    """Right messages, by topic and exchange: what mutants are made of."""

    def call(method: str, **args: Any) -> dict[str, Any]:
        return {'method': method, 'version': '1.0', 'args': args}

    request = a_request(request_id=uuid_of('mutant'), consumers=[uuid_of('guest')]).build()
    words = {'name': 'mutant', 'epoch': 1, 'sequence': 5, 'claim_ids': [uuid_of('claim')]}
    report = a_report('mutant', traits=['CUSTOM_A'], zone='z', foreign={'VCPU': 1}).build()
    captured = load('select_destinations-boot')
    context, args = captured.fresh([uuid_of('instance')], 'req-mutant')
    message = {'method': captured.method, 'version': captured.version, 'args': args}
    message |= {f'_context_{key}': value for key, value in context.items()}
    body = base.to_builtins(request)
    return [
        ('gantt-scheduler', 'gantt', call('select_destinations', request=body)),
        ('gantt-scheduler', 'gantt', call('cancel_claims', request={'request_id': uuid_of('no')})),
        (
            'gantt-scheduler',
            'gantt',
            call('get_request', request={'request_id': uuid_of('mutant')}),
        ),
        (
            'gantt-claims',
            'gantt-hosts',
            call('register_host', host={'name': 'mutant', 'boot_nonce': 'n'}),
        ),
        ('gantt-claims', 'gantt-hosts', call('confirm_claims', update=words)),
        ('gantt-claims', 'gantt-hosts', call('release_claims', update=words | {'reason': 'x'})),
        (
            'gantt-stats',
            'gantt-hosts',
            call('update_resource_stats', name='mutant', stats=base.to_builtins(report)),
        ),
        ('scheduler', 'nova', message),
    ]


class Mutants:
    """Mutants without end, which follow from the seed.

    :param reply_q: where answers go that nobody reads
    """

    def __init__(self, seed: int, reply_q: str) -> None:
        self._rng = random.Random(seed)
        self._reply_q = reply_q
        self._good = good()
        self._odd = list(ODD.values())
        self._count = 0

    def next(self) -> Sent:
        """One more."""
        rng = self._rng
        topic, exchange, right = rng.choice(self._good)
        inner = msgspec.json.decode(msgspec.json.encode(right))
        self._count += 1
        inner['_unique_id'] = f'{self._count:032x}'
        if rng.random() < 0.3:
            inner |= {'_msg_id': f'{self._count:032x}', '_reply_q': self._reply_q, '_timeout': 2}
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            self._bend(inner)
        outer = {'oslo.version': '2.0', 'oslo.message': json.dumps(inner)}
        if rng.random() < 0.05:
            self._bend(outer)
        body = json.dumps(outer).encode()
        if rng.random() < 0.4:
            body = self._spoil(body)
        return Sent(topic, exchange, body)

    def _bend(self, tree: dict[str, Any]) -> None:
        """Another value, another name or nothing somewhere in a tree."""
        rng = self._rng
        node: Any = tree
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            if not keys:
                return
            key = rng.choice(keys)
            deeper = node[key]
            if not (isinstance(deeper, dict | list) and deeper and rng.random() < 0.8):
                break
            node = deeper
        how = rng.random()
        if how < 0.6:
            node[key] = rng.choice(self._odd)
        elif how < 0.8 or isinstance(node, list):
            del node[key]
        elif how < 0.9:
            node[key + rng.choice(('x', ' ', '\0', '.'))] = node.pop(key)
        else:
            node[key] = [node[key]] * rng.choice((1, 2, 50))

    def _spoil(self, body: bytes) -> bytes:
        """A few bytes changed, left out, put in or said twice."""
        rng, spoiled = self._rng, bytearray(body)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(spoiled))
            until = at + rng.choice((1, 1, 2, 8, 100))
            how = rng.randrange(4)
            if how == 0:
                spoiled[at] = rng.randrange(256)
            elif how == 1:
                del spoiled[at : max(until, 1)]
            elif how == 2:
                spoiled[at:at] = rng.randbytes(until - at)
            else:
                spoiled[at:at] = spoiled[at:until]
            if not spoiled:
                break
        return bytes(spoiled)


if __name__ == '__main__':
    for message in made():
        print(msgspec.json.encode(message).decode())

# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage dead-letters``: messages that could not be handled, as the broker keeps them."""

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

import amqp
import msgspec

from gantt import exceptions
from gantt.cmd import console
from gantt.insights.explain.wording import counted_noun
from gantt.rpc.amqp import refusals, transport
from gantt.rpc.amqp.connection import BROKER_AWAY_ERRORS

#: Time-out of each answer of the broker.
ANSWER_SECONDS = 10.0
_BODY_CHARACTERS = 200
_LINE_WIDTH = 100


class ShownDeadLetter(msgspec.Struct, kw_only=True):
    """One message that could not be handled.

    :ivar bytes: size of the whole body; ``body`` may be its beginning only
    """

    at: str
    code: str
    problem: str
    topic: str
    method: str
    request: str
    server: str
    bytes: int
    body: str


def show(conf: Any) -> int:
    """Show messages that could not be handled, oldest first; they stay where they are."""
    try:
        with open_queue(conf) as (channel, name):
            messages = list(read(channel, name, conf.command.limit))
        none_yet = ''
    except exceptions.NotFound as e:
        messages, none_yet = [], f': {e.message}'
    lines = [line for message in messages for line in _lines(message)]
    console.show(conf, messages, [*lines, f'{counted_noun(len(messages), "message")}{none_yet}'])
    return 0


def _lines(message: ShownDeadLetter) -> list[str]:
    return [
        f'{message.at}  {message.code[:_LINE_WIDTH]}  {message.method[:_LINE_WIDTH]} on '
        f'{message.topic[:_LINE_WIDTH]}, '
        f'request {message.request[:_LINE_WIDTH]}, {message.bytes} bytes, '
        f'refused by {message.server[:_LINE_WIDTH]}',
        f'    {message.problem[:_LINE_WIDTH]}',
        f'    {ascii(message.body[:_BODY_CHARACTERS])}',
    ]


def drop(conf: Any) -> int:
    """Delete all messages that could not be handled."""
    try:
        with open_queue(conf) as (channel, name):
            deleted = channel.queue_purge(name)
    except exceptions.NotFound as e:
        print(f'0 messages deleted: {e.message}')
        return 0
    console.print_lines(f'{counted_noun(deleted, "message")} deleted')
    return 0


@contextlib.contextmanager
def open_queue(conf: Any) -> Iterator[tuple[Any, str]]:
    """Open a channel to the broker; yield it with the name of the queue; messages read stay queued.

    :raises Misconfigured: no queue is named
    :raises NotFound: the queue does not exist: the first message that is refused creates it
    :raises BrokerUnavailable: the broker does not answer, or not any more
    :raises Misconfigured: the broker runs and refuses us
    """
    name = conf.rpc.dead_letter_queue
    if not name:
        raise exceptions.Misconfigured(
            option='[rpc] dead_letter_queue',
            problem='no queue is named: nothing is kept',
            fix='Name one, e.g. gantt-dead-letters, where the schedulers run',
        )
    carrier = transport.own_transport(conf)
    where = carrier.address
    try:
        with carrier.opened() as connection, connection.answered_within(ANSWER_SECONDS):
            yield connection.channel(), name
    except amqp.NotFound:
        raise exceptions.NotFound(
            f'the broker has no queue {name!r}: nothing was refused since it was named',
            kind='queue',
            name=name,
        ) from None
    except BROKER_AWAY_ERRORS as e:
        problem = f'{e}; start it, or correct transport_url'
        raise exceptions.BrokerUnavailable(url=where, problem=problem) from None
    except amqp.AMQPError as e:
        raise exceptions.Misconfigured(
            option='transport_url',
            problem=f'the message broker at {where} refuses us: {refusals.refusal_text(e)}',
            fix=f'Correct {_broker_refusal(e)}',
        ) from None
    finally:
        carrier.cleanup()


def _broker_refusal(error: amqp.AMQPError) -> str:
    """Return what to correct where the broker runs and refuses."""
    if 'to queue' in str(error):
        return 'the rights of the user in it'
    return refusals.wrong_url_part(error) or 'it, or the broker'


def read(channel: Any, name: str, limit: int) -> Iterator[ShownDeadLetter]:
    """Yield messages that stay in the queue, oldest first."""
    for _ in range(limit):
        # Not acknowledged: the broker puts it back where it was when the channel closes.
        message = channel.basic_get(name)
        if message is None:
            return
        body = message.body
        text = body if isinstance(body, str) else bytes(body).decode(errors='replace')
        yield _shown_dead_letter(message.properties, text)


def _shown_dead_letter(properties: dict[str, Any], body: str) -> ShownDeadLetter:
    headers = properties.get('application_headers') or {}
    at = properties.get('timestamp')
    if isinstance(at, int | float):
        at = datetime.datetime.fromtimestamp(at, datetime.UTC)
    words = {
        name: str(headers.get(name, '-'))
        for name in ('code', 'problem', 'topic', 'method', 'request', 'server')
    }
    size = headers.get('bytes')
    return ShownDeadLetter(
        at=at.strftime('%Y-%m-%dT%H:%M:%SZ') if isinstance(at, datetime.datetime) else '-',
        bytes=size if isinstance(size, int) else len(body.encode()),
        body=body,
        **words,
    )

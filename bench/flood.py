# SPDX-License-Identifier: Apache-2.0
"""Very many callers of one project, in a process of their own that costs little.

``python -m bench.flood URL PROJECT CALLERS BYTES``: each caller has a connection, requests a place
with a body of so many bytes, and the next as soon as it is answered, or after the stated wait.
Ends on SIGTERM; then the last line has the answers by outcome, as JSON.
"""

import asyncio
import collections
import json
import signal
import sys
import uuid
from urllib.parse import urlsplit

#: A name that fills a body.
NAME = 'no-such-host-' + 150 * 'x'
CONNECT_EACH_SECONDS = 0.002


def body_of(size: int) -> bytes:
    """Return a request for one place with about so many bytes; two uuids in it are left open."""
    names = [f'{NAME}{n:05}' for n in range(max(0, size - 400) // (len(NAME) + 8))]
    request = {
        'request_id': '%s',
        'consumers': ['%s'],
        'budget_ms': 30_000,
        'lease_seconds': 7200,
        'spec': {'resources': {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}, 'ignore_hosts': names},
    }
    return json.dumps(request, separators=(',', ':')).encode()


class Flood:
    """The callers of one project.

    :ivar answered: HTTP status -> how many
    """

    def __init__(self, url: str, project: str, size: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or '127.0.0.1', parts.port or 80
        self._body = body_of(size)
        filled = len(self._body) - 4 + 2 * 36
        self._head = (
            f'POST /v1/requests HTTP/1.1\r\nHost: {self._host}\r\nX-Project-Id: {project}\r\n'
            f'Content-Type: application/json\r\nContent-Length: {filled}\r\n\r\n'
        ).encode()
        self.answered: collections.Counter[str] = collections.Counter()

    async def caller(self, number: int) -> None:
        """Send requests of one caller, until it is cancelled."""
        await asyncio.sleep(number * CONNECT_EACH_SECONDS)
        while True:
            try:
                reader, writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                self.answered['no connection'] += 1
                await asyncio.sleep(1.0)
                continue
            try:
                while True:
                    await asyncio.sleep(await self._ask(reader, writer))
            except (OSError, asyncio.IncompleteReadError):
                self.answered['connection lost'] += 1
                await asyncio.sleep(1.0)
            finally:
                writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        """Send one request; return the seconds that the answer requests to wait."""
        ids = str(uuid.uuid4()).encode(), str(uuid.uuid4()).encode()
        writer.write(self._head + self._body % ids)
        await writer.drain()
        lines = (await reader.readuntil(b'\r\n\r\n')).decode('latin-1').split('\r\n')
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(':') for x in lines[1:])
        }
        await reader.readexactly(int(headers.get('content-length', '0')))
        self.answered[lines[0].split()[1]] += 1
        return float(headers.get('retry-after', '0'))


async def main(url: str, project: str, callers: int, size: int) -> None:
    """Flood until SIGTERM."""
    flood, stopped = Flood(url, project, size), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    tasks = [asyncio.create_task(flood.caller(number)) for number in range(callers)]
    print('floods', flush=True)
    await stopped.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(flood.answered), flush=True)


if __name__ == '__main__':
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))

# SPDX-License-Identifier: Apache-2.0
"""``gantt``: the operators' command line, a client of the HTTP interface.

It knows nothing of the service's internals: it prints the answers of HTTP.
Every command has ``-f json`` with the interface's own keys; a failure prints
one sentence, the code and the request id, and exits with a number that a
script can act on (``endpoint.Exit``).
"""

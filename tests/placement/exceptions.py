# SPDX-License-Identifier: Apache-2.0
"""Tests that Placement itself does not pass over HTTP, each with its reason.

Their requests are made all the same, for those after them build on what they did.  One that
passes is a failure of the run: the list has no more than what is so.
"""

EXCEPTIONS = {
    'basic-http: bad content length not int': (
        'httpx, the client below gabbi, refuses to send a content-length that is no number'
    ),
}

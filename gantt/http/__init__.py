# SPDX-License-Identifier: Apache-2.0
"""The HTTP adapter: a falcon WSGI application over the service's read model.

Read ``app.py`` first: the route table and the middleware stack fit one screen. Every handler is a
function whose signature is its declaration: the parameters ``query`` and ``body`` name the msgspec
types that are decoded strictly before it runs, the others are parts of the path, and the annotation
of the result is its answer in the OpenAPI document.
"""

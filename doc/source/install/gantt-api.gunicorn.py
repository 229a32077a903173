# SPDX-License-Identifier: Apache-2.0
# gunicorn --config gantt-api.gunicorn.py gantt.wsgi.api:application
bind = '127.0.0.1:8790'
raw_env = ['OS_GANTT_CONFIG_FILE=/etc/gantt/gantt.conf:/etc/gantt/broker/api.conf']
workers = 2
worker_class = 'gthread'
threads = 16
# Each worker has its own host table and connections: nothing is shared over a fork.
preload_app = False
# As long as the longest budget that a caller may have, and a little.
timeout = 620
graceful_timeout = 30

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# httpx2 2.16.2 is the maintained successor of httpx 0.28.1, with the same names; a program is moved
# by changing its imports.  What a certificate is held against changes with it, although nothing
# in the program says so: httpx loads the bundle of certifi, httpx2 on Linux the paths that OpenSSL
# was built with.  Authorities that an operator has installed on the machine are trusted from then
# on, and in a container without ca-certificates, where httpx worked, nothing is.
#
# Shown with a file of one authority in the place of that of the system.  Ends with 0 where it
# is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install \
    'httpx==0.28.1' 'httpx2==2.16.2' 'httpcore2==2.16.2' 'truststore==0.10.5' 'certifi==2026.10.18'
cd "$folder"
env -u SSL_CERT_FILE -u SSL_CERT_DIR "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import ssl

import certifi
import httpx
import httpx2

first = open(certifi.where()).read().partition('-----END CERTIFICATE-----')
with open('one.pem', 'w') as file:
    file.write(''.join(first[:2]) + '\n')
paths = ssl.get_default_verify_paths()
mine = paths._replace(openssl_cafile='one.pem', openssl_capath='/nonexistent')
ssl.get_default_verify_paths = lambda: mine
bundle = ssl.create_default_context(cafile=certifi.where()).get_ca_certs()
before = httpx.create_ssl_context().get_ca_certs()
after = httpx2.create_ssl_context().get_ca_certs()
print(f'httpx 0.28.1 trusts {len(before)} authorities, those of certifi: {before == bundle}')
print(f'httpx2 2.16.2 trusts {len(after)}, that of the system')
assert before == bundle, 'httpx takes no longer the bundle of certifi'
assert len(after) == 1, 'httpx2 takes no longer what the system has'
PYTHON

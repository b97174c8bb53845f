#!/bin/sh
# Gradescope runs this once, as root, when it builds the autograder's image.
set -eu

root=${AUTOGRADER_ROOT:-/autograder}
# Outside $root/source, which is closed to the user that a submission runs as.
home=${LAB_HOME:-/opt/transformer-lab}

apt-get update
apt-get install -y --no-install-recommends python3 python3-venv

python=
for name in python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null &&
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    echo "setup: Python 3.11 or newer is needed: choose a base image with it, such as Ubuntu 24.04" >&2
    exit 1
fi

"$python" -m venv "$home"
"$home/bin/python" -m pip install --no-cache-dir \
    -r "$root/source/requirements.txt" -c "$root/source/constraints.txt"

#!/bin/sh
# Gradescope runs this once, as root, when it builds the autograder's image.
set -eu

root=${AUTOGRADER_ROOT:-/autograder}
# Outside $root/source, which is closed to the user that a submission runs as.
home=${LAB_HOME:-/opt/transformer-lab}

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends python3 python3-venv

newest() {
    for name in python3.14 python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$name"
            return
        fi
    done
}
python=$(newest)
# Some older images offer a newer one beside their own.
for version in 3.13 3.12 3.11; do
    [ -z "$python" ] || break
    apt-get install -y --no-install-recommends "python$version" "python$version-venv" || continue
    python=$(newest)
done
if [ -z "$python" ]; then
    echo "setup: Python 3.11 or newer is needed: choose a base image with it, such as Ubuntu 24.04" >&2
    exit 1
fi

"$python" -m venv "$home"
# The usual index holds torch with gigabytes of CUDA, which no grading uses.
"$home/bin/python" -m pip install --no-cache-dir --no-deps --retries 1 \
    --index-url https://download.pytorch.org/whl/cpu \
    -c "$root/source/constraints.txt" "$(grep '^torch' "$root/source/requirements.txt")" ||
    echo "setup: the builds without CUDA are out of reach; taking the large ones" >&2
"$home/bin/python" -m pip install --no-cache-dir \
    -r "$root/source/requirements.txt" -c "$root/source/constraints.txt"

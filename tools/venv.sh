#!/bin/sh
# Make .venv with everything the course needs, with nothing but a Python to start from.
# PYTHON=/path/to/python names one; otherwise the first that is new enough is taken.
set -eu

new_enough='import sys; assert sys.version_info >= (3, 11)'
if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.14 python3.13 python3.12 python3.11
fi
python=
for candidate in "$@"; do
    if "$candidate" -c "$new_enough" 2>/dev/null; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    found=$("$1" --version 2>&1) || found="no $1"
    echo "The course wants Python 3.11 or newer; this machine has $found." >&2
    echo "Install one, or name one that is elsewhere:  make book PYTHON=/path/to/python3.12" >&2
    exit 1
fi

# An older .venv is kept if it still runs and is new enough: then pip has little to do.
if ! .venv/bin/python -c "$new_enough; import pip" 2>/dev/null; then
    echo "Creating .venv with $("$python" --version) ..."
    "$python" -m venv --clear .venv || {
        rm -rf .venv
        echo "$python cannot create virtual environments." >&2
        echo "On Debian and Ubuntu:  apt-get install python3-venv" >&2
        exit 1
    }
fi

quiet= # the first time pip shows how far it is
if [ -e .venv/ready ]; then quiet=-qq; fi
echo "Installing the pinned requirements into .venv (minutes, and gigabytes, the first time) ..."
# shellcheck disable=SC2086 # nothing, or one word
.venv/bin/python -m pip install $quiet --root-user-action=ignore --disable-pip-version-check \
    -r requirements.txt
.venv/bin/python -m pip install -qq --root-user-action=ignore --disable-pip-version-check \
    --no-deps --no-build-isolation --editable .

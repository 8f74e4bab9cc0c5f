#!/bin/sh
# Grade a class in a container: `tools/grade.sh SUBMISSIONS GRADES [OPTION ...]`. Options are those
# of `python -m course.ask`; GRADES is a folder for the results.
#
# Submissions are mounted read-only, there is no network, and memory and processes are limited. Only
# the command itself is root, of the container, without what it does not need: it reads submissions,
# writes results, and ends processes of other users.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: tools/grade.sh SUBMISSIONS GRADES [OPTION ...]" >&2
    exit 2
fi
engine=$(command -v docker || command -v podman) || {
    echo "tools/grade.sh needs docker or podman" >&2
    exit 1
}
course=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
mkdir -p "$2"
submissions=$(CDPATH='' cd -- "$1" && pwd)
grades=$(CDPATH='' cd -- "$2" && pwd)
shift 2

"$engine" build --tag course-grade --build-arg PIP_EXTRA_INDEX_URL \
    --file "$course/tools/Dockerfile" "$course"
exec "$engine" run --rm --init --name "course-grade-$$" \
    --network none --memory 16g --pids-limit 4096 --shm-size 2g \
    --read-only --tmpfs /tmp:exec,size=4g \
    --cap-drop ALL --security-opt no-new-privileges \
    --cap-add SETUID --cap-add SETGID --cap-add KILL \
    --cap-add CHOWN --cap-add FOWNER --cap-add DAC_OVERRIDE \
    --volume "$submissions:/submissions:ro" --volume "$grades:/grades" \
    course-grade "$@"

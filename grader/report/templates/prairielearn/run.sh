#!/bin/sh
# PrairieLearn runs this as root, in a container of its own, for every submission.
set -eu

root=${GRADE_ROOT:-/grade}
home=$root/serverFilesCourse/transformer-lab

# A submission, which runs as another user, can neither read the grader nor write a result.
mkdir -p "$root/results"
chmod 700 "$root/serverFilesCourse" "$root/results"
cd "$home"
export OMP_NUM_THREADS=1
exec "${PYTHON:-python3}" -m grader.report.platforms.jobs prairielearn "$root"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The communicators' checks over processes. Argument: the program of comm_mpi.c.
set -u
. "$(dirname "$0")/mpirun.inc"
rounds=200
[ -n "${PLAIT_SANITIZED:-}" ] && rounds=40
mpirun -n 8 "$1" $rounds || echo "not ok mpi_checks - mpirun ended with $?"

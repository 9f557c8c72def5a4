#!/usr/bin/env bash
# Runs one task of a Slurm job as one rank of a training: sets the variables of the framework's own
# launchers from those of Slurm, and becomes the training. Tasks have to be distributed in blocks,
# as they are by default: the first ones on the first node, and so on.
#
# usage: rank.sh paddle_impl/train.py|tf_impl/train.py ARGUMENT...
#
# PARITY_NODES lists the names of the job's nodes, in Slurm's order.
set -euo pipefail

# Of several jobs on one node, each has ports of its own. Ports from 32768 on are left out: the
# system gives these to connections. Rank 0 meets the others 100 above its port.
first_port=$((10000 + SLURM_JOB_ID % 100 * 200))
tasks_per_node=${SLURM_NTASKS_PER_NODE:-1}

endpoints=()
for node in $PARITY_NODES; do
    for ((task = 0; task < tasks_per_node; task++)); do
        endpoints+=("$node:$((first_port + task))")
    done
done
if ((${#endpoints[@]} != SLURM_NTASKS)); then
    echo "error: the job has $SLURM_NTASKS tasks; allowed: ${#endpoints[@]}, which are" \
        "$tasks_per_node on each of its nodes (sbatch --ntasks-per-node)" >&2
    exit 2
fi

case $1 in
    paddle_impl/*)
        listed=$(IFS=, && echo "${endpoints[*]}")
        export PADDLE_TRAINER_ENDPOINTS=$listed
        export PADDLE_CURRENT_ENDPOINT=${endpoints[SLURM_PROCID]}
        export PADDLE_TRAINERS_NUM=$SLURM_NTASKS
        export PADDLE_TRAINER_ID=$SLURM_PROCID
        ;;
    tf_impl/*)
        listed=$(printf ', "%s"' "${endpoints[@]}")
        task="{\"type\": \"worker\", \"index\": $SLURM_PROCID}"
        export TF_CONFIG="{\"cluster\": {\"worker\": [${listed:2}]}, \"task\": $task}"
        ;;
    *)
        echo "error: the script is $1; allowed: paddle_impl/train.py, tf_impl/train.py" >&2
        exit 2
        ;;
esac

exec "${PYTHON:-.venv/bin/python}" "$@"

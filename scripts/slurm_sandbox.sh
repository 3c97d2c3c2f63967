#!/usr/bin/env bash
# A real Slurm on this one machine, for tests: two nodes, pretended GPUs, and a partition that preempts the other.
#
#     apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge
#     export SLURM_CONF=$(scripts/slurm_sandbox.sh start)
#     scripts/slurm_sandbox.sh stop
#
# Run it as root. Everything is in one folder (SLURM_SANDBOX_DIR) and on three ports of the loopback interface (from
# SLURM_SANDBOX_PORT on); nothing under /etc or /run is touched. Jobs go to the partition "main"; one in "urgent" preempts
# them: they are warned with USR2, have ten seconds, and are requeued.
set -euo pipefail

folder=${SLURM_SANDBOX_DIR:-/tmp/disarm_slurm_sandbox}
port=${SLURM_SANDBOX_PORT:-26817}
nodes=(sandbox1 sandbox2)
export SLURM_CONF=$folder/slurm.conf

write_configuration() {
    cat >"$SLURM_CONF" <<CONF
ClusterName=sandbox
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired, by default two minutes.
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/pids/slurmctld
SlurmdPidFile=$folder/pids/slurmd-%n
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
# No cgroups: containers often have none.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
KillWait=5
# More CPUs than the machine may have.
SlurmdParameters=config_overrides
GresTypes=gpu
CONF
    local number=1
    for node in "${nodes[@]}"; do
        echo "NodeName=$node NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + number))" \
            "CPUs=4 RealMemory=4000 Gres=gpu:2" >>"$SLURM_CONF"
        mknod "$folder/nvidia$((2 * number - 2))" c 1 3
        mknod "$folder/nvidia$((2 * number - 1))" c 1 3
        echo "NodeName=$node Name=gpu File=$folder/nvidia[$((2 * number - 2))-$((2 * number - 1))]" >>"$folder/gres.conf"
        number=$((number + 1))
    done
    echo "PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=10" >>"$SLURM_CONF"
    echo "PartitionName=urgent Nodes=ALL PriorityTier=2" >>"$SLURM_CONF"
}

start() {
    for program in munged slurmctld slurmd; do
        if [ ! -x "/usr/sbin/$program" ]; then
            echo "slurm_sandbox: no $program here; see the first lines of this script" >&2
            exit 1
        fi
    done
    if [ -s "$folder/pids/slurmctld" ] && timeout 5 sinfo --noheader >/dev/null 2>&1; then
        echo "slurm_sandbox: it is running already" >&2
        echo "$SLURM_CONF"
        return
    fi
    stop
    rm -rf "$folder"
    mkdir -p "$folder"/{state,pids,munge}
    chmod 755 "$folder"
    chmod 700 "$folder/munge"
    write_configuration
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
    /usr/sbin/munged --force --key-file="$folder/munge/key" --seed-file="$folder/munge/seed" \
        --socket="$folder/munge.socket" --pid-file="$folder/pids/munged" --log-file="$folder/munge/log" >&2
    /usr/sbin/slurmctld -c >&2
    for node in "${nodes[@]}"; do
        /usr/sbin/slurmd -c -N "$node" >&2
    done
    for _ in $(seq 150); do
        if [ "$(sinfo --noheader --partition main --states idle --format %D 2>/dev/null)" = "${#nodes[@]}" ]; then
            echo "$SLURM_CONF"
            return
        fi
        sleep 0.2
    done
    echo "slurm_sandbox: the nodes did not come up within 30 s; see the logs in $folder" >&2
    stop
    exit 1
}

# Ends the jobs, then the daemons, each by the process number that it has left.
stop() {
    [ -d "$folder/pids" ] || return 0
    if [ -s "$folder/pids/slurmctld" ] && timeout 5 scancel --quiet --user "$(id -un)" 2>/dev/null; then
        for _ in $(seq 50); do
            [ -n "$(timeout 5 squeue --noheader 2>/dev/null)" ] || break
            sleep 0.2
        done
    fi
    for file in "$folder"/pids/slurmd-* "$folder/pids/slurmctld" "$folder/pids/munged"; do
        [ -s "$file" ] || continue
        pid=$(cat "$file")
        # A file from before a reboot may name somebody else's process.
        case $(cat "/proc/$pid/comm" 2>/dev/null) in munged | slurmctld* | slurmd*) kill "$pid" || true ;; esac
        for _ in $(seq 50); do
            [ -d "/proc/$pid" ] || break
            sleep 0.1
        done
        rm -f "$file"
    done
}

case ${1:-} in
start) start ;;
stop) stop ;;
*)
    echo "usage: $0 start|stop" >&2
    exit 2
    ;;
esac

#!/bin/sh
# Runs a command as ranks on several "hosts" of this machine: network namespaces with an address each,
# joined by a bridge. Needs root and `ip`. Everything it makes is named after its process and removed
# at its end, however it ends; ranks that live then are ended too.
#
# usage: run.sh [-h HOSTS] [-n RANKS_PER_HOST] [-t SECONDS] [-o] COMMAND [ARGUMENT...]
#        run.sh -s SUITE [-h HOSTS] [-t SECONDS] [-- ARGUMENT...]
#
#   -h   hosts (default 4)
#   -n   ranks per host: one number for all, or one per host, with commas: 2,1,3 (default 2)
#   -t   the ranks are ended after so long (default 300; of a suite: 1500 for each of its jobs)
#   -o   COMMAND runs once, on no host; HOSTS_SPACES names the network namespaces, with commas, and
#        HOSTS_MASTER is the first one's address. tests/python/ranks.py puts the ranks that it forks
#        into them in turn
#   -s   a suite, with one rank on each host, then with two: TCP between hosts, shared memory within.
#        conformance; failures, which has as many ranks on half as many hosts then; or racks, whether
#        hosts of one place are neighbours. ARGUMENTs are its runner's. Ends with one line of sums. The
#        Python is PYTHON's, else .venv's
#
# Each rank runs COMMAND with torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
# GROUP_RANK, MASTER_ADDR, MASTER_PORT. MASTER_ADDR is the first host's address, so a store in rank 0
# is reached by all; files are shared anyway, and HOSTS_FOLDER is a folder for this run alone. Each
# host has a FERROCOMM_HOST_ID of its own. @RANK, @SIZE, @FOLDER and @MASTER (address:port) are
# replaced in arguments that are nothing else; @MASTER behind tcp:// too. Output lines of a rank begin
# with its number.
#
# Ends with 0 when all ranks do, else with the first other status by rank. Hosts have no way out of
# their bridge. How many bytes went between hosts and over loopbacks is printed.
#
#     tests/hosts/run.sh -h 2 -n 2,1 python -m pytest ...        three ranks on two hosts
#     tests/hosts/run.sh -s conformance                          the conformance suite on four hosts
set -u
hosts=4
counts=2
limit=
once=
suite=
usage() {
    sed -n '/^# usage:/,/^#$/s/^# //p' "$0" >&2
    exit 2
}
while getopts h:n:t:os: option; do
    case $option in
    h) hosts=$OPTARG ;;
    n) counts=$OPTARG ;;
    t) limit=$OPTARG ;;
    o) once=yes ;;
    s) suite=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || [ -n "$suite" ] || usage
[ "$(id -u)" = 0 ] || {
    echo "run.sh: network namespaces need root" >&2
    exit 2
}

# Runs a suite, each job as a run of this script, and adds up what they came to.
run_suite() {
    tests=$(cd "$(dirname "$0")/.." && pwd)
    python=${PYTHON:-$tests/../.venv/bin/python}
    results=$(mktemp -d)
    trap 'rm -rf "$results"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    outcome=0
    for count in 1 2; do
        echo "hosts: $suite, $count rank(s) on each host"
        {
            case $suite in
            conformance)
                "$0" -h "$hosts" -n "$count" -t "${limit:-1500}" "$python" \
                    "$tests/conformance/run.py" --rank @RANK --size @SIZE --store tcp://@MASTER "$@"
                ;;
            failures)
                "$0" -h "$((hosts / count))" -o -t "${limit:-1500}" "$python" \
                    "$tests/failures/run.py" --transport auto --ranks "$hosts" "$@"
                ;;
            racks)
                "$0" -h "$hosts" -n "$count" -t "${limit:-300}" "$python" "$tests/hosts/racks.py" "$@"
                ;;
            *)
                echo "run.sh: no such suite: $suite; there are conformance, failures, racks" >&2
                false
                ;;
            esac
            echo $? >"$results/$count.status"
        } | tee "$results/$count.output"
        [ "$(cat "$results/$count.status")" = 0 ] || outcome=1
    done
    # A verdict on a case is that of all ranks, so one rank's is everybody's.
    awk -v suite="$suite" -v outcome="$outcome" -v hosts="$hosts" '
        match($0, /^(0: )?(conformance|failures|racks): [0-9]+ passed, [0-9]+ failed/) {
            sub(/^0: /, "")
            passed += $2
            failed += $4
            jobs++
        }
        # Within a host nothing takes the way through the network. Some failures are asked for over TCP.
        suite == "conformance" && /[0-9] within hosts/ && !/ 0 within hosts/ {
            print "hosts: bytes went over a loopback"
            failed++
        }
        END {
            if (jobs < 2) {
                failed += 2 - jobs
                outcome = 1
            }
            printf "hosts: %s on %d hosts: %d passed, %d failed\n", suite, hosts, passed, failed
            exit (outcome || failed || !passed)
        }' "$results/1.output" "$results/2.output"
}
if [ -n "$suite" ]; then
    run_suite "$@"
    exit
fi
limit=${limit:-300}

# Names of interfaces have 15 letters at most.
name=fh$$
folder=$(mktemp -d)
ranks=

# The number of ranks of a host.
count_of() {
    case $counts in
    *,*) echo "$counts" | cut -d, -f"$1" ;;
    *) echo "$counts" ;;
    esac
}

clean() {
    trap - EXIT INT TERM HUP
    # Its ranks are its own to end; `timeout` passes the signal on.
    if [ -n "$once" ] && [ -n "$ranks" ]; then
        kill -TERM "$ranks" 2>/dev/null
        wait "$ranks"
        ranks=
    fi
    for pid in $ranks; do
        kill -KILL "$pid" 2>/dev/null
    done
    host=1
    while [ "$host" -le "$hosts" ]; do
        # Whoever is still in the namespace, for instance what a rank has started.
        for pid in $(ip netns pids "$name-$host" 2>/dev/null); do
            kill -KILL "$pid" 2>/dev/null
        done
        ip link del "$name-$host" 2>/dev/null
        ip netns del "$name-$host" 2>/dev/null
        host=$((host + 1))
    done
    ip link del "$name" 2>/dev/null
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

must() {
    "$@" || {
        echo "run.sh: failed: $*" >&2
        exit 1
    }
}

# A network that is not in use here.
net=
for second in 201 202 203 204 205 206 207 208; do
    if ! ip -4 addr show | grep -q "inet 10\.$second\."; then
        net=10.$second.0
        break
    fi
done
[ -n "$net" ] || {
    echo "run.sh: no free network among 10.201.0.0 to 10.208.0.0" >&2
    exit 1
}

# The bridge has no address: this machine itself is not on the network.
must ip link add "$name" type bridge
must ip link set "$name" up
size=0
host=1
while [ "$host" -le "$hosts" ]; do
    space=$name-$host
    must ip netns add "$space"
    must ip link add "$name-$host" type veth peer name eth0 netns "$space"
    must ip link set "$name-$host" master "$name" up
    must ip -n "$space" addr add "$net.$host/24" dev eth0
    must ip -n "$space" link set eth0 up
    must ip -n "$space" link set lo up
    size=$((size + $(count_of "$host")))
    host=$((host + 1))
done

# What an interface has sent so far, added up over hosts from a first one on: `sent eth0 1`.
sent() {
    sum=0
    host=$2
    while [ "$host" -le "$hosts" ]; do
        bytes=$(ip netns exec "$name-$host" cat "/sys/class/net/$1/statistics/tx_bytes")
        sum=$((sum + bytes))
        host=$((host + 1))
    done
    echo "$sum"
}

# The first host's loopback carries its ranks' talk with the store.
report_sent() {
    echo "run.sh: sent $(sent eth0 1) bytes between hosts, $(sent lo 2) within hosts beyond the first"
}

# The ranks are somebody else's: it is told where they belong.
if [ -n "$once" ]; then
    spaces=$name-1
    host=2
    while [ "$host" -le "$hosts" ]; do
        spaces=$spaces,$name-$host
        host=$((host + 1))
    done
    HOSTS_SPACES=$spaces HOSTS_MASTER=$net.1 HOSTS_FOLDER=$folder timeout -k 20 "$limit" "$@" &
    ranks=$!
    wait "$ranks"
    outcome=$?
    ranks=
    report_sent
    exit "$outcome"
fi

rank=0
host=1
while [ "$host" -le "$hosts" ]; do
    local_size=$(count_of "$host")
    local_rank=0
    while [ "$local_rank" -lt "$local_size" ]; do
        (
            export RANK=$rank WORLD_SIZE="$size" LOCAL_RANK=$local_rank \
                LOCAL_WORLD_SIZE="$local_size" GROUP_RANK=$((host - 1)) MASTER_ADDR="$net.1" \
                MASTER_PORT="${MASTER_PORT:-29500}" HOSTS_FOLDER="$folder" \
                FERROCOMM_HOST_ID="$name-$host" GLOO_SOCKET_IFNAME=eth0
            replaced=$#
            for argument in "$@"; do
                case $argument in
                @RANK) argument=$rank ;;
                @SIZE) argument=$size ;;
                @FOLDER) argument=$folder ;;
                @MASTER) argument=$MASTER_ADDR:$MASTER_PORT ;;
                tcp://@MASTER) argument=tcp://$MASTER_ADDR:$MASTER_PORT ;;
                esac
                set -- "$@" "$argument"
            done
            shift "$replaced"
            {
                timeout -k 5 "$limit" ip netns exec "$name-$host" "$@" 2>&1
                echo $? >"$folder/.status-$rank"
            } | sed -u "s/^/$rank: /"
        ) &
        ranks="$ranks $!"
        rank=$((rank + 1))
        local_rank=$((local_rank + 1))
    done
    host=$((host + 1))
done

for pid in $ranks; do
    wait "$pid"
done
ranks=
rank=0
outcome=0
while [ "$rank" -lt "$size" ]; do
    status=$(cat "$folder/.status-$rank" 2>/dev/null || echo 1)
    if [ "$status" -ne 0 ]; then
        echo "run.sh: rank $rank ended with status $status" >&2
        [ "$outcome" -ne 0 ] || outcome=$status
    fi
    rank=$((rank + 1))
done
report_sent
exit "$outcome"

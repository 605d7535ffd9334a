#!/bin/busybox sh
# shaped_guest.sh - /init of the guest of bench_path_shaped.py: a veth pair to the network namespace "far", netem in both directions, and in turns iperf3
# and bench_path over it. Says "guest: WAY CASE CONNECTIONS RESULT" for each turn; RESULT is iperf3's JSON or bench_path's line.
# From the kernel's command line, as variables: cases (DELAY_MS/RATE_MBIT/CONGESTION/WAY), connections (lists with commas), turns, seconds, blocks, mtu.
. /begin
# the shell would prefer busybox's own, which know neither network namespaces nor netem
ip() { /bin/ip "$@"; }
tc() { /bin/tc "$@"; }
far() { ip netns exec far "$@"; }
list() { echo "$1" | tr , ' '; }

mkdir -p /run/netns
ip netns add far && ip link add wire0 type veth peer name wire1 netns far || fail "no veth"
# netem loses what it gets: one packet, and not a batch of them
ip link set wire0 gso_max_segs 1 && far /bin/ip link set wire1 gso_max_segs 1 || fail "no gso_max_segs"
ip addr add 10.8.0.1/24 dev wire0 && far /bin/ip addr add 10.8.0.2/24 dev wire1 || fail "no address"
ip link set wire0 mtu "$mtu" up && far /bin/ip link set wire1 mtu "$mtu" up && far /bin/ip link set lo up || fail "no link"

shape() {   # DELAY_MS RATE_MBIT
	tc qdisc del dev wire0 root 2>/dev/null
	far /bin/tc qdisc del dev wire1 root 2>/dev/null
	[ "$1" = 0 ] && return
	# in packets: what is under way, and a queue of 100 ms
	set -- root netem delay "$1ms" loss 0.1% rate "$2mbit" limit $((($1 + 100) * $2 * 125 / mtu + 20))
	tc qdisc add dev wire0 "$@" && far /bin/tc qdisc add dev wire1 "$@" || fail "no netem"
}

run_iperf3() {   # CONNECTIONS
	far iperf3 -s -1 >/dev/null 2>&1 &
	until far netstat -ltn | grep -q :5201; do sleep 0.1; done
	iperf3 -c 10.8.0.2 -t "$seconds" -P "$1" -i 0 -J | tr -d '\n\t'
	echo
	wait
}

run_path() {   # CONNECTIONS [OPTION...]
	local c=$1
	shift
	bench_path -n /run/netns/far -a 10.8.0.2 -b "$blocks" -c "$c" -s "$seconds" "$@" 2>/tmp/err || { cat /tmp/err; fail "bench_path $* with $c connections"; }
	cat /tmp/err >&2
}

for case in $(list "$cases"); do
	set -- $(echo "$case" | tr / ' ')
	way=$4
	shape "$1" "$2"
	ping -c 5 -q 10.8.0.2 | sed -n "s|.*min/avg/max = \([^ ]*\).*|guest: ping $case - \1|p"
	echo "$3" >/proc/sys/net/ipv4/tcp_congestion_control || fail "no $3"
	option=
	[ "$way" = encrypted ] && option=-e
	for c in $(list "$connections"); do
		for turn in $(seq "$turns"); do
			echo "guest: iperf3 $case $c $(run_iperf3 "$c")"
			echo "guest: $way $case $c $(run_path "$c" $option)"
		done
		echo "guest: verified $case $c $(run_path "$c" $option -v)"
	done
done
echo "guest: PASS"
off

#!/bin/busybox sh
# guest.sh - /init of the guest: makes rxe0 on a dummy interface, runs the transport's tests on it, then those of the daemons, which make NICs of their own, and
# switches itself off. Lines that begin with "guest: " are the result.
. /begin
ip link add dummy0 type dummy && ip addr add 10.7.0.1/24 dev dummy0 && ip link set dummy0 mtu 4200 up || fail "no dummy0"
rdma link add rxe0 type rxe netdev dummy0 || fail "no rxe0"
sleep 1
for mode in windows none; do
	echo "guest: --- memory windows: $mode"
	RDMA_LOG=info end_to_end rxe0 $mode 2>/tmp/err >/tmp/out || bad=1
	sed 's/^/guest: /' /tmp/out
	cat /tmp/err
	[ -z "$bad" ] || fail "end_to_end rxe0 $mode"
done
bw() { ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 1000 "$@"; }
bw >/tmp/server 2>&1 &
sleep 2
bw 10.7.0.1 >/tmp/client 2>&1 || { cat /tmp/client; fail "ib_write_bw"; }
sed -n 's/^ *65536 .*/guest: ib_write_bw (1000 x 65536 bytes, MB\/s peak, average):&/p' /tmp/client

echo "guest: --- daemons on three hosts"
ulimit -n 65536 # for the router's connections
cd /pdserve/tests/rdma
export PYTHONPATH=/pdserve/tests/hosts:/pdserve/tests/e2e PYTHONDONTWRITEBYTECODE=1
python3 -m pytest -x -q -rA --tb=short -p no:cacheprovider . >/tmp/out 2>&1 || bad=1
grep -E '^(PASSED|FAILED|ERROR|FIGURE|[0-9]+ (passed|failed))' /tmp/out | sed 's/^/guest: /'
[ -z "$bad" ] || { cat /tmp/out; tail -n 40 /tmp/logs/*/*.log; fail "hand-over between hosts"; }
echo "guest: PASS"
off

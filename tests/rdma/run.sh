#!/bin/bash
# run.sh - RDMA with the real libibverbs: boots a guest (tests/guest) with Debian's kernel, whose rdma_rxe is a NIC in software, and runs in it PROGRAM
# (build/rdma/end_to_end) with and without memory windows, ib_write_bw, and the daemons of build/bin as three hosts (test_rdma_handover.py).
#   tests/rdma/run.sh PROGRAM
# Exit status 0 if the guest says PASS. The log: build/guest/check-rdma.log.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/guest/guest.sh
LIMIT_S=600

guest_begin check-rdma
libdir=$(dirname "$(readlink -f "$(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p' | head -n 1)")")
guest_files "$libdir/libibverbs.so.1" "$libdir"/libibverbs/librxe-rdmav*.so
for program in rdma ip ib_write_bw "$1"; do
	guest_program "$program"
done
mkdir -p "$guest_root/etc/libibverbs.d"
echo "driver rxe" >"$guest_root/etc/libibverbs.d/rxe.driver"
guest_python pytest _pytest pluggy iniconfig packaging py attr
for f in build/bin/{pdctl,pdrouterd,pdprefilld,pddecoded,pdmessagerd} tests/data/golden/llama/* \
	tests/{e2e/suite.py,hosts/hosts.py,hosts/test_handover.py,rdma/test_rdma_handover.py}; do
	guest_own_file "$f" pdserve
done
guest_modules crypto/crc32_generic "drivers/net/dummy numdummies=0" net/ipv4/udp_tunnel net/ipv6/ip6_udp_tunnel drivers/net/veth net/llc/llc \
	net/802/stp net/bridge/bridge drivers/infiniband/core/ib_core drivers/infiniband/core/ib_uverbs drivers/infiniband/sw/rxe/rdma_rxe
guest_boot tests/rdma/guest.sh "$LIMIT_S" 1536
echo "check-rdma: PASS"

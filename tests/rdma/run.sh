#!/bin/bash
# run.sh - paths over RDMA with the real libibverbs: boots a guest (tests/guest) with Debian's kernel, whose rdma_rxe is a NIC in software, and runs
# PROGRAM (build/rdma/end_to_end) in it with and without memory windows, then ib_write_bw.
#   tests/rdma/run.sh PROGRAM
# Exit status 0 if the guest says PASS. The log: build/guest/check-rdma.log.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/guest/guest.sh
LIMIT_S=300

guest_begin check-rdma
libdir=$(dirname "$(readlink -f "$(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p' | head -n 1)")")
guest_files "$libdir/libibverbs.so.1" "$libdir"/libibverbs/librxe-rdmav*.so
for program in rdma ib_write_bw "$1"; do
	guest_program "$program"
done
mkdir -p "$guest_root/etc/libibverbs.d"
echo "driver rxe" >"$guest_root/etc/libibverbs.d/rxe.driver"
guest_modules crypto/crc32_generic "drivers/net/dummy numdummies=0" net/ipv4/udp_tunnel net/ipv6/ip6_udp_tunnel drivers/infiniband/core/ib_core \
	drivers/infiniband/core/ib_uverbs drivers/infiniband/sw/rxe/rdma_rxe
guest_boot tests/rdma/guest.sh "$LIMIT_S" 768
echo "check-rdma: PASS"

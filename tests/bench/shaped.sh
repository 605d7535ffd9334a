#!/bin/bash
# shaped.sh - boots the guest of bench_path_shaped.py, which alone calls it: shaped.sh PROGRAM LIMIT_S NAME=VALUE...
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/guest/guest.sh
program=$1 limit_s=$2
shift 2
# the emulator needs 0.3 us a byte for AES-GCM's carry-less multiplication: without it messagers choose XChaCha20-Poly1305
guest_cpu=max,pclmulqdq=off
guest_begin bench-path-shaped
guest_program ip
guest_program tc
guest_program iperf3
guest_program "$program"
guest_modules drivers/net/veth net/sched/sch_netem net/ipv4/tcp_bbr
guest_boot tests/bench/shaped_guest.sh "$limit_s" 768 "$@"

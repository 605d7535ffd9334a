#!/bin/bash
# run.sh - paths over RDMA with the real libibverbs: boots a guest with Debian's kernel, whose rdma_rxe is a NIC in software, and runs PROGRAM
# (build/rdma/end_to_end) in it with and without memory windows, then ib_write_bw.
#   tests/rdma/run.sh PROGRAM
# The kernel's package is downloaded once, to build/rdma; it is not installed. Everything else is copied from this system (tools/setup --rdma).
# Exit status 0 if the guest says PASS. The log: build/rdma/guest.log.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
program=$1 cache=$PWD/build/rdma
LIMIT_S=300

fail() { echo "check-rdma: $*" >&2; exit 1; }

# --- kernel: downloaded and unpacked once ---------------------------------------------------------
mkdir -p "$cache"
kernel=$(ls "$cache"/kernel/boot/vmlinuz-* 2>/dev/null | head -n 1)
if [ -z "$kernel" ]; then
	package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	[ -n "$package" ] || fail "apt-get knows no linux-image-amd64: run apt-get update"
	echo "check-rdma: downloading $package"
	(cd "$cache" && apt-get -q download "$package" >download.log 2>&1) || fail "cannot download $package: see $cache/download.log"
	dpkg-deb -x "$cache/$package"_*.deb "$cache/kernel" && rm -f "$cache/$package"_*.deb || fail "cannot unpack $package"
	kernel=$(ls "$cache"/kernel/boot/vmlinuz-* | head -n 1)
fi
modules=$cache/kernel/lib/modules/$(ls "$cache/kernel/lib/modules" | head -n 1)/kernel

# --- initramfs ----------------------------------------------------------------------------------------
root=$(mktemp -d /tmp/pdr-XXXXXX) || exit 1
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,dev,proc,sys,tmp,modules,etc,usr/lib,usr/lib64}
ln -s usr/lib "$root/lib" && ln -s usr/lib64 "$root/lib64"
cp "$(command -v busybox)" "$root/bin/busybox" || fail "busybox-static is missing"
file_of() { command -v "$1" || fail "$1 is missing: run tools/setup --rdma"; }
with_libraries() {   # FILE...: copies files, and the libraries that they need
	local f
	for f in "$@"; do
		mkdir -p "$root/$(dirname "$f")"
		cp -L "$f" "$root/$f"
		ldd "$f" 2>/dev/null | grep -oE '/[^ ]+' | while read -r lib; do
			[ -e "$root/$lib" ] || { mkdir -p "$root/$(dirname "$lib")" && cp -L "$lib" "$root/$lib"; }
		done
	done
}
libdir=$(dirname "$(readlink -f "$(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p' | head -n 1)")")
with_libraries "$(file_of rdma)" "$(file_of ip)" "$(file_of ib_write_bw)" "$libdir/libibverbs.so.1" "$libdir"/libibverbs/librxe-rdmav*.so
mkdir -p "$root/etc/libibverbs.d"
echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
cp "$program" "$root/bin/end_to_end" && ldd "$program" | grep -oE '/[^ ]+' | while read -r lib; do
	[ -e "$root/$lib" ] || { mkdir -p "$root/$(dirname "$lib")" && cp -L "$lib" "$root/$lib"; }
done
for m in crypto/crc32_generic drivers/net/dummy net/ipv4/udp_tunnel net/ipv6/ip6_udp_tunnel drivers/infiniband/core/ib_core \
	drivers/infiniband/core/ib_uverbs drivers/infiniband/sw/rxe/rdma_rxe; do
	cp "$modules/$m.ko" "$root/modules/" || fail "the kernel's package has no $m.ko"
done
cp tests/rdma/guest.sh "$root/init" && chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$cache/initramfs.gz" || fail "cannot make the initramfs"

# --- guest ------------------------------------------------------------------------------------------------
echo "check-rdma: booting $(basename "$kernel") in qemu"
timeout "$LIMIT_S" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 768 -nographic -no-reboot -nodefaults -serial stdio \
	-kernel "$kernel" -initrd "$cache/initramfs.gz" -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=unstable" </dev/null 2>&1 |
	tr -d '\r' | tee "$cache/guest.log" | sed -n 's/^guest: //p'
grep -q '^guest: PASS' "$cache/guest.log" || { tail -n 30 "$cache/guest.log"; echo "check-rdma: FAIL (log: $cache/guest.log)"; exit 1; }
echo "check-rdma: PASS"

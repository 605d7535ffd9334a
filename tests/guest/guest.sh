# guest.sh - boots a qemu guest (TCG, no KVM) with Debian's kernel and an initramfs of busybox and files of this system. For other scripts to source:
#   guest_begin NAME                 gets the kernel, starts an empty initramfs; NAME stands before messages and names build/guest/NAME.log
#   guest_files FILE...              copies files to the same place, with the libraries that they need
#   guest_program PROGRAM            copies it (a path, or a name in PATH) to /bin, with its libraries
#   guest_own_file FILE FOLDER       copies a file of this tree to /FOLDER/FILE, with the libraries that it needs
#   guest_python MODULE...           copies python3 with its library, and these modules of Debian's packages
#   guest_modules MODULE...          copies modules of the kernel to /modules, to be loaded in that order (so dependencies come first): paths below the
#                                    `kernel` folder without .ko, each with its options if it has any: "drivers/net/dummy numdummies=0"
#   guest_boot INIT LIMIT_S MIB [NAME=VALUE...]   boots with INIT as /init, which finds the values in its environment; prints its lines that begin with
#                                    "guest: " as they come. Exit status 0 if it says "guest: PASS". $guest_cpu: qemu's -cpu; default max
# INIT begins with `. /begin`, which mounts what every guest needs, loads the modules in the order of guest_modules, and defines `off` and `fail`.
# The kernel's package is downloaded once, to build/guest; it is not installed. Needs the packages of tools/setup --rdma.
guest_cache=$PWD/build/guest

guest_fail() { echo "$guest_name: $*" >&2; exit 1; }

guest_begin() {
	local package
	guest_name=$1
	mkdir -p "$guest_cache"
	guest_kernel=$(ls "$guest_cache"/kernel/boot/vmlinuz-* 2>/dev/null | head -n 1)
	if [ -z "$guest_kernel" ]; then
		package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
		[ -n "$package" ] || guest_fail "apt-get knows no linux-image-amd64: run apt-get update"
		echo "$guest_name: downloading $package"
		(cd "$guest_cache" && apt-get -q download "$package" >download.log 2>&1) || guest_fail "cannot download $package: see $guest_cache/download.log"
		dpkg-deb -x "$guest_cache/$package"_*.deb "$guest_cache/kernel" && rm -f "$guest_cache/$package"_*.deb || guest_fail "cannot unpack $package"
		guest_kernel=$(ls "$guest_cache"/kernel/boot/vmlinuz-* | head -n 1)
	fi
	guest_root=$(mktemp -d /tmp/pdguest-XXXXXX) || exit 1
	trap 'rm -rf "$guest_root"' EXIT
	mkdir -p "$guest_root"/{bin,dev,proc,sys,tmp,run,modules,etc,usr/lib,usr/lib64}
	ln -s usr/lib "$guest_root/lib" && ln -s usr/lib64 "$guest_root/lib64"
	cp "$(command -v busybox)" "$guest_root/bin/busybox" || guest_fail "busybox-static is missing: run tools/setup --rdma"
	cat >"$guest_root/begin" <<-'END'
		export PATH=/bin:/sbin:/usr/bin:/usr/sbin
		/bin/busybox --install -s /bin
		mount -t proc proc /proc
		mount -t sysfs sysfs /sys
		mount -t devtmpfs dev /dev 2>/dev/null
		ulimit -l unlimited
		echo   # the firmware leaves its line open
		off() { poweroff -f; sleep 10; }
		fail() { echo "guest: FAIL $*"; dmesg | tail -n 20; off; }
		while read -r m options; do
			insmod /modules/$m.ko $options || fail "insmod $m"
		done </modules/order
		ip link set lo up
	END
	: >"$guest_root/modules/order"
}

guest_libraries() {
	ldd "$1" 2>/dev/null | grep -oE '/[^ ]+' | while read -r lib; do
		[ -e "$guest_root/$lib" ] || { mkdir -p "$guest_root/$(dirname "$lib")" && cp -L "$lib" "$guest_root/$lib"; }
	done
}

guest_files() {
	local f
	for f in "$@"; do
		mkdir -p "$guest_root/$(dirname "$f")"
		cp -L "$f" "$guest_root/$f" || guest_fail "cannot copy $f"
		guest_libraries "$f"
	done
}

guest_program() {
	local f
	f=$(command -v "$1") || guest_fail "$1 is missing: run tools/setup --rdma"
	cp -L "$f" "$guest_root/bin/" || guest_fail "cannot copy $f"
	guest_libraries "$f"
}

guest_own_file() {
	mkdir -p "$guest_root/$2/$(dirname "$1")"
	cp -L "$1" "$guest_root/$2/$1" || guest_fail "cannot copy $1"
	guest_libraries "$1"
}

# With the compiled modules, which are valid for files of the same age only
guest_python() {
	local lib m
	lib=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') || guest_fail "python3 is missing: run tools/setup --rdma"
	guest_program /usr/bin/python3
	mkdir -p "$guest_root$lib" "$guest_root/usr/lib/python3/dist-packages"
	tar -C "$lib" --exclude 'config-*' --exclude dist-packages --exclude test --exclude lib2to3 --exclude pydoc_data --exclude distutils -cf - . |
		tar -C "$guest_root$lib" -xf -
	for m in "$lib"/lib-dynload/*.so; do
		guest_libraries "$m"
	done
	for m in "$@"; do
		cp -a "/usr/lib/python3/dist-packages/$m" "$guest_root/usr/lib/python3/dist-packages/" || guest_fail "python3 lacks $m: run tools/setup --rdma"
	done
}

guest_modules() {
	local m modules
	modules=$guest_cache/kernel/lib/modules/$(ls "$guest_cache/kernel/lib/modules" | head -n 1)/kernel
	for m in "$@"; do
		cp "$modules/${m%% *}.ko" "$guest_root/modules/" || guest_fail "the kernel's package has no ${m%% *}.ko"
		echo "${m##*/}" >>"$guest_root/modules/order"
	done
}

guest_boot() {
	local init=$1 limit_s=$2 mib=$3 log=$guest_cache/$guest_name.log initramfs=$guest_cache/$guest_name.gz
	shift 3
	cp "$init" "$guest_root/init" && chmod +x "$guest_root/init"
	(cd "$guest_root" && find . | cpio -o -H newc --quiet | gzip -1) >"$initramfs" || guest_fail "cannot make the initramfs"
	echo "$guest_name: booting $(basename "$guest_kernel") in qemu"
	timeout "$limit_s" qemu-system-x86_64 -accel tcg,thread=multi -cpu "${guest_cpu:-max}" -smp 2 -m "$mib" -nographic -no-reboot -nodefaults -serial stdio -kernel "$guest_kernel" \
		-initrd "$initramfs" -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=unstable $*" </dev/null 2>&1 |
		tr -d '\r' | tee "$log" | sed -un 's/^guest: //p'
	grep -q '^guest: PASS$' "$log" || { tail -n 30 "$log"; echo "$guest_name: FAIL (log: $log)"; exit 1; }
}

#!/bin/bash
# run.sh [PATTERN] - checks the lines of `table` whose name matches (all without a pattern), JOBS of them at a time.
# Prints for each: name, states stored, seconds, and what was found: "holds", or "breaks" with the meaning of the broken assertion; "!" marks a line
# that is not as the table expects. What must break is then looked for in the C tests: TEST(name) with the line's id in it. The last line is "N as expected, N not". Exit status 0 if nothing is marked.
#   JOBS       lines at a time: as many as there are cores, and MEM fits into free memory     TL=900  seconds of processor time that one line may take
#   MEM=7500   MiB that one line may take
# Needs spin and gcc. A search that was cut short (time, memory, depth) is "unfinished", which is never as expected.
set -u
here=$(cd "$(dirname "$0")" && pwd)
TL=${TL:-900} MEM=${MEM:-7500}
export TL MEM

# what the broken assertion means
meaning() {
	sed -e 's/.*dbusy==(.*/(a) write into a block of another owner/' -e 's/.*dbusy\[pd.*/(a) write into a block of another owner/' -e 's/.*dcont.*/(b) decodes incomplete or foreign KV/' \
		-e 's/.*(rst\[j\]==2).*/(e) not answered/' -e 's/.*(rdone\[j\]||rfail.*/(e) never ends/' -e 's/.*rdone.*/(e) not answered/' -e 's/.*bopen.*/(c) left open at B/' -e 's/.*rst\[j\]>=2.*/(e) never ends/' -e 's/.*seen.*/(d) token twice or skipped/' \
		-e 's/.*rst\[1\].*/(f) held up by a full D/' -e 's/.*dst\[.*/(a,c) lease left, or written when not leased/' \
		-e 's/.*got\[.*/KvReady for KV not computed, or not its own/' -e 's/.*ready\[mt.*/write after KvReady/' \
		-e 's/.*pdone.*/a transfer waits forever/' -e 's/.*own\[gb.*/late write into a reused block/' \
		-e 's/.*sc\[.*/foreign contents under a hash/' -e 's/.*cont\[.*/wrong contents restored/' | cut -c1-60
}

one() {   # WANT NAME MODEL DEFINES...
	local want=$1 name=$2 model=$3 kind=-DSAFETY opt= fast=-O1 states got=holds why= mark=' ' begun=$SECONDS
	shift 3
	work=$(mktemp -d) && cd "$work" || exit 1
	trap 'cd / && rm -rf "$work"' EXIT
	cp "$here/$model.pml" m.pml
	[ "$want" = nocycle ] && kind=-DNP opt=-l
	[ "$want" = breaks ] && fast=-O0   # found soon: the compiler would take longer than the search
	spin -a "$@" m.pml >spin.out 2>&1
	gcc $fast -w $kind -DCOLLAPSE -DMEMLIM="$MEM" -DVECTORSZ=4096 -o pan pan.c >gcc.out 2>&1
	(ulimit -t "$TL" && exec ./pan $opt -m400000) >pan.out 2>&1   # processor time: a machine that others use, too, takes longer
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.out)
	if grep -q 'errors: [1-9]' pan.out; then
		got=breaks
		why=$(sed -n 's/^pan:1: assertion violated//p' pan.out | head -n 1 | meaning)
	elif ! grep -q 'errors: 0' pan.out || grep -qE 'max search depth too small|reached -DMEMLIM|out of memory' pan.out; then
		got=unfinished
	fi
	case $want/$got in holds/holds | nocycle/holds | breaks/breaks) ;; *) mark='!' ;; esac
	printf '%s %-34s %11s %5d s  %s %s\n' "$mark" "$name" "${states:--}" $((SECONDS - begun)) "$got" "$why"
}

if [ "${1:-}" = --one ]; then
	shift
	one "$@"
	exit
fi

for tool in spin gcc; do
	command -v $tool >/dev/null || { echo "run.sh: $tool is missing: tools/setup --spin installs it" >&2; exit 1; }
done
if [ -z "${JOBS:-}" ]; then
	JOBS=$(nproc) fit=$(awk -v m="$MEM" '/^MemAvailable/ { print int($2 / 1024 / m) }' /proc/meminfo)
	[ "$fit" -ge "$JOBS" ] || JOBS=$((fit > 1 ? fit : 1))
fi
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$here/table" | awk -v pat="${1:-.}" '$2 ~ pat' |
	xargs -P "$JOBS" -L 1 "$here/run.sh" --one | tee "$out"
# a seeded bug without a test by its name: m5-ack-while-copying -> m5, s-slot-not-closed -> s_slot_not_closed
while read -r want name _; do
	[ "$want" = breaks ] && echo "$name" | grep -qE -e "${1:-.}" || continue
	case $name in s-*) id=${name//-/_} ;; *) id=${name%%-*} ;; esac
	grep -rqE "^TEST[A-Z_]*\\(([a-z0-9_]+_)?${id}[_,)]" "$here/../unit" "$here/../daemon" --include='*.c' || echo "! $name: no test in tests/unit or tests/daemon has its name"
done <"$here/table" | tee -a "$out"
bad=$(grep -c '^!' "$out") all=$(wc -l <"$out")
echo "$((all - bad)) as expected, $bad not"
[ "$bad" = 0 ] && [ "$all" -gt 0 ]

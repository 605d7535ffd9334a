# bash completion of pdctl: commands, options, and names of daemons and roles.
_pdctl_names() { # of the daemons in the run directory that the words name
	local dir=${PDSERVE_RUNDIR:-} i
	for ((i = 1; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} == -r || ${COMP_WORDS[i]} == --rundir ]] && dir=${COMP_WORDS[i + 1]}
	done
	for dir in ${dir:-"${XDG_RUNTIME_DIR:-/nowhere}/pdserve" "/tmp/pdserve-$UID" /run/pdserve}; do
		for i in "$dir"/*.lock; do
			i=${i##*/} i=${i%.lock}
			[[ $i == '*' || $i == launch || $i == *.sock ]] || echo "$i"
		done
	done
}

_pdctl() {
	local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words
	case $before in
	-d | --daemon | role | drain | undrain | stop) words=$(_pdctl_names) ;;
	-r | --rundir | -k | --keys | --template | --from | --svg | --chrome | render | tokenize | detokenize) mapfile -t COMPREPLY < <(compgen -f -- "$now") && return ;;
	help) words=$(pdctl help | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p') ;;
	log-level) words="debug info warn error" ;;
	flush) words="memory disk redis" ;;
	*) words=$(pdctl help | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p' && pdctl help | grep -oE -- '--[a-z][a-z-]*') ;;
	esac
	((COMP_CWORD > 1)) && [[ ${COMP_WORDS[COMP_CWORD - 2]} == role ]] && words="prefill decode mixed"
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$now")
}
complete -F _pdctl pdctl

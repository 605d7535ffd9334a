# bash completion of pdctl: commands, options, names of daemons, and what commands take.

# The daemons in the run directory; $1: only workers. `asked` has -r DIR if the words name one.
_pdctl_names() {
	local dir=${PDSERVE_RUNDIR:-} lock name pid program
	[[ ${asked[*]} =~ ^(.* )?(-r|--rundir)\ ([^ ]+) ]] && dir=${BASH_REMATCH[3]}
	for dir in ${dir:-"${XDG_RUNTIME_DIR:-/nowhere}/pdserve" "/tmp/pdserve-$UID" /run/pdserve}; do
		for lock in "$dir"/*.lock; do
			name=${lock##*/} name=${name%.lock} pid='' program=''
			[[ $name != '*' && $name != launch && $name != *.sock ]] || continue
			[[ -z ${1:-} ]] || read -r pid _ <"$lock"
			[[ -z $pid ]] || read -r program 2>/dev/null <"/proc/$pid/comm"
			[[ $program == pdrouterd || $program == pdmessagerd || $program == pdstoraged ]] || echo "$name"
		done
	done
}

_pdctl_commands() { pdctl help | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p'; }

_pdctl() {
	local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' words='' i n=0 daemon=
	local -a asked=()
	# before the word: the command, the number of its arguments, and whom it asks
	local valued
	valued=" $(pdctl help | grep -oE -- '(-[a-z], )?--[a-z-]+ [A-Z]' | sed 's/, / /; s/ [A-Z]$//' | tr '\n' ' ') "
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		-d | --daemon | -r | --rundir | -e | --endpoint)
			asked+=("${COMP_WORDS[i]}" "${COMP_WORDS[i + 1]}")
			[[ ${COMP_WORDS[i]} != -d && ${COMP_WORDS[i]} != --daemon ]] || daemon=1
			i=$((i + 1)) ;;
		-*) [[ $valued != *" ${COMP_WORDS[i]} "* ]] || i=$((i + 1)) ;;
		*) if [[ $command ]]; then n=$((n + 1)); else command=${COMP_WORDS[i]}; fi ;;
		esac
	done
	# -d NAME stands for the first argument of these
	[[ ! $daemon || ($command != role && $command != drain && $command != undrain) ]] || n=$((n + 1))
	case $before in
	-d | --daemon) words=$(_pdctl_names) ;;
	-r | --rundir | -k | --keys | --cacert | --template | --from | --svg | --chrome) mapfile -t COMPREPLY < <(compgen -f -- "$now") && return ;;
	*)
		[[ $valued != *" $before "* ]] || return
		case $now,$command,$n in
		-*,*) words=$(pdctl help ${command:+"$command"} 2>/dev/null | grep -oE -- '--[a-z][a-z-]*') ;;
		*,,*)
			words=$(_pdctl_commands)
			[[ ! $daemon ]] || words+=" "$(pdctl -t 500 "${asked[@]}" help 2>/dev/null | sed -n '2,$s/^\([a-z][a-z-]*\) .*/\1/p') ;;
		*,role,1) words="prefill decode mixed" ;;
		*,role,0 | *,drain,0 | *,undrain,0) words=$(_pdctl_names workers) ;;
		*,stop,0) words="all $(_pdctl_names)" ;;
		*,config,0) words=$(pdctl -t 500 "${asked[@]}" -w config 2>/dev/null | sed -n '2,$s/^\([a-z_]*\) .*/\1/p') ;;
		*,keygen,1) words="router worker messager storage operator" ;;
		*,log-level,0) words="debug info notice warn error" ;;
		*,flush,0) words="memory disk redis" ;;
		*,help,0) words=$(_pdctl_commands) ;;
		*,render,* | *,tokenize,0 | *,detokenize,0) mapfile -t COMPREPLY < <(compgen -f -- "$now") && return ;;
		esac ;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$now")
}
complete -F _pdctl pdctl

# SPDX-License-Identifier: Apache-2.0
# Functions of the scripts that build Larder; sourced.

# build_jobs [MEMINFO [PROCESSORS]]: prints how many compilers may run: one for each processor, as far as there is
# memory for it; at least one. A compiler takes about 1 GiB; without this, the kernel ends one on a small machine.
build_jobs() {
  local meminfo="${1:-/proc/meminfo}" processors="${2:-$(nproc)}" available jobs
  available="$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' "$meminfo" 2>/dev/null || true)"
  jobs=$((${available:-$((processors * 1258291))} / 1258291))  # 1.2 GiB, in KiB
  jobs=$((jobs < processors ? jobs : processors))
  echo $((jobs > 1 ? jobs : 1))
}

# check_options VALUED PLAIN ARGUMENT...: an option that is in neither list (words) is an error, said; so a
# slip is heard of before the build. What a value may be, the command says.
check_options() {
  local valued=" ${1//$'\n'/ } " plain=" ${2//$'\n'/ } " word
  shift 2
  while (($#)); do
    word="${1%%=*}"
    if [[ "$1" != -* || "$plain" == *" $1 "* ]]; then
      shift
    elif [[ "$valued" == *" $word "* ]]; then
      [[ "$1" == *=* || $# -ge 2 ]] || { echo "quickstart: $1 needs a value" >&2 && return 2; }
      [[ "$1" == *=* ]] || shift
      shift
    else
      echo "quickstart: there is no option $1; --help lists them" >&2
      return 2
    fi
  done
}

# asks_for_help ARGUMENT...
asks_for_help() {
  local word
  for word in "$@"; do
    [[ "$word" != --help && "$word" != -h ]] || return 0
  done
  return 1
}

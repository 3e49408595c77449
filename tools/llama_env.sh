#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds llama.cpp for the engine behind -DLARDER_LLAMA=ON and for its tests: tools/llama_env.sh [DIR]  (build/llama)
#
# The source is the one that the pinned source package llama-cpp-python of PyPI carries (77 MB, checked by its hash).
# DIR becomes: src/ (what building needs of it, LICENSE with it) and build/ (static libraries; bin/llama-server).
# Takes eight minutes of one processor: libllama, llama-common and llama-server a third each; with ccache seconds.
# A second run with the same inputs returns at once. Nothing of it is committed or installed.
#
#   LARDER_LLAMA_NATIVE=1       for this machine's processor only (otherwise x86-64 with AVX2 and FMA)
#   LARDER_LLAMA_CMAKE_ARGS=..  more options for cmake, say "-DGGML_CUDA=ON"
#   LARDER_LLAMA_TARGETS=..     what to build ("llama llama-common llama-server")
#   LARDER_LLAMA_JOBS=n         compilers at once (as many as there are processors)
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
readonly package=llama-cpp-python version=0.3.36
readonly sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
readonly commit=0c1e570  # of llama.cpp, inside that package
readonly targets="${LARDER_LLAMA_TARGETS:-llama llama-common llama-server}"
native=OFF
[[ "${LARDER_LLAMA_NATIVE:-0}" == 0 ]] || native=ON
# The build's number and commit are given, or they would be those of the repository around DIR.
options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF
  "-DGGML_NATIVE=$native" -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_COMMON=ON
  -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
  -DLLAMA_BUILD_NUMBER=1 "-DLLAMA_BUILD_COMMIT=$commit" -DGIT_EXECUTABLE=GIT_EXECUTABLE-NOTFOUND)
read -r -a more_options <<<"${LARDER_LLAMA_CMAKE_ARGS:-}"
options+=("${more_options[@]}")
readonly native options

# Seconds of all children so far, in processor time.
cpu_seconds() { awk '{ printf "%d", ($16 + $17 + $14 + $15) / '"$(getconf CLK_TCK)"' }' "/proc/$$/stat"; }
progress() { printf 'llama_env: %s (%ds, %ss of processor time so far)\n' "$*" "$SECONDS" "$(cpu_seconds)"; }

fail() {
  printf 'llama_env: %s\n' "$*" >&2
  exit 1
}

# Prints a hash of everything that the build is made from.
fingerprint() {
  { printf '%s\n' "$sha256" "$targets" "${options[@]}" && cat "${BASH_SOURCE[0]}"; } | sha256sum | cut -d ' ' -f 1
}

check_machine() {
  local tool
  for tool in python3 cmake ninja g++ tar; do
    command -v "$tool" >/dev/null || fail "$tool is missing: install it (tools/install_deps.sh)"
  done
  python3 -m pip --version >/dev/null 2>&1 || fail "python3 -m pip does not work: install python3-pip"
}

# Prints the path of the package, which is left in DIR for a next run; pip checks its hash.
download() {
  local to="$1/download"
  mkdir -p "$to"
  printf '%s==%s --hash=sha256:%s\n' "$package" "$version" "$sha256" >"$to/requirements.txt"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --no-binary "$package" \
    -d "$to" -r "$to/requirements.txt" >&2 ||
    fail "PyPI did not give $package $version with the pinned hash: is there a network, or a mirror in pip's settings?"
  printf '%s\n' "$to/llama_cpp_python-$version.tar.gz"
}

# All tools are unpacked, since cmake reads the lists of all; of the web interface only what stands in for it.
unpack() {
  local archive="$1" to="$2" top="llama_cpp_python-$version/vendor/llama.cpp" part
  local paths=()
  printf '%s  %s\n' "$sha256" "$archive" | sha256sum --check --quiet || fail "$archive has another hash: delete it"
  for part in CMakeLists.txt LICENSE licenses cmake ggml src include common vendor tools scripts/ui-assets.cmake; do
    paths+=("$top/$part")
  done
  rm -rf "$to"
  mkdir -p "$to"
  tar -xzf "$archive" -C "$to" --strip-components=3 --exclude="$top/tools/ui/*/*" --exclude="$top/tools/server/tests" \
    "${paths[@]}"
}

build() {
  local dir="$1" target launcher=()
  if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$dir}" CCACHE_NOHASHDIR=1
  fi
  cmake -S "$dir/src" -B "$dir/build" "${options[@]}" "${launcher[@]}" >"$dir/cmake.log" 2>&1 ||
    fail "cmake refused llama.cpp: see $dir/cmake.log"
  for target in $targets; do
    progress "building $target"
    ninja -C "$dir/build" -j "${LARDER_LLAMA_JOBS:-$(nproc)}" "$target" >"$dir/$target.log" 2>&1 ||
      fail "$target was not built: the end of $dir/$target.log is: $(tail -n 3 "$dir/$target.log")"
  done
}

main() {
  local dir="${1:-$root/build/llama}" wanted archive
  wanted="$(fingerprint)"
  if [[ -e "$dir/made_from" && "$(cat "$dir/made_from")" == "$wanted" ]]; then
    return 0
  fi
  check_machine
  mkdir -p "$dir"
  dir="$(cd "$dir" && pwd)"
  rm -f "$dir/made_from"
  archive="$dir/download/llama_cpp_python-$version.tar.gz"
  if [[ ! -e "$archive" ]]; then
    progress "downloading $package $version"
    archive="$(download "$dir")"
  fi
  progress "unpacking"
  unpack "$archive" "$dir/src"
  progress "configuring"
  rm -rf "$dir/build"
  build "$dir"
  printf '%s\n' "$wanted" >"$dir/made_from"
  progress "done"
}

main "$@"

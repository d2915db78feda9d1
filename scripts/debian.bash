# What the machine lacks is installed from Debian's packages, as root.
# Sourced, never run.

note() { printf '%s\n' "redeliver: $*" >&2; }
die() { note "$@"; exit 1; }

# can_install tells whether this machine and this user can install packages.
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# install_packages PACKAGE... asks apt for the named packages. The package
# lists are fetched once a run: a fresh machine has none, an old one stale ones.
install_packages() {
	can_install || die "cannot install $*: needs apt-get and root; install them by hand and run again"
	note "installing $*"
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300) log
	log=$(mktemp)
	if [ -z "${package_lists_fresh:-}" ]; then
		# A source that does not answer need not be the one with our package.
		"${apt[@]}" update </dev/null &>"$log" || note "apt-get update failed; going on with the lists at hand"
		package_lists_fresh=1
	fi
	if ! "${apt[@]}" install --no-install-recommends "$@" </dev/null &>>"$log"; then
		cat "$log" >&2
		die "apt-get could not install $*; what it said is above"
	fi
	rm -f "$log"
}

# need COMMAND PACKAGE... installs the packages unless the command is there.
need() {
	command -v "$1" >/dev/null || install_packages "${@:2}"
}

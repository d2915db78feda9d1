# What the machine lacks is installed from Debian's packages, as root.
# Sourced, never run.

note() { printf '%s\n' "redeliver: $*" >&2; }
die() { note "$@"; exit 1; }

# can_install tells whether this machine and this user can install packages.
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# install_packages PACKAGE... asks apt for the named packages, and sees to it
# that their services are not started: we start servers of our own. The package
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
	if ! without_services "${apt[@]}" install --no-install-recommends "$@" </dev/null &>>"$log"; then
		cat "$log" >&2
		die "apt-get could not install $*; what it said is above"
	fi
	rm -f "$log"
}

# without_services COMMAND... runs a command during which packages start no
# service, unless this machine has a rule of its own about that.
without_services() (
	rule=/usr/sbin/policy-rc.d
	if [ ! -e "$rule" ]; then
		trap 'rm -f "$rule"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$rule"
		chmod 755 "$rule"
	fi
	"$@"
)

# need COMMAND PACKAGE... installs the packages unless the command is there.
need() {
	command -v "$1" >/dev/null || install_packages "${@:2}"
}

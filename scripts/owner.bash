# Servers of our own run as the user that their package made, not as root.
# Sourced, never run.

# run_as USER COMMAND... runs a command as that user where we are root, else as
# ourselves; in a directory that the user may enter, and without the lock of
# scripts/brokers, which a server would keep.
run_as() (
	cd /
	exec 9>&-
	if [ "$(id -u)" = 0 ]; then
		exec runuser -u "$1" -- env LC_ALL=C "${@:2}"
	fi
	exec env LC_ALL=C "${@:2}"
)

# processes_in USER DIR prints the processes of that user that work in DIR.
processes_in() {
	run_as "$1" sh -c 'for p in /proc/[0-9]*; do
		[ "$(readlink "$p/cwd")" != "$1" ] || echo "${p#/proc/}"
	done' sh "$2" 2>/dev/null
}

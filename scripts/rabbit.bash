# RabbitMQ. Sourced by scripts/brokers, which sets $here and $state and holds
# the lock.

# The first of three ports, for clients, for the node's own tools and for its
# epmd; below the range that outgoing connections take their ports from.
rabbit_ports=$(seq 25460 3 25517)
# The oldest version that parks messages without losing them.
rabbit_oldest=3.10

# rabbit_up finds or starts a server and prints the line to export.
rabbit_up() {
	local url where
	rabbit_install
	if [ -n "${REDELIVER_RABBIT_URL:-}" ]; then
		[ -z "$rabbit_lacks" ] || note "$rabbit_lacks; without it the tests that stop and kill a node of their own fail"
		url=$REDELIVER_RABBIT_URL where="the server that REDELIVER_RABBIT_URL names"
	else
		[ -z "$rabbit_lacks" ] || die "$rabbit_lacks; or set REDELIVER_RABBIT_URL to a server"
		local port=5672
		where="the server on 127.0.0.1:5672"
		if ! rabbit_usable $port; then
			rabbit_start
			port=$(rabbit_port)
			where="our own node on 127.0.0.1:$port, in $rabbit_dir"
		fi
		url=amqp://guest:guest@127.0.0.1:$port/
	fi
	note "RabbitMQ: $where"
	printf 'export REDELIVER_RABBIT_URL=%s\n' "${url@Q}"
}

# rabbit_stop stops our own nodes, one a version, where they run.
rabbit_stop() {
	local pid
	for rabbit_dir in "$state"/rabbitmq-*/; do
		[ -d "$rabbit_dir" ] || continue
		rabbit_dir=${rabbit_dir%/}
		if pid=$(rabbit_pid); then
			run_as rabbitmq kill -TERM "$pid"
		fi
		rabbit_clear 60
	done
}

# rabbit_install sees to the server's programs. What is missing and cannot be
# installed it says in rabbit_lacks.
rabbit_install() {
	rabbit_lacks=
	rabbit_bin=$(rabbit_programs)
	if [ -z "$rabbit_bin" ]; then
		if ! can_install; then
			rabbit_lacks="no RabbitMQ server is installed: run this on Debian as root, or install RabbitMQ $rabbit_oldest or newer"
			return
		fi
		install_packages rabbitmq-server
		rabbit_bin=$(rabbit_programs)
		[ -n "$rabbit_bin" ] || die "RabbitMQ was installed, yet its programs are not in /usr/lib/rabbitmq/bin"
	fi
}

# rabbit_programs prints the directory of the server's programs. Those that
# Debian has in PATH know only of the system's own node.
rabbit_programs() {
	local program=/usr/lib/rabbitmq/bin/rabbitmq-server
	[ -x "$program" ] || program=$(command -v rabbitmq-server) || return 0
	dirname "$(readlink -f "$program")"
}

# rabbit_usable PORT tells whether a RabbitMQ that is new enough takes guest in.
rabbit_usable() {
	local version
	version=$(rabbit_version "$1") || return 1
	if [ "$(printf '%s\n' "$rabbit_oldest" "$version" | sort -V | head -n 1)" != "$rabbit_oldest" ]; then
		note "not using 127.0.0.1:$1: it does not take guest in, or is no RabbitMQ $rabbit_oldest or newer"
		return 1
	fi
}

# rabbit_version PORT prints the version of the RabbitMQ that listens there and
# takes guest into its first virtual host; nothing if it does not; and fails where
# nothing listens.
rabbit_version() (
	LC_ALL=C # read bytes
	exec 3<>"/dev/tcp/127.0.0.1/$1" || exit
	# What a client will say is known before the answers are: the protocol's
	# header, StartOk, TuneOk and Open.
	{
		printf 'AMQP\0\0\11\1'
		printf '\1\0\0\0\0\0\44\0\12\0\13\0\0\0\0\5PLAIN\0\0\0\14\0guest\0guest\5en_US\316'
		printf '\1\0\0\0\0\0\14\0\12\0\37\0\1\0\2\0\0\0\0\316'
		printf '\1\0\0\0\0\0\10\0\12\0\50\1/\0\0\316'
	} >&3
	# Each frame ends with \316; read drops what is NUL.
	while IFS= read -r -d $'\316' -t 10 -u 3 frame; do
		[[ ! $frame =~ RabbitMQ.*versionS.([0-9.]+) ]] || version=${BASH_REMATCH[1]}
		if [[ $frame == $'\1\5\n)' ]]; then # OpenOk
			echo "${version:-}"
			exit
		fi
	done
) 2>/dev/null

# rabbit_node COMMAND... runs a command in the directory of our node, as its
# owner, and with what tells the node and its tools where they are.
rabbit_node() {
	local port=$(rabbit_port) variables
	mapfile -t variables < <(sed -e '/^#/d; /^$/d' -e "s|@dir@|$rabbit_dir|; s|@port@|$port|" \
		-e "s|@dist@|$((port + 1))|; s|@epmd@|$((port + 2))|" "$here/../internal/brokertest/rabbit.env")
	run_as rabbitmq env -i -C "$rabbit_dir" PATH="$PATH" "${variables[@]}" "$@"
}

rabbit_port() { cat "$rabbit_dir/port"; }

rabbit_processes() { processes_in rabbitmq "$rabbit_dir"; }

# rabbit_pid prints the pid of our running node, or fails. The pid in a file that
# a killed node left may belong to another program by now.
rabbit_pid() {
	local pid
	pid=$(cat "$rabbit_dir/pid" 2>/dev/null) && grep -x "$pid" <<<"$(rabbit_processes)"
}

# rabbit_clear SECONDS waits that long for the processes of our node to end, kills
# those that do not, and ends its epmd.
rabbit_clear() {
	local deadline=$((SECONDS + $1)) pid
	while [ -n "$(rabbit_processes)" ] && [ $SECONDS -lt $deadline ]; do
		sleep 0.1
	done
	for pid in $(rabbit_processes); do
		run_as rabbitmq kill -KILL "$pid" 2>/dev/null || true
	done
	if [ -e "$rabbit_dir/port" ]; then
		rabbit_node epmd -kill &>/dev/null || true
	fi
}

# rabbit_start sees to it that our own node runs.
rabbit_start() {
	local version port log
	version=$(sed -nE 's|.*/rabbitmq_server-([0-9]+\.[0-9]+)[^/]*/sbin|\1|p' <<<"$rabbit_bin")
	rabbit_dir=$state/rabbitmq-${version:-local}
	if [ ! -d "$rabbit_dir" ]; then
		mkdir -m 700 "$rabbit_dir"
		[ "$(id -u)" != 0 ] || chown rabbitmq "$rabbit_dir"
	fi
	# It may be on its way up: started by a run that did not wait for it.
	! rabbit_waits 60 || return 0
	[ -z "$(rabbit_processes)" ] || note "our node runs and does not answer: starting it again"
	rabbit_clear 0
	# A cookie that was cut short, or lets others read it, stops the node: it
	# makes a new one.
	rm -f "$rabbit_dir/pid" "$rabbit_dir/.erlang.cookie"
	# A node that was killed before it had made guest never makes it.
	[ -e "$rabbit_dir/whole" ] || rm -rf "$rabbit_dir/data"
	for port in $rabbit_ports; do
		! listens $port $((port + 1)) $((port + 2)) || continue
		echo "$port" >"$rabbit_dir/port"
		break
	done
	log=$rabbit_dir/server.log
	# More connections than a user may have open by default; and a session of
	# its own, so that an interrupt at the terminal spares it.
	rabbit_node sh -c 'ulimit -S -n 8192; setsid "$2" >"$1" 2>&1 </dev/null &' sh \
		"$log" "$rabbit_bin/rabbitmq-server"
	if ! rabbit_waits 120; then
		tail -n 20 "$log" >&2 || true
		die "RabbitMQ did not start; the end of $log is above"
	fi
	touch "$rabbit_dir/whole"
	# What a test left behind, because it was killed, goes by itself.
	rabbit_node "$rabbit_bin/rabbitmqctl" -q set_policy --apply-to queues expire-unused '.*' \
		'{"expires": 86400000}' >&2
}

# rabbit_waits SECONDS waits that long for our node to answer; less if it has ended.
rabbit_waits() {
	local deadline=$((SECONDS + $1))
	while [ -n "$(rabbit_processes)" ] && [ $SECONDS -lt $deadline ]; do
		[ -z "$(rabbit_version "$(rabbit_port)")" ] || return 0
		sleep 0.1
	done
	return 1
}

# listens PORT... tells whether a program on this machine listens on one of them.
listens() {
	local port
	for port; do
		! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
	done
	return 1
}

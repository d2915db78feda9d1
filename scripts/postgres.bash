# PostgreSQL with the PGMQ extension. Sourced by scripts/brokers, which sets
# $state and holds the lock.

pgmq_version=1.11.1
# The npm package that carries the extension's files, and its dist.integrity.
pgmq_package=@electric-sql/pglite-pgmq@0.0.6
pgmq_integrity=sha512-KSkXos6Ac1u6Sxd7fJ4Ys8FKd+noLffB5tfVEauw51+lmOTUauZk7CjZS8oDfeMHZULBK23MvhQw3pzO44TMGg==
# Where the way through the upgrade scripts to the older versions begins.
pgmq_base=pgmq--1.1.1.sql

postgres_database=redeliver_test
# Below the range that outgoing connections take their ports from.
postgres_ports=$(seq 25432 25451)

# postgres_up finds or starts a server and prints the line to export.
postgres_up() {
	local url where
	postgres_install
	if [ -n "${REDELIVER_POSTGRES_URL:-}" ]; then
		[ -z "$postgres_lacks" ] || note "$postgres_lacks; without it the tests that stop and kill a server of their own fail"
		url=$REDELIVER_POSTGRES_URL where="the server that REDELIVER_POSTGRES_URL names"
	else
		[ -z "$postgres_lacks" ] || die "$postgres_lacks; or set REDELIVER_POSTGRES_URL to a server that has it"
		url=$(postgres_url 5432) where="the server on 127.0.0.1:5432"
		if ! postgres_usable "$url"; then
			postgres_start
			url=$(postgres_url "$(postgres_port)") where="our own server on 127.0.0.1:$(postgres_port), in $postgres_data"
		fi
		postgres_prepare "$url"
		url=$(postgres_test_url "$url")
	fi
	note "PostgreSQL: $where"
	printf 'export REDELIVER_POSTGRES_URL=%s\n' "${url@Q}"
}

# postgres_stop stops our own servers, one a version, where they run.
postgres_stop() {
	local data
	for data in "$state"/postgres-*/; do
		[ -d "$data" ] || continue
		postgres_locate "$data"
		[ -n "$(postgres_postmaster)" ] || continue
		as_owner "$postgres_bin/pg_ctl" stop -D "$postgres_data" -m fast -w >&2
	done
}

# postgres_install sees to the server's programs and the extension's files. What
# is missing and cannot be installed it says in postgres_lacks.
postgres_install() {
	postgres_lacks=
	if [ -z "$(postgres_newest)" ]; then
		if ! can_install; then
			postgres_lacks="no PostgreSQL server is installed: run this on Debian as root, or install one with PGMQ $pgmq_version"
			return
		fi
		install_packages postgresql
	fi
	postgres_bin=$(postgres_newest)
	[ -n "$postgres_bin" ] || die "PostgreSQL was installed, yet /usr/lib/postgresql/*/bin/initdb is missing"
	local dir
	dir=$(LC_ALL=C "$postgres_bin/pg_config" --sharedir)/extension
	if [ ! -e "$dir/pgmq--$pgmq_version.sql" ] || ! grep -qs "default_version = '$pgmq_version'" "$dir/pgmq.control"; then
		if [ ! -w "$dir" ]; then
			postgres_lacks="PGMQ $pgmq_version is not in $dir and $(id -un) may not write there: run this once as root"
			return
		fi
		pgmq_install "$dir"
	fi
	if ! cmp -s "$here/$pgmq_base" "$dir/$pgmq_base"; then
		if [ ! -w "$dir" ]; then
			postgres_lacks="older versions of PGMQ cannot be made, since $(id -un) may not write $pgmq_base to $dir: run this once as root"
			return
		fi
		install -m 644 "$here/$pgmq_base" "$dir"
	fi
	if [ -z "$(PATH=$PATH:/usr/sbin command -v pgbouncer)" ]; then
		if ! can_install; then
			postgres_lacks="PgBouncer is not installed: run this on Debian as root, or install it"
			return
		fi
		install_packages pgbouncer
	fi
}

# postgres_newest prints the directory of the newest server's programs. The
# pg_config in PATH may belong to a version of which only the headers are here.
postgres_newest() {
	local initdb
	initdb=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)
	[ -x "$initdb" ] || initdb=$(command -v initdb) || return 0
	dirname "$initdb"
}

# pgmq_install DIR puts the extension's files into DIR.
pgmq_install() {
	need npm npm
	note "installing PGMQ $pgmq_version into $1"
	local tmp want got
	tmp=$(mktemp -d)
	(
		trap 'rm -rf "$tmp"' EXIT
		cd "$tmp"
		npm pack --silent --cache "$tmp/cache" "$pgmq_package" </dev/null >package
		want=$(base64 -d <<<"${pgmq_integrity#sha512-}" | od -An -v -tx1 | tr -d ' \n')
		got=$(sha512sum <"$(cat package)" | cut -d ' ' -f 1)
		[ "$want" = "$got" ] || die "$pgmq_package is not the package that was pinned: its sha512 is $got, not $want"
		tar -xzOf "$(cat package)" package/dist/pgmq.tar.gz | tar -xz share/postgresql/extension
		# The control file last: it is what makes the extension available.
		install -m 644 share/postgresql/extension/pgmq*.sql "$1"
		install -m 644 share/postgresql/extension/pgmq.control "$1"
	)
}

postgres_url() { printf 'postgres://postgres@127.0.0.1:%s/postgres?sslmode=disable' "$1"; }

# postgres_test_url URL prints the same server's address with the test database.
postgres_test_url() { printf '%s' "${1/"/postgres?"/"/$postgres_database?"}"; }

# sql URL STATEMENT
sql() {
	PGCONNECT_TIMEOUT=5 LC_ALL=C "$postgres_bin/psql" -XAtqw -v ON_ERROR_STOP=1 -d "$1" -c "$2" </dev/null
}

# postgres_usable URL tells whether a server lets us in as a superuser and
# offers our version of the extension.
postgres_usable() {
	local answer
	if ! answer=$(sql "$1" "SELECT rolsuper AND EXISTS (SELECT FROM pg_available_extension_versions
		WHERE name = 'pgmq' AND version = '$pgmq_version') FROM pg_roles WHERE rolname = current_user" 2>&1); then
		[[ $answer == *"Connection refused"* ]] || note "not using 127.0.0.1:5432: ${answer##*FATAL:  }"
		return 1
	fi
	[ "$answer" = t ] || { note "not using 127.0.0.1:5432: postgres is no superuser there, or PGMQ $pgmq_version is not on offer"; return 1; }
}

# postgres_prepare URL makes the test database, so that nobody's own database
# is touched, with the extension at our version.
postgres_prepare() {
	local there
	there=$(sql "$1" "SELECT 1 FROM pg_database WHERE datname = '$postgres_database'")
	[ -n "$there" ] || sql "$1" "CREATE DATABASE $postgres_database"
	sql "$(postgres_test_url "$1")" "SET client_min_messages = warning;
		CREATE EXTENSION IF NOT EXISTS pgmq VERSION '$pgmq_version'; ALTER EXTENSION pgmq UPDATE TO '$pgmq_version'"
}

# postgres_locate DATA points the functions below at a cluster of ours, and at
# the programs of its version.
postgres_locate() {
	postgres_data=${1%/}
	local bin=/usr/lib/postgresql/${postgres_data##*-}/bin
	[ -x "$bin/pg_ctl" ] || bin=$(postgres_newest)
	postgres_bin=$bin
}

# as_owner COMMAND... runs a command as the owner of our clusters.
as_owner() { run_as postgres "$@"; }

# postgres_processes prints the postmaster and its children, which outlive a
# killed one by a moment.
postgres_processes() { processes_in postgres "$postgres_data"; }

# postgres_postmaster prints the pid of our running postmaster, or nothing. The
# pid in a file that a killed server left may belong to another program by now.
postgres_postmaster() {
	local pid
	pid=$(as_owner head -n 1 "$postgres_data/postmaster.pid" 2>/dev/null) || return 0
	! grep -qx "$pid" <<<"$(postgres_processes)" || echo "$pid"
}

postgres_port() { as_owner sed -n 4p "$postgres_data/postmaster.pid"; }

# postgres_start sees to it that our own server runs.
postgres_start() {
	local port log
	postgres_locate "$state/postgres-$("$postgres_bin/initdb" --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/')"
	log=$postgres_data/server.log
	[ -d "$postgres_data" ] || postgres_create
	if [ -n "$(postgres_postmaster)" ]; then
		! sql "$(postgres_url "$(postgres_port)")" 'SELECT 1' >/dev/null 2>&1 || return 0
		note "our server runs and does not answer: starting it again"
		as_owner "$postgres_bin/pg_ctl" stop -D "$postgres_data" -m immediate -w >&2 || true
	fi
	local deadline=$((SECONDS + 30))
	while [ -n "$(postgres_processes)" ]; do
		[ $SECONDS -lt $deadline ] || die "processes still work in $postgres_data: $(postgres_processes)"
		sleep 0.1
	done
	as_owner rm -f "$postgres_data/postmaster.pid"
	for port in $postgres_ports; do
		as_owner sh -c ': >"$1"' sh "$log"
		if as_owner "$postgres_bin/pg_ctl" start -D "$postgres_data" -l "$log" -o "-p $port" -w -t 120 >/dev/null 2>&1; then
			return 0
		fi
		as_owner grep -q 'could not bind' "$log" || break
	done
	as_owner tail -n 20 "$log" >&2 || true
	die "PostgreSQL did not start; the end of $log is above"
}

# postgres_create makes our cluster: on loopback alone, where anyone on this
# machine may connect, and with PostgreSQL's own durability settings. It
# appears under its name when it is whole.
postgres_create() {
	local new=$postgres_data.new
	rm -rf "$new"
	mkdir -m 700 "$new"
	[ "$(id -u)" != 0 ] || chown postgres "$new"
	as_owner "$postgres_bin/initdb" -D "$new" -U postgres -E UTF8 --no-locale -A trust >/dev/null ||
		die "initdb failed in $new"
	as_owner sh -c 'cat >>"$1"' sh "$new/postgresql.conf" <<-'CONF'

		listen_addresses = '127.0.0.1'
		unix_socket_directories = ''
		max_connections = 200
	CONF
	mv "$new" "$postgres_data"
}

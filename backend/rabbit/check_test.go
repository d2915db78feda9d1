package rabbit_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

func TestWhatAQueueIsCanBeLearnt(t *testing.T) {
	t.Parallel()
	url := brokertest.Rabbit(t)
	for name, c := range map[string]struct {
		args amqp.Table
		kind rabbit.Type
		want map[string]any
	}{
		"classic":           {amqp.Table{"x-queue-type": "classic"}, rabbit.Classic, map[string]any{}},
		"classic, untold":   {nil, rabbit.Classic, map[string]any{}},
		"classic with more": {amqp.Table{"x-max-length": int32(5), "x-dead-letter-exchange": "it's"}, rabbit.Classic, map[string]any{"x-max-length": int64(5), "x-dead-letter-exchange": "it's"}},
		"quorum":            {amqp.Table{"x-queue-type": "quorum"}, rabbit.Quorum, map[string]any{}},
		"quorum with more": {
			amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(7), "x-single-active-consumer": true, "x-overflow": "reject-publish", "x-max-length-bytes": int64(1 << 40)}, rabbit.Quorum,
			map[string]any{"x-delivery-limit": int64(7), "x-single-active-consumer": true, "x-overflow": "reject-publish", "x-max-length-bytes": int64(1 << 40)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(t, rabbit.Options{})
			deleteQueue(t, url, q.Name())
			onChannel(t, url, func(ch *amqp.Channel) {
				_, err := ch.QueueDeclare(q.Name(), true, false, false, false, c.args)
				require.NoError(t, err)
			})
			kind, args, err := q.Probe(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.kind, kind)
			require.Equal(t, c.want, args)
		})
	}
}

// codes returns the codes of findings, and of the fatal ones.
func codes(findings []backend.Finding) (all, fatal []string) {
	for _, f := range findings {
		all = append(all, f.Code)
		if f.Fatal {
			fatal = append(fatal, f.Code)
		}
	}
	return all, fatal
}

var modestNeeds = backend.Needs{MaxDelay: time.Minute, MaxAttempts: 5, MaxLapses: 10, HandlerBound: time.Minute}

func TestCheckFindsWhatDefeatsAPolicy(t *testing.T) {
	t.Parallel()
	rabbitURL := brokertest.Rabbit(t)
	for name, c := range map[string]struct {
		work, dead amqp.Table // nil: as they are created
		opts       rabbit.Options
		need       func(*backend.Needs)
		fatal      []string
		warn       []string
		text       string
	}{
		"nothing":                 {},
		"a queue of another type": {work: amqp.Table{"x-queue-type": "stream"}, fatal: []string{"queue_type"}, text: "stream"},
		"a low delivery limit":    {work: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 10}, fatal: []string{"delivery_limit_too_low"}, text: "x-delivery-limit of 10"},
		"a sufficient limit":      {work: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 11}},
		"a low limit for a policy without lapses": {
			work: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1}, need: func(n *backend.Needs) { n.MaxLapses = 0 },
		},
		"a handler that runs for too long": {need: func(n *backend.Needs) { n.HandlerBound = 30 * time.Minute }, fatal: []string{"consumer_timeout_too_short"}, text: "Options.ConsumerTimeout"},
		"a broker that waits for longer":   {opts: rabbit.Options{ConsumerTimeout: time.Hour}, need: func(n *backend.Needs) { n.HandlerBound = 30 * time.Minute }},
		"a broker that waits for ever":     {opts: rabbit.Options{ConsumerTimeout: -1}, need: func(n *backend.Needs) { n.HandlerBound = 30 * time.Hour }},
		"a delay of fifty days":            {need: func(n *backend.Needs) { n.MaxDelay = 50 * 24 * time.Hour }, warn: []string{"delay_above_maximum"}, text: "1193h"},
		"a delay above what is wanted": {
			opts: rabbit.Options{MaxDelay: time.Hour}, need: func(n *backend.Needs) { n.MaxDelay = 2 * time.Hour }, warn: []string{"delay_above_maximum"},
		},
		"queues that lose messages": {
			work: amqp.Table{"x-queue-type": "classic", "x-max-length": 5, "x-message-ttl": 1000}, dead: amqp.Table{"x-queue-type": "classic", "x-expires": 100000, "x-max-length-bytes": 5},
			warn: []string{"drop_head", "message_ttl", "drop_head", "expires"}, text: "reject-publish",
		},
		"queues that refuse messages": {work: amqp.Table{"x-queue-type": "quorum", "x-max-length": 5, "x-overflow": "reject-publish"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(t, c.opts)
			for queue, args := range map[string]amqp.Table{q.Name(): c.work, q.Name() + "_dlq": c.dead} {
				if args != nil {
					replaceQueue(t, queue, args)
				}
			}
			need := modestNeeds
			if c.need != nil {
				c.need(&need)
			}
			findings, err := q.Check(t.Context(), need)
			require.NoError(t, err)
			found, fatal := codes(findings)
			require.Equal(t, append(c.fatal, c.warn...), found)
			require.Equal(t, c.fatal, fatal)
			for _, f := range findings {
				require.Contains(t, f.Text, q.Name())
			}
			if c.text != "" {
				require.Contains(t, findings[0].Text, c.text)
			}
		})
	}
	t.Run("no queue", func(t *testing.T) {
		q := queue(t, rabbit.Options{})
		deleteQueue(t, rabbitURL, q.Name(), q.Name()+"_dlq")
		findings, err := q.Check(t.Context(), modestNeeds)
		require.NoError(t, err)
		_, fatal := codes(findings)
		require.Equal(t, []string{"queue_not_found", "dead_letter_queue_not_found"}, fatal)
		_, err = q.Subscribe(t.Context(), backend.SubscribeOptions{})
		require.ErrorIs(t, err, backend.ErrQueueNotFound)
		require.ErrorContains(t, err, "call Queue.Create")
	})
}

// Older brokers take the argument and mind nothing of it.
func TestCheckFindsATimeoutOfTheQueuesOwn(t *testing.T) {
	q := queue(t, rabbit.Options{})
	replaceQueue(t, q.Name(), amqp.Table{"x-queue-type": "quorum", "x-consumer-timeout": 60000, "x-queue-leader-locator": "balanced"})
	conn, err := amqp.Dial(brokertest.Rabbit(t))
	require.NoError(t, err)
	defer conn.Close()
	var want []string
	if rabbit.HasQueueTimeouts(conn.Properties) {
		want = []string{"consumer_timeout_too_short"}
	}
	findings, err := q.Check(t.Context(), modestNeeds)
	require.NoError(t, err)
	found, fatal := codes(findings)
	require.Equal(t, want, found)
	require.Equal(t, want, fatal)
}

// Not all that is wrong with a queue is an argument.
func TestCheckFindsAQueueThatGoes(t *testing.T) {
	for name, c := range map[string]struct {
		durable, autoDelete, dead bool
		fatal, warn               []string
	}{
		"transient":                      {warn: []string{"transient"}},
		"auto-delete":                    {durable: true, autoDelete: true, fatal: []string{"auto_delete"}},
		"an auto-delete queue of graves": {durable: true, autoDelete: true, dead: true, warn: []string{"auto_delete"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(t, rabbit.Options{})
			queue := q.Name()
			if c.dead {
				queue += "_dlq"
			}
			deleteQueue(t, brokertest.Rabbit(t), queue)
			onChannel(t, brokertest.Rabbit(t), func(ch *amqp.Channel) {
				_, err := ch.QueueDeclare(queue, c.durable, c.autoDelete, false, false, amqp.Table{"x-queue-type": "classic"})
				require.NoError(t, err)
			})
			findings, err := q.Check(t.Context(), modestNeeds)
			require.NoError(t, err)
			found, fatal := codes(findings)
			require.Equal(t, append(c.fatal, c.warn...), found)
			require.Equal(t, c.fatal, fatal)
			_, err = q.Subscribe(t.Context(), backend.SubscribeOptions{})
			if c.fatal == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "without auto-delete")
		})
	}
}

// What depends on the version is decided by what the broker says of itself, so that no broker is needed to know it.
func TestVersionsDiffer(t *testing.T) {
	q := open(t, rabbit.Options{})
	for version, c := range map[string]struct{ timeout, limit, nack bool }{
		"3.10.8":       {},
		"3.13.7":       {timeout: true},
		"4.0.9":        {timeout: true, limit: true},
		"4.2.0":        {timeout: true, limit: true},
		"4.3.0-rc.1":   {timeout: true, limit: true, nack: true},
		"4.3.6+debian": {timeout: true, limit: true, nack: true},
		"4.10.0":       {timeout: true, limit: true, nack: true},
		"5.0.0":        {timeout: true, limit: true, nack: true},
		"":             {},
		"nightly":      {},
	} {
		server := amqp.Table{"product": "RabbitMQ", "version": version}
		require.Equal(t, c.nack, rabbit.CountsNoNack(server), version)
		require.Equal(t, c.timeout, rabbit.HasQueueTimeouts(server), version)
		need := modestNeeds
		need.MaxLapses = 20
		findings := q.Faults(server, rabbit.Quorum, nil, need)
		found, fatal := codes(findings)
		require.Empty(t, fatal, version)
		if !c.limit {
			require.Empty(t, found, version)
			continue
		}
		require.Equal(t, []string{"delivery_limit_unknown"}, found, version)
		require.Contains(t, findings[0].Text, "RabbitMQ "+version[:3])
		require.Contains(t, findings[0].Text, "after 20 lapses")

		need.MaxLapses = 19
		require.Empty(t, q.Faults(server, rabbit.Quorum, nil, need), version)
		need.MaxLapses = 20
		require.Empty(t, q.Faults(server, rabbit.Classic, nil, need), version)
		require.Empty(t, q.Faults(server, rabbit.Quorum, map[string]any{"x-delivery-limit": int64(21)}, need), version)
		require.Empty(t, q.Faults(server, rabbit.Quorum, map[string]any{"x-delivery-limit": int64(-1)}, need), "without end")
	}
	// Another product that speaks the protocol has versions of its own.
	require.False(t, rabbit.CountsNoNack(amqp.Table{"product": "LavinMQ", "version": "9.0.0"}))
	require.False(t, rabbit.CountsNoNack(nil))

	// From 3.12 on a queue can have a timeout of its own, which goes before that of the broker.
	own := func(ms int64) []string {
		found, fatal := codes(q.Faults(nil, rabbit.Classic, map[string]any{"x-consumer-timeout": ms}, backend.Needs{HandlerBound: time.Hour}))
		require.Equal(t, fatal, found)
		return found
	}
	require.Equal(t, []string{"consumer_timeout_too_short"}, own(time.Hour.Milliseconds()))
	require.Empty(t, own(time.Hour.Milliseconds()+1))
}

// Create is for queues that are not there.
func TestCreateTouchesNothingThatIsThere(t *testing.T) {
	q := queue(t, rabbit.Options{Type: rabbit.Quorum})
	require.NoError(t, q.Create(t.Context()), "once more")
	other, err := rabbit.Open(brokertest.Rabbit(t), q.Name(), rabbit.Options{Type: rabbit.Classic})
	require.NoError(t, err)
	require.ErrorContains(t, other.Create(t.Context()), "exists with other arguments")
	kind, _, err := other.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, rabbit.Quorum, kind)

	args := map[string]any{"x-max-length": 1000, "x-overflow": "reject-publish"}
	q = queue(t, rabbit.Options{Arguments: args})
	_, learnt, err := q.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]any{"x-max-length": int64(1000), "x-overflow": "reject-publish"}, learnt)
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	const good = "amqp://user:secretword@127.0.0.1/vhost"
	for name, c := range map[string]struct {
		url, name string
		opts      rabbit.Options
		want      string
	}{
		"no name":               {url: good, want: "queue name is empty"},
		"a reserved name":       {url: good, name: "amq.orders", want: "amq."},
		"a long name":           {url: good, name: strings.Repeat("x", 238), want: "at most 237"},
		"a broken name":         {url: good, name: "a\xff", want: "UTF-8"},
		"its own dead letters":  {url: good, name: "orders", opts: rabbit.Options{DeadLetterQueue: "orders"}, want: "its own dead-letter queue"},
		"no URL":                {url: "", name: "orders", want: "amqp://user:password@host"},
		"another scheme":        {url: "http://user:secretword@127.0.0.1/", name: "orders", want: "not understood"},
		"an unescaped password": {url: "amqp://user:secret/word%@127.0.0.1/", name: "orders", want: "percent-encode"},
		"different vhosts":      {url: good + ",amqp://user:secretword@127.0.0.2/other", name: "orders", want: "different virtual hosts"},
		"an unknown type":       {url: good, name: "orders", opts: rabbit.Options{Type: "stream"}, want: "Quorum or Classic"},
		"a long delay":          {url: good, name: "orders", opts: rabbit.Options{MaxDelay: 50 * 24 * time.Hour}, want: "1193h"},
		"odd bands":             {url: good, name: "orders", opts: rabbit.Options{BandsPerDecade: 5}, want: "1, 2, 3, 4, 6, 8, 12 or 24"},
		"a short heartbeat":     {url: good, name: "orders", opts: rabbit.Options{Heartbeat: time.Millisecond}, want: "1 s or more"},
	} {
		_, err := rabbit.Open(c.url, c.name, c.opts)
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "secret", name)
	}
}

// What is printed for those who may declare is enough for those who may not.
func TestDefinitionsAreAllThatIsNeeded(t *testing.T) {
	t.Parallel()
	opts := rabbit.Options{NoDeclare: true, MaxDelay: 10 * time.Minute, BandsPerDecade: 6}
	q := queue(t, opts)
	_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{})
	require.ErrorContains(t, err, "Queue.Definitions")
	require.ErrorContains(t, err, q.Name()+".retry")
	findings, err := q.Check(t.Context(), modestNeeds)
	require.NoError(t, err)
	_, fatal := codes(findings)
	require.Equal(t, []string{"topology_missing"}, fatal)
	require.ErrorContains(t, q.Declare(t.Context()), "NoDeclare")

	importDefinitions(t, q.Definitions())
	sub := subscribe(t, q)
	publish(t, q, "m")
	for _, s := range []backend.Settlement{retry(0), retry(time.Millisecond), retry(time.Second), release} {
		require.NoError(t, settle(sub, receiveOne(t, sub), s))
	}
	d := receiveOne(t, sub)
	deleteQueue(t, brokertest.Rabbit(t), q.Name()+".retry.v1.1s")
	require.ErrorContains(t, settle(sub, d, retry(time.Second)), "unroutable")
	require.NoError(t, settle(sub, d, deadLetter("x")), "it was still held")
	require.Equal(t, "m", receiveOne(t, subscribe(t, graves(t, q))).ID)

	// A binding that is missing is told by what comes back, and the message stays until it is there.
	for to, c := range map[string]struct {
		from  string
		match amqp.Table
		backend.Settlement
	}{
		q.Name() + ".retry.v1.464ms": {q.Name() + ".retry", amqp.Table{"x-match": "all", "redeliver-band": "464ms"}, retry(400 * time.Millisecond)},
		q.Name():                     {q.Name() + ".retry.return", nil, retry(0)},
		q.Name() + "_dlq":            {q.Name() + ".retry.dead", nil, deadLetter("x")},
	} {
		publish(t, q, to)
		d := receiveOne(t, sub)
		onChannel(t, brokertest.Rabbit(t), func(ch *amqp.Channel) { require.NoError(t, ch.QueueUnbind(to, "", c.from, c.match)) })
		require.ErrorContains(t, settle(sub, d, c.Settlement), "unroutable", to)
		importDefinitions(t, q.Definitions())
		require.NoError(t, settle(sub, d, ack), to)
	}

	// A delay for which there is no queue is cut to the longest there is.
	publish(t, q, "long")
	require.Equal(t, 10*time.Minute, q.Limits().Applied(time.Hour))
	require.NoError(t, settle(sub, receiveOne(t, sub), retry(time.Hour)))
}

// importDefinitions does what rabbitmqctl import_definitions does, which is not at hand everywhere.
func importDefinitions(t *testing.T, doc string) {
	t.Helper()
	var d struct {
		Exchanges []struct {
			Name, Type string
			Durable    bool
		}
		Queues []struct {
			Name      string
			Durable   bool
			Arguments amqp.Table
		}
		Bindings []struct {
			Source, Destination string
			Arguments           amqp.Table
		}
	}
	dec := json.NewDecoder(strings.NewReader(doc))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&d))
	onChannel(t, brokertest.Rabbit(t), func(ch *amqp.Channel) {
		for _, x := range d.Exchanges {
			require.NoError(t, ch.ExchangeDeclare(x.Name, x.Type, x.Durable, false, false, false, nil))
		}
		for _, q := range d.Queues {
			for name, value := range q.Arguments {
				if n, ok := value.(json.Number); ok {
					ms, err := n.Int64()
					require.NoError(t, err)
					q.Arguments[name] = ms
				}
			}
			_, err := ch.QueueDeclare(q.Name, q.Durable, false, false, false, q.Arguments)
			require.NoError(t, err)
		}
		for _, b := range d.Bindings {
			require.NoError(t, ch.QueueBind(b.Destination, "", b.Source, false, b.Arguments))
		}
	})
}

// The node itself understands them.
func TestRabbitMQImportsTheDefinitions(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	q := queueAt(t, s.URL(), rabbit.Options{NoDeclare: true, MaxDelay: time.Second, BandsPerDecade: 3})
	s.Ctl("eval", "rabbit_definitions:import_raw(<<"+erlangString(q.Definitions())+">>).")
	sub := subscribe(t, q)
	publish(t, q, "m")
	require.NoError(t, settle(sub, receiveOne(t, sub), retry(30*time.Millisecond)))
	require.NoError(t, settle(sub, receiveOne(t, sub), deadLetter("x")))
	require.Contains(t, s.Queues(), q.Name()+".retry.v1.464ms")

	// Declaring them is no contradiction.
	other, err := rabbit.Open(s.URL(), q.Name(), rabbit.Options{})
	require.NoError(t, err)
	require.NoError(t, other.Declare(t.Context(), policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(400 * time.Millisecond)}))
	require.NoError(t, other.Close(t.Context()))
}

func erlangString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// The permissions that operators are told to grant are enough, and what is lacking is told at start.
func TestPermissions(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	admin, err := rabbit.Open(s.URL(), "orders", rabbit.Options{})
	require.NoError(t, err)
	require.NoError(t, admin.Create(t.Context()))
	require.NoError(t, admin.Close(t.Context()))
	as := func(user string, opts rabbit.Options) *rabbit.Queue {
		s.Ctl("add_user", user, "word")
		s.Shell(commands(t, "set_permissions "+user))
		u, err := url.Parse(s.URL())
		require.NoError(t, err)
		u.User = url.UserPassword(user, "word")
		opts.Logger = slog.New(slog.DiscardHandler)
		q, err := rabbit.Open(u.String(), "orders", opts)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, q.Close(context.Background())) })
		return q
	}
	works := func(q *rabbit.Queue) {
		t.Helper()
		sub := subscribe(t, q)
		publish(t, q, "m")
		for _, s := range []backend.Settlement{retry(0), retry(20 * time.Millisecond), release} {
			require.NoError(t, settle(sub, receiveOne(t, sub), s))
		}
		receiveOne(t, sub)
		rabbit.Crash(sub)
		d := receiveOne(t, sub)
		require.Equal(t, [2]int{3, 1}, [2]int{d.Attempt, d.Lapses})
		require.Eventually(t, func() bool { return settle(sub, d, deadLetter("x")) == nil }, patience, 10*time.Millisecond)
		require.NoError(t, sub.Close(t.Context()))
	}
	all := as("orders_all", rabbit.Options{})
	require.NoError(t, all.Create(t.Context()))
	works(all)
	kind, _, err := all.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, rabbit.Quorum, kind)

	// Without a right to the queue itself its type stays unknown, and lapses are counted in copies.
	own := as("orders_own", rabbit.Options{})
	works(own)
	kind, _, err = own.Probe(t.Context())
	require.NoError(t, err)
	require.Empty(t, kind)

	opts := rabbit.Options{NoDeclare: true, MaxDelay: time.Second, BandsPerDecade: 2}
	use := as("orders_use", opts)
	s.Shell("cat >orders.json <<'END'\n" + use.Definitions() + "END\n" + commands(t, "import_definitions"))
	works(use)

	s.Ctl("set_permissions", "orders_own", "^$", ".*", ".*")
	_, err = own.Subscribe(t.Context(), backend.SubscribeOptions{})
	require.ErrorContains(t, err, "lacks a permission")
	require.ErrorContains(t, err, "Options.NoDeclare")

	s.Ctl("change_password", "orders_use", "another")
	_, err = use.Subscribe(t.Context(), backend.SubscribeOptions{})
	require.ErrorContains(t, err, "password")
	require.NotContains(t, err.Error(), "word@")
}

func TestTLSAndCredentialsByConfiguration(t *testing.T) {
	u, err := url.Parse(brokertest.Rabbit(t))
	require.NoError(t, err)
	address, roots := tlsTo(t, u.Host)
	var logged log
	asked := 0
	opts := rabbit.Options{
		TLS:    &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		Logger: logged.logger(),
		SASL: func() []amqp.Authentication {
			asked++
			password, _ := u.User.Password()
			return []amqp.Authentication{&amqp.PlainAuth{Username: u.User.Username(), Password: password}}
		},
	}
	plain := queue(t, rabbit.Options{})
	q, err := rabbit.Open("amqps://nobody:secretword@"+address+u.Path, plain.Name(), opts)
	require.NoError(t, err)
	sub := subscribe(t, q)
	publish(t, q, "m")
	require.NoError(t, settle(sub, receiveOne(t, sub), retry(0)))
	receiveOne(t, sub)
	rabbit.Crash(sub)
	require.Equal(t, "m", receiveOne(t, sub).ID)
	require.NoError(t, q.Close(t.Context()))
	require.Greater(t, asked, 2, "for each connection")
	require.NotContains(t, logged.String(), "secretword")
	require.NotContains(t, logged.String(), "body of")

	// A certificate that nobody vouches for.
	opts.TLS = nil
	q, err = rabbit.Open("amqps://nobody:secretword@"+address+u.Path, plain.Name(), opts)
	require.NoError(t, err)
	_, err = q.Subscribe(t.Context(), backend.SubscribeOptions{})
	require.ErrorContains(t, err, "certificate")
	require.NoError(t, q.Close(t.Context()))
}

// tlsTo returns the address of a TLS server that hands everything on to a TCP address, and who vouches for it.
func tlsTo(t *testing.T, target string) (address string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots = x509.NewCertPool()
	roots.AddCert(cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				broker, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer broker.Close()
				go func() {
					_, _ = io.Copy(broker, client)
					broker.Close()
				}()
				_, _ = io.Copy(client, broker)
			}()
		}
	}()
	return l.Addr().String(), roots
}

// A consumer asks before it starts.
func TestAConsumerDoesNotStartOnAQueueThatDropsItsMessages(t *testing.T) {
	q := queue(t, rabbit.Options{})
	replaceQueue(t, q.Name(), amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 3})
	c := &consumer.Consumer{
		Queue: q, Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)}, Logger: slog.New(slog.DiscardHandler),
		Handler: consumer.HandlerFunc(func(context.Context, *backend.Delivery) error { return nil }),
	}
	require.ErrorContains(t, c.Run(t.Context()), "delivery_limit_too_low")
}

package brokertest

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLinkCarriesAllBothWays(t *testing.T) {
	ends := linked(t)
	there, back := bytes.Repeat([]byte("there"), 100_000), bytes.Repeat([]byte("back"), 100_000)
	client, broker := ends.connect(t)
	errs := make(chan error, 2)
	go func() { _, err := client.Write(there); errs <- err; client.CloseWrite() }()
	go func() { _, err := broker.Write(back); errs <- err; broker.CloseWrite() }()
	got, err := io.ReadAll(broker)
	require.NoError(t, err)
	require.True(t, bytes.Equal(there, got))
	got, err = io.ReadAll(client)
	require.NoError(t, err)
	require.True(t, bytes.Equal(back, got))
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	ends.await(t, 0)
}

func TestLinkGoesToTheBrokerThatTheURLNames(t *testing.T) {
	for _, c := range []struct{ broker, target string }{
		{"amqp://user:secret@localhost:5000/vhost?heartbeat=1", "localhost:5000"},
		{"amqp://user:secret@localhost/vhost", "localhost:5672"},
		{"amqps://user:secret@localhost/vhost", "localhost:5671"},
		{"amqp:///vhost", "localhost:5672"},
	} {
		l := Proxy(t, c.broker)
		require.Equal(t, c.target, l.target, c.broker)
		want, err := url.Parse(c.broker)
		require.NoError(t, err)
		want.Host = l.listener.Addr().String()
		require.Equal(t, want.String(), l.URL())
	}
	outcome := observe(func(tb testing.TB) { Proxy(tb, "kafka://user:secret@localhost") })
	require.Contains(t, outcome.failed, "names no port")
	require.NotContains(t, outcome.failed, "secret")
}

func TestLinkCutsAllConnections(t *testing.T) {
	ends := linked(t)
	client1, broker1 := ends.connect(t)
	client2, broker2 := ends.connect(t)
	require.Equal(t, 2, ends.link.Connections())
	ends.link.Cut()
	require.Zero(t, ends.link.Connections())
	for _, end := range []net.Conn{client1, broker1, client2, broker2} {
		_, err := end.Read(make([]byte, 1))
		require.ErrorContains(t, err, "reset")
	}
	client, broker := ends.connect(t)
	send(t, client, broker, "again")
}

func TestLinkCutsAfterSoManyBytes(t *testing.T) {
	for _, n := range []int64{0, 1, 1000, 10_000, 30_000} {
		for _, d := range []Direction{ToBroker, FromBroker} {
			ends := linked(t)
			from, to := ends.connect(t)
			if d == FromBroker {
				from, to = to, from
			}
			bystander, _ := ends.connect(t)
			cut := ends.link.CutAfter(d, n)
			go from.Write(make([]byte, 1<<20)) // may fail, as it is cut short
			<-cut
			got, err := io.ReadAll(to)
			require.ErrorContains(t, err, "reset")
			require.EqualValues(t, n, len(got))
			_, err = bystander.Read(make([]byte, 1))
			require.ErrorContains(t, err, "reset")
			from, to = ends.connect(t)
			send(t, from, to, "again")
		}
	}
}

func TestLinkThatIsRestoredIsNotCut(t *testing.T) {
	ends := linked(t)
	client, broker := ends.connect(t)
	ends.link.CutAfter(ToBroker, 2)
	ends.link.Restore()
	send(t, client, broker, "more than two")
}

func TestLinkRefusesNewConnections(t *testing.T) {
	ends := linked(t)
	client, broker := ends.connect(t)
	ends.link.Refuse()
	refused, err := net.Dial("tcp", ends.link.listener.Addr().String())
	if err == nil {
		_, err = refused.Read(make([]byte, 1))
		refused.Close()
	}
	require.ErrorContains(t, err, "reset")
	send(t, client, broker, "still")
	ends.link.Restore()
	client, broker = ends.connect(t)
	send(t, client, broker, "again")
}

func TestLinkTellsOfABrokerThatIsNotThere(t *testing.T) {
	ends := linked(t)
	ends.listener.Close()
	client, err := net.Dial("tcp", ends.link.listener.Addr().String())
	if err == nil {
		_, err = client.Read(make([]byte, 1))
		client.Close()
	}
	require.ErrorContains(t, err, "reset")
}

func TestLinkHoldsOneDirection(t *testing.T) {
	ends := linked(t)
	for _, d := range []Direction{ToBroker, FromBroker} {
		from, to := ends.connect(t)
		if d == FromBroker {
			from, to = to, from
		}
		ends.link.Hold(d)
		var restored, early atomic.Bool
		arrived := make(chan string)
		go func() {
			got := make([]byte, 4)
			_, err := io.ReadFull(to, got)
			early.Store(!restored.Load())
			if err != nil {
				got = []byte(err.Error())
			}
			arrived <- string(got)
		}()
		_, err := from.Write([]byte("held"))
		require.NoError(t, err)
		for range 1000 { // time enough for what is not held to pass
			send(t, to, from, "passes")
		}
		restored.Store(true)
		ends.link.Restore()
		require.Equal(t, "held", <-arrived)
		require.False(t, early.Load())
	}
}

func TestLinkCutLosesWhatIsHeld(t *testing.T) {
	ends := linked(t)
	client, broker := ends.connect(t)
	ends.link.Hold(ToBroker)
	_, err := client.Write([]byte("held"))
	require.NoError(t, err)
	ends.link.Cut()
	ends.link.Restore()
	got, err := io.ReadAll(broker)
	require.ErrorContains(t, err, "reset")
	require.Empty(t, got)
}

func TestLinkDelays(t *testing.T) {
	ends := linked(t)
	client, broker := ends.connect(t)
	const delay = 20 * time.Millisecond
	ends.link.Delay(delay)
	began := time.Now()
	send(t, client, broker, "there")
	send(t, broker, client, "and back")
	require.GreaterOrEqual(t, time.Since(began), 2*delay)
}

// A test's own cleanup must not wait for a broker's or a client's.
func TestLinkEndsWithItsTest(t *testing.T) {
	listener := listen(t)
	defer listener.Close()
	var l *Link
	var client net.Conn
	observe(func(tb testing.TB) {
		l = Proxy(tb, "tcp://"+listener.Addr().String())
		l.Hold(ToBroker)
		var err error
		client, err = net.Dial("tcp", l.listener.Addr().String())
		require.NoError(tb, err)
		broker, err := listener.Accept()
		require.NoError(tb, err)
		defer broker.Close()
		_, err = io.Copy(client, strings.NewReader("held"))
		require.NoError(tb, err)
	})
	_, err := client.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, client.Close())
	_, err = net.Dial("tcp", l.listener.Addr().String())
	require.ErrorContains(t, err, "refused")
}

// ends are what a link is between.
type ends struct {
	link     *Link
	listener net.Listener // the broker's
}

func linked(t *testing.T) *ends {
	t.Helper()
	listener := listen(t)
	t.Cleanup(func() { listener.Close() })
	return &ends{Proxy(t, "tcp://"+listener.Addr().String()), listener}
}

// connect makes a connection, and returns both of its ends.
func (e *ends) connect(t *testing.T) (client, broker *net.TCPConn) {
	t.Helper()
	before := e.link.Connections()
	c, err := net.Dial("tcp", e.link.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	b, err := e.listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	e.await(t, before+1)
	return c.(*net.TCPConn), b.(*net.TCPConn)
}

func (e *ends) await(t *testing.T, connections int) {
	t.Helper()
	require.Eventually(t, func() bool { return e.link.Connections() == connections }, patience, time.Millisecond)
}

// send sends a text and requires that it arrives.
func send(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(from, text)
	require.NoError(t, err)
	got := make([]byte, len(text))
	_, err = io.ReadFull(to, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

package rabbit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

func TestParkedFindsWhatOthersHaveParked(t *testing.T) {
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	publish(t, q, ids(4)...)
	ds := receive(t, sub, 4)
	require.NoError(t, sub.Settle(t.Context(), append(all(retry(time.Hour), ds[:3]), all(retry(rabbit.MaxDelay), ds[3:])...)))

	other, err := rabbit.Open(brokertest.Rabbit(t), q.Name(), rabbit.Options{MaxDelay: time.Minute, BandsPerDecade: 1})
	require.NoError(t, err)
	name := q.Name() + ".retry.v1."
	want := []rabbit.Parking{
		{Name: name + "3830s", Longest: 3830 * time.Second, Messages: 3},
		{Name: name + "4294800s", Longest: rabbit.MaxDelay, Messages: 1},
	}
	var got []rabbit.Parking
	require.Eventually(t, func() bool {
		var err error
		got, err = other.Parked(t.Context())
		require.NoError(t, err)
		return len(got) == 2 && got[0].Messages+got[1].Messages == 4
	}, patience, 20*time.Millisecond)
	require.Equal(t, want, got)

	// Waiting counts what the Queue that is asked has to do with.
	stats, err := other.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, backend.Stats{}, stats)
	require.NoError(t, other.Close(t.Context()))
}

package rabbit

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// version is that of a RabbitMQ. The zero value stands for a broker that does not tell, or is another product: nothing is
// taken for granted of that.
type version struct{ major, minor int }

// versionOf reads what a broker says of itself when it takes a connection.
func versionOf(server amqp.Table) version {
	product, _ := server["product"].(string)
	text, _ := server["version"].(string)
	var v version
	if product != "RabbitMQ" {
		return version{}
	}
	if _, err := fmt.Sscanf(text, "%d.%d", &v.major, &v.minor); err != nil {
		return version{}
	}
	return v
}

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// limitsLapses reports whether a quorum queue without a delivery-limit has one.
func (v version) limitsLapses() bool { return v.atLeast(4, 0) }

// countsNoNack reports whether a quorum queue does not count what a consumer gives back with a nack.
func (v version) countsNoNack() bool { return v.atLeast(4, 3) }

// hasQueueTimeouts reports whether a queue can have a consumer timeout of its own.
func (v version) hasQueueTimeouts() bool { return v.atLeast(3, 12) }
